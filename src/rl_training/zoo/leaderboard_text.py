"""A leaderboard as plain text, 80 columns wide where names allow, the same on a terminal and in a pipe."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from rl_training.zoo.comparison import MIN_BOOTSTRAP, BaselineReport, Comparison, Verdict
from rl_training.zoo.leaderboard import AggregateBoard, Leaderboard, TaskBoard
from rl_training.zoo.score_groups import ScoreGroup, SeedScore
from rl_training.zoo.values import show_steps, table

WIDTH = 80
_BASIS = {
    "student": "few seeds, so the interval is Student's t over the seeds of both sides",
    "episodes": "one seed against one, so the interval covers their evaluation episodes, not other seeds",
}


def as_text(leaderboard: Leaderboard) -> str:
    """The comparison with the baseline if there is one, otherwise the ranks."""
    if leaderboard.baseline is not None:
        return _comparison_text(leaderboard.baseline, str(leaderboard.baseline_source))
    parts = [_board_text(board, leaderboard.min_seeds) for board in leaderboard.boards]
    parts += [_aggregate_text(board, leaderboard.min_seeds) for board in leaderboard.aggregates]
    parts += [f"no score: {group.name} on {group.task}: {_without_score(group)}" for group in leaderboard.without_score]
    parts.append(_legend(leaderboard))
    return "\n\n".join(parts) + "\n"


def _board_text(board: TaskBoard, min_seeds: int) -> str:
    digits = _digits(value for entry in board.entries for value in (entry.mean, entry.best, *(entry.interval or ())))
    header = ("rank", "algorithm", "seeds", "last", "95 % interval", "IQM", "median", "best", "steps")
    rows = [
        (
            _rank(entry.rank, entry.tied),
            entry.group.name,
            _seeds(len(entry.group.scored), min_seeds),
            f"{entry.mean:.{digits}f}",
            _interval(entry.interval, digits),
            f"{entry.iqm:.{digits}f}",
            f"{entry.median:.{digits}f}",
            f"{entry.best:.{digits}f}",
            _steps(entry.group.steps),
        )
        for entry in board.entries
    ]
    notes = []
    for group in (entry.group for entry in board.entries):
        if group.differences:
            values = (f"{_short(key)}={_value(value)}" for key, value in group.differences.items())
            notes.append(f"{group.name}: {', '.join(values)}")
        notes += _group_notes(group)
    return "\n".join([board.task, *table([header, *rows], (0, 2, 3, 5, 6, 7, 8), WIDTH), *_notes(notes)])


def _group_notes(group: ScoreGroup) -> list[str]:
    """What a reader has to know before trusting the numbers of a group."""
    notes = []
    if group.seeds_asked is not None and len(group.scored) < group.seeds_asked:
        notes.append(f"{group.name}: {len(group.scored)} of the {group.seeds_asked} seeds that were asked for")
    if group.unfinished:
        statuses = _statuses(group.unfinished)
        notes.append(f"{group.name}: not all runs are finished ({statuses}); their last score is an early one")
    if group.without_score:
        notes.append(f"{group.name}: {_without_score(group)}")
    return notes


def _aggregate_text(board: AggregateBoard, min_seeds: int) -> str:
    title = f"Over {', '.join(board.tasks)}; 0 is a random policy, 1 the target"
    header = ("rank", "algorithm", "seeds", "IQM", "95 % interval", "median", "mean", "optimality gap")
    rows = [
        (
            _rank(entry.rank, entry.tied),
            entry.algo,
            _seeds(entry.seeds, min_seeds),
            f"{entry.iqm:.2f}",
            _interval(entry.iqm_interval, 2),
            f"{entry.median:.2f}",
            f"{entry.mean:.2f}",
            f"{entry.optimality_gap:.2f}",
        )
        for entry in board.entries
    ]
    return "\n".join([*textwrap.wrap(title, WIDTH), *table([header, *rows], (0, 2, 3, 5, 6, 7), WIDTH)])


def _legend(leaderboard: Leaderboard) -> str:
    lines = [
        "rank: = tied, the difference to the first of that rank may be chance",
        "last: mean score of the last checkpoints over the seeds; best: of the best ones,",
        "      picked among many evaluations, so it flatters",
    ]
    counts = [len(entry.group.scored) for board in leaderboard.boards for entry in board.entries]
    if any(count < leaderboard.min_seeds for count in counts):
        lines.append(f"!: fewer than {leaderboard.min_seeds} seeds, so the interval is a rough guess")
    if any(count < MIN_BOOTSTRAP for count in counts):
        lines.append(f"ties with fewer than {MIN_BOOTSTRAP} seeds are judged by Student's t, others by the bootstrap")
    return "\n".join(lines)


def _comparison_text(report: BaselineReport, source: str) -> str:
    by_task: dict[str, list[Comparison]] = {}
    for comparison in report.comparisons:
        by_task.setdefault(comparison.group.task, []).append(comparison)
    counts = Counter(comparison.verdict for comparison in report.comparisons)
    beyond = f" by more than {report.tolerance:g}" if report.tolerance else ""
    parts = [
        f"Compared to {source}: mean score of the last checkpoints (seeds)",
        *(_compared_task(task, comparisons) for task, comparisons in by_task.items()),
        *_counterpart_missing("not in the baseline", report.without_baseline, by_task),
        *_counterpart_missing("only in the baseline", report.only_in_baseline, by_task),
        "P(beats): chance that a run beats one of the baseline\n"
        f"verdict: better or worse if the whole interval is above or below 0{beyond},\n"
        "         same if it cannot be told",
        ", ".join(f"{counts[verdict]} {verdict}" for verdict in get_args(Verdict) if counts[verdict]),
    ]
    return "\n\n".join(parts) + "\n"


def _compared_task(task: str, comparisons: list[Comparison]) -> str:
    digits = _digits(
        float(side.last.mean()) for one in comparisons for side in (one.group, one.baseline) if side.scored
    )
    header = ("algorithm", "now", "baseline", "difference", "95 % interval", "P(beats)", "verdict")
    rows = [_comparison_row(comparison, digits) for comparison in comparisons]
    notes = [note for comparison in comparisons for note in _comparison_notes(comparison)]
    for basis, text in _BASIS.items():
        names = [one.group.name for one in comparisons if one.difference and one.difference.basis == basis]
        notes += [f"{', '.join(names)}: {text}"] if names else []
    return "\n".join([task, *table([header, *rows], (1, 2, 3, 5), WIDTH), *_notes(notes)])


def _counterpart_missing(text: str, groups: Sequence[ScoreGroup], compared: Mapping[str, Any]) -> list[str]:
    """Names every group; those of a task that is not compared at all by the task alone."""
    names = [f"{group.name} on {group.task}" for group in groups if group.task in compared]
    names += [f"all of {task}" for task in sorted({group.task for group in groups} - set(compared))]
    return ["\n".join(textwrap.wrap(f"{text}: {', '.join(names)}", WIDTH, subsequent_indent="  "))] if names else []


def _comparison_row(comparison: Comparison, digits: int) -> tuple[str, ...]:
    group, baseline, difference = comparison.group, comparison.baseline, comparison.difference
    return (
        group.name,
        f"{group.last.mean():.{digits}f} ({len(group.scored)})" if group.scored else "- (0)",
        f"{baseline.last.mean():.{digits}f} ({len(baseline.scored)})",
        f"{difference.value:+.{digits}f}" if difference else "-",
        _interval((difference.low, difference.high), digits) if difference else "-",
        f"{comparison.probability:.2f}" if comparison.probability is not None else "-",
        comparison.verdict,
    )


def _comparison_notes(comparison: Comparison) -> list[str]:
    group, baseline, notes = comparison.group, comparison.baseline, []
    other_steps = group.scored and not 0.95 < group.steps[1] / max(1, baseline.steps[1]) < 1.05
    for key, (old, new) in comparison.config_changes.items():
        if not (key == "total_timesteps" and other_steps):
            notes.append(f"{group.name}: {_short(key)} is {_value(new)}, in the baseline {_value(old)}")
    if other_steps:
        notes.append(f"{group.name}: {group.steps[1]:,} steps against {baseline.steps[1]:,}")
    if comparison.far_below:
        notes.append(
            f"{group.name}: every run is below every one of the baseline by more than the seeds' standard deviation"
        )
    return notes + _group_notes(group)


def _without_score(group: ScoreGroup) -> str:
    return f"{len(group.without_score)} of {len(group.runs)} runs have no score ({_statuses(group.without_score)})"


def _statuses(runs: Iterable[SeedScore]) -> str:
    counts = Counter(run.status if run.status != "completed" else "never evaluated" for run in runs)
    return ", ".join(f"{count} {status}" for status, count in counts.items())


def _notes(notes: Iterable[str]) -> list[str]:
    return [
        line for note in notes for line in textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="    ")
    ]


def _digits(values: Iterable[float]) -> int:
    """Decimals that a column of such numbers needs."""
    largest = max((abs(value) for value in values), default=0.0)
    return 0 if largest >= 1000 else 1 if largest >= 10 else 2


def _rank(rank: int, tied: bool) -> str:
    return f"{rank}=" if tied else f"{rank} "


def _seeds(count: int, wanted: int) -> str:
    return f"{count}!" if count < wanted else f"{count} "


def _interval(interval: tuple[float, float] | None, digits: int) -> str:
    return f"[{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]" if interval is not None else "-"


def _steps(steps: tuple[int, int]) -> str:
    low, high = map(show_steps, steps)
    return low if low == high else f"{low}-{high}"


def _short(key: str) -> str:
    return key.removeprefix("hyperparams.")


def _value(value: Any) -> str:
    """A schedule reads start→end."""
    if isinstance(value, dict) and {"start", "end"} <= set(value):
        return f"{value['start']}→{value['end']}"
    return str(value)
