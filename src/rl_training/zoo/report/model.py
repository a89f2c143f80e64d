"""A report as plain data: what the text, JSON, CSV and HTML forms all show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.experiment.registry import ALGORITHMS
from rl_training.experiment.run.reference import Reference, read_reference
from rl_training.experiment.run.run_dir import VIDEOS
from rl_training.utils.bootstrap import stratified_interval
from rl_training.utils.errors import UserError
from rl_training.utils.safe_files import special_kind
from rl_training.zoo import statistics
from rl_training.zoo.report.curves import INTERVAL_SEEDS, Band, band, series
from rl_training.zoo.report.findings import SEVERITIES, Finding
from rl_training.zoo.report.learning_rules import LEARNING_RULES
from rl_training.zoo.report.run_rules import RUN_RULES, stalled
from rl_training.zoo.report.throughput import Throughput, throughput
from rl_training.zoo.run_records import RunRecord
from rl_training.zoo.score_groups import ScoreGroup, group_runs
from rl_training.zoo.values import leaves, mapping, number, plural, show_setting, show_steps

SEEDS_WANTED = 5
"""Groups with fewer seeds are flagged: with so few, the next seed may turn the picture round."""
NOT_A_SETTING = ("seed", "output_dir", "video.every", "video.episodes", "video.keep", "video.max_seconds")
"""Keys that differ between any two runs, or that change nothing of them."""
_SYSTEM_NAMES = {"os": "operating system", "cpu": "CPU", "cpu_count": "CPU count", "gpu": "GPU"}


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
    """The runs of one method on one task, as the report shows them."""

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
class Settings:
    """Runs with one and the same config, apart from `NOT_A_SETTING`."""

    label: str
    runs: list[RunRecord]
    values: dict[str, Any]
    """Dotted keys."""


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
class Fact:
    """One thing about where runs were made, with the runs that have each value."""

    name: str
    values: dict[str, list[RunRecord]]

    @property
    def differs(self) -> bool:
        return len(self.values) > 1


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
    def groups(self) -> list[Group]:
        return [group for environment in self.environments for group in environment.groups]

    @property
    def rows(self) -> list[RunRow]:
        return [row for group in self.groups for row in group.rows]

    def name(self, run: RunRecord) -> str:
        return self.names[str(run.path)]


def build_report(runs: Sequence[RunRecord], skipped: Sequence[str], sources: Sequence[Path], now: datetime) -> Report:
    """Groups, curves, differences and findings of the runs; `skipped` are the folders that could not be read."""
    names = _names(runs)
    by_task: dict[str, list[ScoreGroup]] = {}
    for group in group_runs(sorted(runs, key=lambda run: (run.seed, str(run.path)))):
        by_task.setdefault(group.task, []).append(group)
    return Report(
        created=now,
        sources=list(sources),
        environments=[_environment(task, groups, names) for task, groups in by_task.items()],
        findings=_findings([run for groups in by_task.values() for run in _in_order(groups)], now),
        facts=_facts(runs),
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


def _in_order(groups: Sequence[ScoreGroup]) -> list[RunRecord]:
    """All runs of the groups, also repeated ones, by algorithm and seed."""
    runs = [one.run for group in groups for one in (*group.runs, *group.repeated) if one.run is not None]
    return sorted(runs, key=lambda run: (run.algo, run.seed, str(run.path)))


def _findings(runs: Sequence[RunRecord], now: datetime) -> list[Finding]:
    """Every finding, the gravest first; `now` tells a running run from one that was killed."""
    found: list[Finding] = []
    for run in runs:
        for rule in (*RUN_RULES, *LEARNING_RULES):
            found += rule(run)
        found += stalled(run, now)
    return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))


def _environment(name: str, scores: list[ScoreGroup], names: dict[str, str]) -> Environment:
    groups = [_group(label, one, names) for label, one in zip(_labels(scores), scores, strict=True)]
    groups.sort(key=lambda group: -group.last.mean if group.last is not None else float("inf"))
    settings = _same_settings(groups)
    return Environment(name, groups, _comparisons(groups), settings, _differing_keys([one.values for one in settings]))


def _labels(groups: list[ScoreGroup]) -> list[str]:
    """The algorithm's name, and where it has several settings the first values that differ."""
    labels = []
    for group in groups:
        name = ALGORITHMS[group.algo].name if group.algo in ALGORITHMS else group.algo
        keys = _differing_keys([leaves(other.method) for other in groups if other.algo == group.algo])
        own = leaves(group.method)
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


def _group(label: str, group: ScoreGroup, names: dict[str, str]) -> Group:
    runs, counted = _in_order([group]), [one.run for one in group.runs]
    scored = [one.run for one in group.scored if one.run is not None]
    return Group(
        algo=group.algo,
        label=label,
        rows=[_row(run, names[str(run.path)], any(run is one for one in counted)) for run in runs],
        last=score(group.last.tolist()),
        best=score(group.best.tolist()),
        evaluation=band([series(run.evaluations, "mean") for run in scored]),
        training=band([series(run.metrics, "episode_return") for run in scored]),
        reference=_reference(runs),
        flags=_flags(group),
    )


def _flags(group: ScoreGroup) -> list[str]:
    flags = []
    if not group.scored:
        flags.append("no score")
    elif len(group.scored) < SEEDS_WANTED:
        flags.append(f"only {plural(len(group.scored), 'seed')}")
    failed = sum(run.status == "failed" for run in group.runs)
    if failed:
        flags.append(f"{failed} failed")
    if missing := len(group.without_score) - failed:
        flags.append(f"{missing} never evaluated")
    if group.unfinished:
        flags.append(f"{len(group.unfinished)} unfinished")
    if group.repeated:
        flags.append(f"{plural(len(group.repeated), 'repeated seed')} left out")
    return flags


def _reference(runs: Sequence[RunRecord]) -> Reference | None:
    """The shipped result that the runs repeat, if there is one that can be read."""
    for run in runs:
        try:
            reference = read_reference(run.path)
            if reference is not None:
                return reference
        except UserError:
            continue
    return None


def _row(run: RunRecord, name: str, counted: bool) -> RunRow:
    best_step = max(run.curve, key=lambda point: point[1])[0] if run.curve else None
    return RunRow(run, name, counted, best_step, throughput(run), _videos(run.path / VIDEOS))


def _videos(folder: Path) -> list[Path]:
    """The videos of a run; a link, which may lead anywhere, is none."""
    if special_kind(folder) != "a folder":
        return []
    found = sorted(path for path in folder.glob("*") if path.suffix in (".mp4", ".webm", ".gif"))
    return [path for path in found if special_kind(path) is None]


def _comparisons(groups: list[Group]) -> list[Comparison]:
    """Every pair of groups that both have enough seeds for an interval, the better one first."""
    pairs = []
    for better, other in combinations([group for group in groups if group.seeds >= INTERVAL_SEEDS], 2):
        assert better.last is not None and other.last is not None
        sides = [np.array(better.last.values)], [np.array(other.last.values)]
        low, high = stratified_interval(statistics.probability_of_improvement, *sides)
        pairs.append(Comparison(better, other, float(statistics.probability_of_improvement(*sides)), low, high))
    return pairs


def _same_settings(groups: Sequence[Group]) -> list[Settings]:
    """The runs of the groups by config."""
    found: dict[str, Settings] = {}
    for group in groups:
        for row in group.rows:
            values = {key: value for key, value in leaves(row.run.config).items() if key not in NOT_A_SETTING}
            key = json.dumps(values, sort_keys=True, default=str)
            found.setdefault(key, Settings(group.label, [], values)).runs.append(row.run)
    return list(found.values())


def _differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of at least two of the configs (an algorithm's own keys are no difference) with more than one value."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({show_setting(config[key]) for config in configs if key in config}) > 1]


def _facts(runs: Sequence[RunRecord]) -> list[Fact]:
    """Versions, hardware and code of the runs, in the order of the first run that has each."""
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for run in runs:
        for name, value in _facts_of(run):
            found.setdefault(name, {}).setdefault(value, []).append(run)
    return [Fact(name, values) for name, values in found.items()]


def _facts_of(run: RunRecord) -> list[tuple[str, str]]:
    versions, system, git = (mapping(run.metadata.get(key)) for key in ("versions", "system", "git"))
    commit = str(git.get("commit") or "unknown")[:12] + (" with changes" if git.get("dirty") else "")
    return [
        *((name, show_setting(value)) for name, value in versions.items()),
        *((_SYSTEM_NAMES.get(name, name), show_setting(value)) for name, value in system.items()),
        ("git commit", commit),
    ]


def _names(runs: Sequence[RunRecord]) -> dict[str, str]:
    plain = [run.path.name for run in runs]
    return {str(run.path): run.path.name if plain.count(run.path.name) == 1 else str(run.path) for run in runs}
