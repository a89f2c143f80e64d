"""Follows a run from outside, by reading its folder and nothing else. Without torch or Gymnasium."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rl_training.experiment.run.reference import REFERENCE, read_reference
from rl_training.experiment.run.run_dir import CONFIG, EVALUATIONS, METADATA, METRICS
from rl_training.experiment.run.view import HISTORY_LINES, RunView
from rl_training.utils.errors import UserError
from rl_training.utils.json_lines import JsonLines, damage_note
from rl_training.utils.printable import quoted
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
    found = metadata.get("resumes")
    resumes = [entry.get("at_utc") for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
    return max((start for start in [metadata.get("created_at_utc"), *resumes] if isinstance(start, str)), default="")


class RunFollower:
    """One run's view, kept current by `poll`."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.metadata = read_metadata(run_dir)
        self._metrics, self._evaluations = (
            JsonLines(run_dir / name, inside=run_dir) for name in (METRICS, EVALUATIONS)
        )
        self._settings = [run_dir / name for name in (METADATA, CONFIG, REFERENCE)]
        self._seen: list[tuple[int, int] | None] = []
        self.view = self._fresh_view()
        self.poll()

    def poll(self) -> bool:
        """Reads what is new; says whether anything was."""
        changed = self._read_settings()
        try:
            return self._read_logs() or changed
        except OSError as error:
            raise UserError(f"{error.filename or self.run_dir}: cannot be read ({error.strerror})") from error

    def _read_logs(self) -> bool:
        changed = False
        if self._metrics.replaced() or self._evaluations.replaced():  # a resume has dropped lines
            self._metrics.rewind()
            self._evaluations.rewind()
            self.view = self._fresh_view()
        for record in self._metrics.records(sample=HISTORY_LINES):
            self.view.add_metrics(record["step"], record)
            changed = True
        for record in self._evaluations.records():
            self.view.add_evaluation(record["step"], record)
            changed = True
        return changed

    @property
    def notes(self) -> list[str]:
        """What had to be passed over so far."""
        return [damage_note(log.path, log.damaged) for log in (self._metrics, self._evaluations) if log.damaged]

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
            raise UserError(f"{self.run_dir}: {METADATA} has no known status (got {quoted(view.status)})")
        return view


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None
