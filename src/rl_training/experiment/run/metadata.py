"""`metadata.json`: what ran, where, with which versions, and how it ended."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.run_dir import METADATA, strict_json, write_atomically
from rl_training.experiment.versions import versions
from rl_training.utils.disk import overwrite_file, set_aside, writing
from rl_training.utils.errors import UserError
from rl_training.utils.safe_files import read_json
from rl_training.utils.system import cpu_name


class RunMetadata:
    """The file of one run, kept current while it trains."""

    def __init__(self, path: Path, values: dict[str, Any]):
        self.path, self.values = path, values

    @classmethod
    def create(cls, run_dir: Path, cfg: TrainConfig, device: str) -> RunMetadata:
        metadata = cls(
            run_dir / METADATA,
            {
                "schema": 1,
                "created_at_utc": utc_now(),
                "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
                "algo": cfg.algo,
                "env_id": cfg.env_id,
                "seed": cfg.seed,
                "system": system_info(device),
                "versions": versions(),
                "git": git_info(),
                "status": "running",
                "stop_reason": None,
                "resumes": [],
                "latest_metrics": {},
                "best_checkpoint": None,
            },
        )
        metadata.write()
        return metadata

    @classmethod
    def open(cls, run_dir: Path, cfg: TrainConfig, device: str, notes: list[str]) -> RunMetadata:
        """The run's file, or a new one: for its first writer, and where the old one is damaged, which is set aside and noted."""
        path = run_dir / METADATA
        if not os.path.lexists(path):
            return cls.create(run_dir, cfg, device)
        try:
            return cls.load(run_dir)
        except UserError as error:
            with writing(path):
                aside = set_aside(path)
            notes.append(f"{error}; set aside as {aside.name}, and begun anew")
            return cls.create(run_dir, cfg, device)

    @classmethod
    def load(cls, run_dir: Path) -> RunMetadata:
        path = run_dir / METADATA
        try:
            values = read_json(path, inside=run_dir)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"{run_dir} is not a run folder: {METADATA} cannot be read ({why})") from error
        resumes = values.get("resumes", []) if isinstance(values, dict) else None
        if not isinstance(resumes, list) or not all(isinstance(entry, dict) for entry in resumes):
            raise UserError(f"{path} is not valid run metadata")
        return cls(path, values)

    def check_unchanged(self) -> None:
        """UserError if another process has continued the run since this one wrote last."""
        if len(RunMetadata.load(self.path.parent).values.get("resumes", [])) != len(self.values.get("resumes", [])):
            raise UserError(
                f"another process has continued {self.path.parent} meanwhile, and this agent does not know what it learned. "
                f"Load it: load_agent({str(self.path.parent)!r})"
            )

    def update(self, **values: Any) -> None:
        self.values.update(values)
        self.write()

    def add_resume(
        self, checkpoint: str, step: int, grade: str, notes: list[str], changes: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Appends to the lineage: from where, how exactly the environments came back, and what changed in the config."""
        entry = {"at_utc": utc_now(), "checkpoint": checkpoint, "step": step, "grade": grade, "notes": notes}
        if changes:
            entry["changes"] = list(changes)
        self.update(status="running", stop_reason=None, resumes=[*self.values.get("resumes", []), entry])

    def write(self) -> None:
        write_atomically(self.path, self._text())

    def overwrite(self) -> None:
        """The same without a new file, where the disk has no room for one."""
        with writing(self.path):
            overwrite_file(self.path, self._text())

    def _text(self) -> str:
        return json.dumps(strict_json(self.values), indent=2, allow_nan=False) + "\n"


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def system_info(device: str) -> dict[str, Any]:
    gpu = None
    if device.startswith("cuda"):
        import torch

        gpu = torch.cuda.get_device_name(torch.device(device))
    cpu = {"cpu": cpu_name(), "cpu_count": os.cpu_count()}
    return {"os": platform.platform(), **cpu, "device": device, "gpu": gpu}


def git_info() -> dict[str, Any] | None:
    """Commit and dirty flag of the working folder; None without git or outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git("status", "--porcelain", "--untracked-files=no"))}


def _git(*args: str) -> str | None:
    try:
        result = subprocess.run(["git", *args], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None
