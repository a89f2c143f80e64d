"""The run directory: its name, its files, and its lines of metrics."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.utils.disk import FULL, append, replace_file, writing
from rl_training.utils.errors import UserError, WriteError
from rl_training.utils.json_lines import JsonLines

if TYPE_CHECKING:  # readers of run folders start without gymnasium, which the config brings along
    from rl_training.experiment.config.train_config import TrainConfig

CONFIG, METADATA, METRICS, EVALUATIONS = "config.yaml", "metadata.json", "metrics.jsonl", "evaluations.jsonl"
CHECKPOINTS, TENSORBOARD, VIDEOS, CRASH, SCRATCH = "checkpoints", "tensorboard", "videos", "crash", "scratch"


def make_run_dir(cfg: TrainConfig) -> Path:
    """Creates `<output_dir>/<algo>__<env>__seed<seed>__<time>/` with its folders and the resolved config; returns its path."""
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", cfg.env_id).strip(".-") or "env"
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    path = Path(cfg.output_dir).expanduser() / f"{cfg.algo}__{env}__seed{cfg.seed}__{stamp}"
    try:
        path.mkdir(parents=True)
        for folder in (CHECKPOINTS, TENSORBOARD, VIDEOS):
            (path / folder).mkdir()
        replace_file(path / CONFIG, cfg.to_yaml().encode())
    except OSError as error:
        if error.errno in FULL:
            raise WriteError(
                f"disk full while making the run folder {path}. Free some space, or choose another disk: --output-dir PATH"
            ) from error
        raise UserError(
            f"cannot write to the output folder {cfg.output_dir}: {error.strerror}. "
            "Choose another one: --output-dir PATH"
        ) from error
    return path


def write_atomically(path: Path, text: str) -> None:
    """Replaces a small file so that a reader, or a crash, sees the old text or the new one."""
    with writing(path):
        replace_file(path, text.encode())


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Appends one strict JSON line; NaN and infinity become null."""
    with writing(path):
        append(path, json.dumps(strict_json(record), allow_nan=False).encode() + b"\n")


def strict_json(value: Any) -> Any:
    """The value with NaN and infinity, for which JSON has no word, replaced by null."""
    if isinstance(value, dict):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All records of a JSON-lines file at once; empty if it is not there. A run's own file may be long: see `JsonLines`."""
    return list(JsonLines(path).records())
