"""`axiomrl leaderboard`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rl_training.cli.options import NUMBER, PATH, TEXT, WHOLE, Flag, arg, echo, print_notes, say, write_output
from rl_training.utils.errors import UserError

if TYPE_CHECKING:
    from rl_training.zoo.comparison import BaselineReport
    from rl_training.zoo.leaderboard import Leaderboard
    from rl_training.zoo.score_groups import ScoreGroup

REGRESSION = 3
"""Exit code of `--fail-on-regression` when something is worse than the baseline."""
SHIPPED = "shipped"


@dataclass
class Command:
    """Rank algorithms by the scores of their last checkpoints, or compare runs to a baseline.

    Better or worse than the baseline means that the whole 95 % interval of the difference is above or below zero. Against a
    baseline of fewer than five seeds a group is also worse if every run is below every one of the baseline by more than the
    seeds' standard deviation. With one seed on each side the interval covers their evaluation episodes only.

    Exit codes: 0 done, 2 a mistake in the call, 3 something is worse than the baseline (with --fail-on-regression).

      axiomrl leaderboard                         the results that come with AxiomRL
      axiomrl leaderboard runs --env CartPole-v1  your own runs
      axiomrl leaderboard runs --compare-to shipped --fail-on-regression
    """

    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, arg("[RUNS|RESULTS ...]")] = ()
    """Run folders, folders of runs, result files or folders of result files; the results that come with AxiomRL by default."""
    env: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, arg("ENV_ID")] = ()
    """Only this environment; may be repeated."""
    algo: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, arg("ALGO")] = ()
    """Only this algorithm; may be repeated."""
    min_seeds: Annotated[int, WHOLE, arg("N")] = 5
    """Flag results with fewer seeds."""
    compare_to: Annotated[str | None, TEXT, arg("RUNS|RESULTS|shipped")] = None
    """Compare each algorithm and environment to this baseline: runs, result files, or the word shipped."""
    fail_on_regression: Flag = False
    """Leave with exit code 3 if anything is worse than the baseline, or a run failed or was never evaluated."""
    tolerance: Annotated[float, NUMBER, arg("SCORE")] = 0.0
    """Differences up to this score do not count as better or worse."""
    format: Annotated[Literal["text", "json", "csv"], arg()] = "text"
    """How to print it."""
    json: Flag = False
    """The same as --format json."""
    output: Annotated[Path | None, PATH, arg("FILE")] = None
    """Write to this file instead of the screen."""

    def run(self) -> int:
        from rl_training.zoo.leaderboard import Leaderboard, aggregate_boards, task_boards
        from rl_training.zoo.leaderboard_data import as_csv, as_json
        from rl_training.zoo.leaderboard_text import as_text
        from rl_training.zoo.score_groups import select

        self._check()
        found, notes = _read(self.paths)
        groups = select(found, self.env, self.algo)
        if not groups:
            raise UserError(_no_match(found, self.env, self.algo))
        report, baseline_notes = self._compare(groups)
        leaderboard = Leaderboard(
            source=", ".join(str(path) for path in self.paths) or SHIPPED,
            min_seeds=self.min_seeds,
            boards=task_boards(groups),
            aggregates=aggregate_boards(groups),
            without_score=[group for group in groups if not group.scored],
            notes=[*notes, *baseline_notes],
            baseline_source=self.compare_to,
            baseline=report,
        )
        _require_scores(leaderboard)
        form = "json" if self.json else self.format
        self._write({"text": as_text, "json": as_json, "csv": as_csv}[form](leaderboard))
        print_notes(leaderboard.notes)
        if report is None or not self.fail_on_regression or not report.regressed:
            return 0
        for comparison in report.regressed:
            group, baseline = comparison.group, comparison.baseline.last.mean()
            scores = f" ({group.last.mean():.6g} against {baseline:.6g})" if group.scored else ""
            say(f"regression: {group.name} on {group.task}: {comparison.verdict}{scores}")
        return REGRESSION

    def _check(self) -> None:
        if self.json and self.format == "csv":
            raise UserError("give --json or --format csv, not both")
        if self.min_seeds < 1:
            raise UserError(f"--min-seeds must be at least 1, got {self.min_seeds}")
        if not 0 <= self.tolerance < float("inf"):
            raise UserError(f"--tolerance must be a score of 0 or more, got {self.tolerance}")
        if self.compare_to is None and (self.fail_on_regression or self.tolerance):
            option = "--fail-on-regression" if self.fail_on_regression else "--tolerance"
            raise UserError(f"{option} needs a baseline, e.g. axiomrl leaderboard runs --compare-to shipped {option}")
        if self.compare_to is not None and not self.paths:
            raise UserError(f"name the runs to compare, e.g. axiomrl leaderboard runs --compare-to {self.compare_to}")

    def _compare(self, groups: list[ScoreGroup]) -> tuple[BaselineReport | None, list[str]]:
        if self.compare_to is None:
            return None, []
        from rl_training.zoo.comparison import compare_to_baseline
        from rl_training.zoo.score_groups import select

        baseline, notes = _read(() if self.compare_to == SHIPPED else (Path(self.compare_to),))
        # Selected too: what the filters leave out is not missing in the runs.
        return compare_to_baseline(groups, select(baseline, self.env, self.algo), self.tolerance), notes

    def _write(self, text: str) -> None:
        if self.output is None:
            echo(text, end="")
            return
        write_output(self.output, text)
        say(f"written to {self.output}")


def _no_match(found: list[ScoreGroup], envs: tuple[str, ...], algos: tuple[str, ...]) -> str:
    """Which filter lets nothing through, and what it could say."""
    known = {
        "environment": ({group.env_id for group in found}, envs),
        "algorithm": ({group.algo for group in found}, algos),
    }
    for what, (there, asked) in known.items():
        if asked and not there & set(asked):
            return f"no run of {what} {asked[0]!r}; there are {', '.join(sorted(there))}"
    return f"no run of {' or '.join(algos)} on {' or '.join(envs)}: there is each of them, but not together"


def _read(paths: tuple[Path, ...]) -> tuple[list[ScoreGroup], list[str]]:
    from rl_training.zoo.score_groups import collect, shipped

    return collect(paths) if paths else (shipped(), [])


def _require_scores(leaderboard: Leaderboard) -> None:
    if not leaderboard.boards and leaderboard.baseline is None:
        names = ", ".join(f"{group.name} on {group.task}" for group in leaderboard.without_score)
        raise UserError(
            f"no run has a score: {names} failed or has not been evaluated (evaluations.jsonl is empty; see evaluation.every)"
        )
