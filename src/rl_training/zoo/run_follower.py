"""Follows a run from outside, by reading its folder and nothing else. Without torch or Gymnasium."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rl_training.experiment.run.reference import REFERENCE, read_reference
from rl_training.experiment.run.run_dir import CONFIG, EVALUATIONS, METADATA, METRICS, parse_lines
from rl_training.experiment.run.view import RunView
from rl_training.utils.errors import UserError
from rl_training.zoo.run_records import STATUSES, read_config, read_metadata, run_folders


def newest_run(path: Path) -> tuple[Path, list[str]]:
    """The run folder that `path` is, or the one below it that was started or resumed last; and what had to be skipped."""
    runs: list[tuple[str, Path]] = []
    skipped: list[str] = []
    for folder in run_folders(path):
        try:
            runs.append((_last_start(read_metadata(folder)), folder))
        except UserError as error:
            skipped.append(str(error))
    if not runs:
        raise UserError(
            skipped[0]
            if skipped
            else f"no run found in {path}: name a run folder or a folder of runs, as `axiomrl train` writes under runs/"
        )
    return max(runs)[1], skipped


def _last_start(metadata: dict[str, Any]) -> str:
    resumes = [entry.get("at_utc") for entry in metadata.get("resumes") or [] if isinstance(entry, dict)]
    return max((start for start in [metadata.get("created_at_utc"), *resumes] if isinstance(start, str)), default="")


class RunFollower:
    """One run's view, kept current by `poll`."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.metadata = read_metadata(run_dir)
        self._metrics, self._evaluations = _Tail(run_dir / METRICS), _Tail(run_dir / EVALUATIONS)
        self._settings = [run_dir / name for name in (METADATA, CONFIG, REFERENCE)]
        self._seen: list[tuple[int, int] | None] = []
        self.view = self._fresh_view()
        self.poll()

    def poll(self) -> bool:
        """Reads what is new; says whether anything was."""
        changed = self._read_settings()
        if self._metrics.replaced() or self._evaluations.replaced():  # a resume has dropped lines
            self._metrics.rewind()
            self._evaluations.rewind()
            self.view = self._fresh_view()
        for record in self._metrics.read():
            self.view.add_metrics(_step(record), record)
            changed = True
        for record in self._evaluations.read():
            self.view.add_evaluation(_step(record), record)
            changed = True
        return changed

    @property
    def ended(self) -> bool:
        """The run has written its last word."""
        return self.view.status != "running"

    @property
    def silence(self) -> float:
        """Seconds since the run last wrote something: a killed run cannot say so itself."""
        files = (self._metrics.path, self._evaluations.path, *self._settings)
        times = [one.st_mtime for path in files if (one := _stat(path))]
        return max(time.time() - max(times, default=0.0), 0.0)

    def to_dict(self) -> dict[str, Any]:
        """JSON values for scripts."""
        return {
            "run_dir": str(self.run_dir),
            **{key: self.metadata.get(key) for key in ("algo", "env_id", "seed", "stop_reason")},
            **self.view.to_dict(),
            "seconds_since_last_write": round(self.silence, 3),
        }

    def _read_settings(self) -> bool:
        """Metadata, config and reference; a resume may have changed them."""
        stamps = [(one.st_ino, one.st_mtime_ns) if (one := _stat(path)) else None for path in self._settings]
        if stamps == self._seen:
            return False
        self._seen = stamps
        self.metadata = read_metadata(self.run_dir)
        fresh = self._fresh_view()
        self.view.status, self.view.total_timesteps = fresh.status, fresh.total_timesteps
        self.view.reference = fresh.reference
        return True

    def _fresh_view(self) -> RunView:
        config = read_config(self.run_dir)
        total = config.get("total_timesteps")
        if not isinstance(total, int) or total < 1:
            raise UserError(f"{self.run_dir}: half-written run ({CONFIG} does not give total_timesteps)")
        title = f"{str(config.get('algo')).upper()} on {config.get('env_id')}, seed {config.get('seed')}"
        view = RunView(title, total, read_reference(self.run_dir))
        view.status = str(self.metadata.get("status"))
        if view.status not in STATUSES:
            raise UserError(f"{self.run_dir}: {METADATA} has no known status (got {view.status!r})")
        return view


class _Tail:
    """The lines of a growing JSON-lines file, each read once, when it is whole."""

    def __init__(self, path: Path):
        self.path = path
        self._offset = 0
        self._inode: int | None = None

    def replaced(self) -> bool:
        """The file is another one now, or shorter than what was read."""
        if self._inode is None:
            return False
        status = _stat(self.path)
        return status is None or status.st_ino != self._inode or status.st_size < self._offset

    def rewind(self) -> None:
        self._offset, self._inode = 0, None

    def read(self) -> list[dict[str, Any]]:
        """The records of the lines that were finished since the last call; a damaged line is passed over."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return []
        with file:
            self._inode = os.fstat(file.fileno()).st_ino
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return parse_lines(whole.split(b"\n"))


def _step(record: dict[str, Any]) -> int:
    step = record.get("step")
    return step if isinstance(step, int) else 0


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
