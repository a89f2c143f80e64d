"""A report as plain data: what the text, JSON, CSV and HTML forms all show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from pathlib import Path

import numpy as np

from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.run.reference import Reference, read_reference
from rl_training.utils.bootstrap import stratified_interval
from rl_training.utils.errors import UserError
from rl_training.zoo import statistics
from rl_training.zoo.report.curves import INTERVAL_SEEDS, Band, band, series
from rl_training.zoo.report.differences import (
    Fact,
    Settings,
    differing_keys,
    experiment_settings,
    facts,
    same_settings,
)
from rl_training.zoo.report.findings import SEVERITIES, Finding
from rl_training.zoo.report.learning_rules import LEARNING_RULES
from rl_training.zoo.report.run_rules import RUN_RULES, stalled
from rl_training.zoo.report.throughput import Throughput, throughput
from rl_training.zoo.run_records import RunRecord
from rl_training.zoo.score_groups import method_differences, method_of, task_of
from rl_training.zoo.values import number, show_setting, show_steps

SEEDS_WANTED = 5
"""Groups with fewer seeds are flagged: with so few, the next seed may turn the picture round."""


@dataclass(frozen=True)
class Score:
    """A score over seeds."""

    values: list[float]
    mean: float
    iqm: float
    """Interquartile mean: less moved by one odd seed."""
    low: float | None
    high: float | None
    """95 % bootstrap interval of the mean over seeds; None with too few of them."""


@dataclass(frozen=True)
class RunRow:
    """One run in the listings."""

    run: RunRecord
    name: str
    """Name of its folder, with as much of the path as makes it unique."""
    counted: bool
    """Whether it stands for its seed, rather than another run with the same seed."""
    best_step: int | None
    speed: Throughput | None
    videos: list[Path]


@dataclass(frozen=True)
class Group:
    """Runs of one algorithm on one environment with the same settings: what may be averaged over seeds."""

    algo: str
    label: str
    """Unique within its environment: the algorithm's name, with what its settings have of their own."""
    rows: list[RunRow]
    """All runs, also those left out of the scores."""
    last: Score | None
    best: Score | None
    evaluation: Band | None
    training: Band | None
    reference: Reference | None
    """The shipped result with the same config."""
    flags: list[str]
    """What a reader must know before trusting the scores."""

    @property
    def counted(self) -> list[RunRow]:
        return [row for row in self.rows if row.counted]

    @property
    def seeds(self) -> int:
        """How many seeds are in the scores."""
        return len(self.last.values) if self.last is not None else 0


@dataclass(frozen=True)
class Comparison:
    """Two groups of one environment, by their last scores."""

    better: Group
    """The one with the higher mean."""
    other: Group
    probability: float
    """That a run of `better` beats one of `other`."""
    low: float
    high: float


@dataclass(frozen=True)
class Environment:
    """Everything on one environment; scores of different environments are never put together."""

    name: str
    """Environment id, with its arguments where there are any: with others it is another task."""
    groups: list[Group]
    comparisons: list[Comparison]
    settings: list[Settings]
    differing: list[str]
    """Config keys whose values differ between `settings`."""


@dataclass(frozen=True)
class Report:
    """All of it."""

    created: datetime
    sources: list[Path]
    environments: list[Environment]
    findings: list[Finding]
    facts: list[Fact]
    skipped: list[str]
    names: dict[str, str]
    """Name of each run by its folder."""

    @property
    def rows(self) -> list[RunRow]:
        return [row for environment in self.environments for group in environment.groups for row in group.rows]

    def name(self, run: RunRecord) -> str:
        return self.names[str(run.path)]


def build_report(runs: Sequence[RunRecord], skipped: Sequence[str], sources: Sequence[Path], now: datetime) -> Report:
    """Groups, curves, differences and findings of the runs; `skipped` are the folders that could not be read."""
    names = _names(runs)
    by_env: dict[str, list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: (task_of(run.config), run.algo, run.seed, str(run.path))):
        by_env.setdefault(task_of(run.config), []).append(run)
    findings = [
        finding
        for members in by_env.values()
        for run in members
        for found in (*(rule(run) for rule in (*RUN_RULES, *LEARNING_RULES)), stalled(run, now))
        for finding in found
    ]
    return Report(
        created=now,
        sources=list(sources),
        environments=[_environment(name, members, names) for name, members in by_env.items()],
        findings=sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)),
        facts=facts(runs),
        skipped=list(skipped),
        names=names,
    )


def score(values: Sequence[float]) -> Score | None:
    """The score over seeds; None without any."""
    if not values:
        return None
    task = [np.asarray(values, dtype=np.float64)]
    low, high = stratified_interval(statistics.mean, task) if len(values) >= INTERVAL_SEEDS else (None, None)
    return Score(list(values), float(statistics.mean(task)), float(statistics.interquartile_mean(task)), low, high)


def _environment(name: str, runs: list[RunRecord], names: dict[str, str]) -> Environment:
    experiments: list[list[RunRecord]] = []
    for run in runs:
        for members in experiments:
            if members[0].algo == run.algo and not method_differences(
                method_of(members[0].config), method_of(run.config)
            ):
                members.append(run)
                break
        else:
            experiments.append([run])
    labels = _labels(experiments)
    groups = [_group(label, members, names) for label, members in zip(labels, experiments, strict=True)]
    groups.sort(key=lambda group: -group.last.mean if group.last is not None else float("inf"))
    label_of = {str(row.run.path): group.label for group in groups for row in group.rows}
    settings = same_settings([row.run for group in groups for row in group.rows], label_of)
    differing = differing_keys([one.values for one in settings])
    return Environment(name, groups, _comparisons(groups), settings, differing)


def _labels(experiments: list[list[RunRecord]]) -> list[str]:
    """The algorithm's name, and where it has several settings the first values that differ."""
    labels = []
    for runs in experiments:
        algo = runs[0].algo
        name = ALGORITHMS[algo].name if algo in ALGORITHMS else algo
        siblings = [experiment_settings(other[0]) for other in experiments if other[0].algo == algo]
        own, keys = experiment_settings(runs[0]), differing_keys(siblings)
        more = [f"{len(keys) - 2} more"] if len(keys) > 2 else []
        labels.append(", ".join([name, *(_short(key, own.get(key)) for key in keys[:2]), *more]))
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[:i].count(label) + 1})"
        for i, label in enumerate(labels)
    ]


def _short(key: str, value: object) -> str:
    if key == "total_timesteps" and (steps := number(value)) is not None:
        return f"{show_steps(steps)} steps"
    return f"{key.rpartition('.')[2]} {show_setting(value)}"


def _group(label: str, runs: list[RunRecord], names: dict[str, str]) -> Group:
    counted = one_per_seed(runs)
    scored = [run for run in counted if _ending_score(run) is not None]
    best = [value for run in scored if (value := run.best_score) is not None]
    return Group(
        algo=runs[0].algo,
        label=label,
        rows=[_row(run, names[str(run.path)], run in counted) for run in runs],
        last=score([value for run in scored if (value := _ending_score(run)) is not None]),
        best=score(best),
        evaluation=band([series(run.evaluations, "mean") for run in scored]),
        training=band([series(run.metrics, "episode_return") for run in scored]),
        reference=_reference(runs),
        flags=_flags(runs, counted, scored),
    )


def one_per_seed(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """A seed trained twice is no more evidence: the completed run counts, and the newest of several."""
    kept = {}
    for run in sorted(runs, key=lambda run: (run.status == "completed", str(run.metadata.get("created_at_utc")))):
        kept[run.seed] = id(run)
    return [run for run in runs if kept[run.seed] == id(run)]


def _ending_score(run: RunRecord) -> float | None:
    """The last score; none for a failed run, whose newest evaluation is not what the training ended with."""
    return None if run.status == "failed" else run.last_score


def _flags(runs: list[RunRecord], counted: list[RunRecord], scored: list[RunRecord]) -> list[str]:
    flags = []
    if not scored:
        flags.append("no score")
    elif len(scored) < SEEDS_WANTED:
        flags.append(f"only {len(scored)} seed{'' if len(scored) == 1 else 's'}")
    if failed := sum(run.status == "failed" for run in counted):
        flags.append(f"{failed} failed")
    if missing := sum(run.status != "failed" and run not in scored for run in counted):
        flags.append(f"{missing} never evaluated")
    if unfinished := sum(run.status in ("running", "interrupted") for run in scored):
        flags.append(f"{unfinished} unfinished")
    if repeated := len(runs) - len(counted):
        flags.append(f"{repeated} repeated seed{'' if repeated == 1 else 's'} left out")
    return flags


def _reference(runs: Sequence[RunRecord]) -> Reference | None:
    """The shipped result that the runs repeat, if there is one that can be read."""
    for run in runs:
        try:
            reference = read_reference(run.path)
            if reference is not None and all(math.isfinite(mean) for curve in reference.curves for _, mean in curve):
                return reference
        except UserError:
            continue
    return None


def _row(run: RunRecord, name: str, counted: bool) -> RunRow:
    curve = run.curve
    best_step = max(curve, key=lambda point: point[1])[0] if curve else None
    folder = run.path / "videos"
    videos = (
        sorted(path for path in folder.glob("*") if path.suffix in (".mp4", ".webm", ".gif")) if folder.is_dir() else []
    )
    return RunRow(run, name, counted, best_step, throughput(run), videos)


def _comparisons(groups: list[Group]) -> list[Comparison]:
    """Every pair of groups that both have enough seeds for an interval, the better one first."""
    enough = [group for group in groups if group.last is not None and len(group.last.values) >= INTERVAL_SEEDS]
    pairs = []
    for better, other in combinations(enough, 2):
        assert better.last is not None and other.last is not None
        sides = [np.array(better.last.values)], [np.array(other.last.values)]
        low, high = stratified_interval(statistics.probability_of_improvement, *sides)
        pairs.append(Comparison(better, other, float(statistics.probability_of_improvement(*sides)), low, high))
    return pairs


def _names(runs: Sequence[RunRecord]) -> dict[str, str]:
    plain = [run.path.name for run in runs]
    return {str(run.path): run.path.name if plain.count(run.path.name) == 1 else str(run.path) for run in runs}
