"""`train --seeds`: which seeds, and their runs side by side."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.cli.options import say
from rl_training.utils.errors import AxiomError, UserError
from rl_training.utils.user_code import import_modules

if TYPE_CHECKING:
    from rl_training.experiment.config.loader import ResolvedConfig

MAX_SEEDS = 10_000


def parse_seeds(text: str) -> list[int]:
    """Seeds as the command line writes them: numbers and ranges with commas, such as 0-4,7; a range includes its end."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"--seeds takes numbers and ranges with commas, e.g. --seeds 1,2,3 or 0-4; got {text!r}")
        begin, end = int(first), int(last or first)
        if begin > end:
            raise UserError(f"--seeds: the range {part.strip()} ends before it begins; write {end}-{begin}")
        if end >= 2**32 or len(seeds) + end - begin >= MAX_SEEDS:
            raise UserError(f"--seeds: at most {MAX_SEEDS:,} seeds below 2**32, got {text!r}")
        seeds += range(begin, end + 1)
    if len(set(seeds)) != len(seeds):
        raise UserError(f"--seeds names a seed twice: {text}")
    return seeds


class Stopped(AxiomError):
    """A signal stopped a run before its end; what it has is saved."""

    def __init__(self, reason: str | None, exit_code: int):
        super().__init__(reason or "stopped")
        self.exit_code = exit_code


@dataclass(frozen=True, eq=False)
class SeedRun:
    """One seed's run, in a process of its own; a `zoo.workers.Task`."""

    resolved: ResolvedConfig
    imports: tuple[str, ...]
    folder: Path
    """Where its log and its result are kept until all are done."""

    def __str__(self) -> str:
        return f"seed {self.resolved.config.seed}"

    @property
    def log(self) -> Path:
        return self._file(".log")

    @property
    def lock(self) -> Path:
        return self._file(".lock")

    @property
    def begun(self) -> bool:
        return False

    def work(self) -> None:
        from rl_training.cli.train import print_result, summary
        from rl_training.experiment.run.runner import start_run
        from rl_training.zoo.reference import find_reference

        import_modules(self.imports)
        result = start_run(self.resolved, find_reference=find_reference)
        card = io.StringIO()
        with contextlib.redirect_stdout(card):
            print_result(self.resolved, result, self.imports, alone=False)
        record = {"summary": {"seed": self.resolved.config.seed, **summary(result)}, "card": card.getvalue()}
        self._file(".json").write_text(json.dumps(record), encoding="utf-8")
        if result.exit_code:
            raise Stopped(result.stop_reason, result.exit_code)

    def ending(self) -> str | None:
        if (record := self.result()) is None:
            return None
        reason, evaluation = record["summary"]["stop_reason"], record["summary"]["evaluation"]
        score = "" if evaluation is None else f", evaluation return {evaluation['mean']:.1f}"
        return f"{self}: {reason or 'done'}{score}, {record['summary']['run_dir']}"

    def result(self) -> dict[str, Any] | None:
        """What the process left: `summary` and `card`; None if it came to no end."""
        path = self._file(".json")
        record: dict[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return record

    def _file(self, suffix: str) -> Path:
        return self.folder / f"seed{self.resolved.config.seed}{suffix}"


def train_side_by_side(
    configs: Sequence[ResolvedConfig], jobs: int, imports: tuple[str, ...]
) -> tuple[list[dict[str, Any]], int]:
    """(what each run left, in the order of the seeds; exit code). The runs that fail do not stop the others."""
    from rl_training.zoo.workers import run_tasks

    folder = Path(tempfile.mkdtemp(prefix="axiomrl-seeds-"))
    tasks = [SeedRun(resolved, imports, folder) for resolved in configs]
    say(f"{len(tasks)} seeds, {min(jobs, len(tasks))} at a time; logs: {folder}")
    failed, received = run_tasks(tasks, jobs, say)
    results = [record for task in tasks if (record := task.result()) is not None]
    missing = [str(task) for task in tasks if task.result() is None and task not in failed]
    if missing:
        say(f"not trained: {', '.join(missing)}")
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    return results, received.exit_code or (1 if failed else 0)


def with_seed(resolved: ResolvedConfig, seed: int) -> ResolvedConfig:
    """The config with another seed, which the command line gives."""
    config = replace(resolved.config, seed=seed)
    return replace(resolved, config=config, origins={**resolved.origins, "seed": "command line"})
