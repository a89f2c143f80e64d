"""Two run folders compared: a resumed run must leave what one that was never stopped leaves, but for times and its lineage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rl_training.experiment.checkpoint.folder import MANIFEST
from rl_training.experiment.checkpoint.snapshot import RESUME_IGNORES
from rl_training.experiment.checkpoint.store import read_checkpoint
from rl_training.experiment.run.run_dir import CONFIG, EVALUATIONS, METADATA, METRICS, SCRATCH, TENSORBOARD
from rl_training.utils.trees import differing_paths

OWN_TO_A_RUN = (TENSORBOARD, SCRATCH)
"""Folders whose files differ by nature: each process begins an event file of its own, and scratch data outlives no run."""

_OUTPUT = "output_dir"
_METADATA_IGNORES = ("created_at_utc", "command", "resumes", "latest_metrics.time/*")
_LINE_IGNORES = ("*.at_utc", "*.time/*")


def differing_files(whole: Path, resumed: Path) -> list[str]:
    """Where two run folders differ, e.g. `checkpoints/step_000002048: policy.weights.0` or `metrics.jsonl: 3.step`."""
    names = [set(_parts(run)) for run in (whole, resumed)]
    differences = [f"{name}: not in the resumed run" for name in sorted(names[0] - names[1])]
    differences += [f"{name}: only in the resumed run" for name in sorted(names[1] - names[0])]
    for name in sorted(names[0] & names[1]):
        paths = differing_paths(_content(whole / name), _content(resumed / name), _ignores(name))
        differences += [f"{name}: {path}" if path else name for path in paths]
    return differences


def _parts(run: Path, below: str = "") -> Iterator[str]:
    """Files, empty folders and whole checkpoints, relative to the run."""
    entries = sorted((run / below).iterdir())
    if below and not entries:
        yield f"{below}/"
    for entry in entries:
        name = f"{below}/{entry.name}" if below else entry.name
        if name in OWN_TO_A_RUN:
            continue
        if entry.is_dir() and not (entry / MANIFEST).exists():
            yield from _parts(run, name)
        else:
            yield name


def _content(path: Path) -> Any:
    if path.is_dir():
        if not (path / MANIFEST).exists():
            return None
        checkpoint = read_checkpoint(path)
        return {"info": checkpoint.info, **checkpoint.groups}
    data = path.read_bytes()
    if path.name in (METRICS, EVALUATIONS):
        return [json.loads(line) for line in data.splitlines()]
    if path.name == METADATA:
        return json.loads(data)
    return yaml.safe_load(data) if path.name == CONFIG else data


def _ignores(name: str) -> tuple[str, ...]:
    if name.startswith("checkpoints/"):
        return (*RESUME_IGNORES, f"info.config.{_OUTPUT}")
    if name in (METRICS, EVALUATIONS):
        return _LINE_IGNORES
    return {METADATA: _METADATA_IGNORES, CONFIG: (_OUTPUT,)}.get(name, ())
