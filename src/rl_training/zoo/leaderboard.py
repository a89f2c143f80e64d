"""Methods ranked per task by the score of their last checkpoints, and across tasks where scores can be put on one scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.utils.bootstrap import Scores, stratified_interval
from rl_training.zoo.comparison import MIN_BOOTSTRAP, BaselineReport, difference_of
from rl_training.zoo.score_groups import ScoreGroup
from rl_training.zoo.statistics import (
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    performance_profile,
)


@dataclass(frozen=True)
class ReferenceScore:
    """What a score of an environment is measured against."""

    random: float
    """Mean return of uniformly random actions."""
    target: float
    """The environment's `reward_threshold` in Gymnasium; for Pendulum-v1, which has none, what our presets are held to."""

    def normalise(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """0 for a random policy, 1 at the target; neither end is a limit."""
        return (scores - self.random) / (self.target - self.random)


# Random scores: `action_space.sample()` seeded with 0, first reset seeded with 0, Gymnasium 1.4.0; 1000 episodes for CartPole,
# LunarLander and Hopper, 500 for Pendulum and LunarLanderContinuous, 200 for Acrobot, MountainCar and Ant, 50 for the others.
# Environments without a target are left out.
REFERENCE_SCORES = {
    "Acrobot-v1": ReferenceScore(-499.9, -100.0),
    "Ant-v5": ReferenceScore(-59.2, 6000.0),
    "CartPole-v1": ReferenceScore(22.6, 475.0),
    "HalfCheetah-v5": ReferenceScore(-289.3, 4800.0),
    "Hopper-v5": ReferenceScore(17.9, 3800.0),
    "LunarLander-v3": ReferenceScore(-184.7, 200.0),
    "LunarLanderContinuous-v3": ReferenceScore(-201.3, 200.0),
    "MountainCar-v0": ReferenceScore(-200.0, -110.0),
    "MountainCarContinuous-v0": ReferenceScore(-33.2, 90.0),
    "Pendulum-v1": ReferenceScore(-1223.9, -200.0),
}
"""Two fixed points per environment, between which scores can be put on one scale."""
PROFILE_THRESHOLDS = np.linspace(0.0, 1.2, 25)
"""Normalised scores at which a performance profile is given."""


@dataclass(frozen=True)
class Entry:
    """One method on one task."""

    group: ScoreGroup
    rank: int
    """Place among the methods of the task; those that cannot be told from the first of their rank share it."""
    tied: bool
    """Whether another method has the same rank."""
    mean: float
    interval: tuple[float, float] | None
    """95 % bootstrap interval of the mean over seeds; None for a single seed."""
    iqm: float
    median: float
    best: float
    """Mean of the seeds' best scores: picked among many evaluations, so it flatters."""


@dataclass(frozen=True)
class TaskBoard:
    """All methods on one task, best first."""

    task: str
    entries: list[Entry]


@dataclass(frozen=True)
class AggregateEntry:
    """One algorithm over several tasks. Scores are normalised: 0 a random policy, 1 the target."""

    algo: str
    rank: int
    tied: bool
    seeds: int
    """Fewest seeds on a task."""
    iqm: float
    iqm_interval: tuple[float, float] | None
    """None if a task has a single seed."""
    median: float
    mean: float
    optimality_gap: float
    profile: NDArray[np.float64]
    """Share of runs above each of `PROFILE_THRESHOLDS`."""
    profile_band: tuple[NDArray[np.float64], NDArray[np.float64]] | None


@dataclass(frozen=True)
class AggregateBoard:
    """Algorithms over the same tasks, ranked by interquartile mean."""

    tasks: tuple[str, ...]
    entries: list[AggregateEntry]


@dataclass(frozen=True)
class Leaderboard:
    """Everything that one call of `axiomrl leaderboard` has to say."""

    source: str
    """What was read, as the user named it."""
    min_seeds: int
    boards: list[TaskBoard]
    aggregates: list[AggregateBoard]
    without_score: list[ScoreGroup]
    """Groups none of whose runs has a score."""
    notes: list[str]
    """What was left out while reading, and why."""
    baseline_source: str | None = None
    baseline: BaselineReport | None = None


def task_boards(groups: Sequence[ScoreGroup]) -> list[TaskBoard]:
    """One board per task, sorted by name. Groups without a score are left out."""
    by_task: dict[str, list[ScoreGroup]] = {}
    for group in groups:
        if group.scored:
            by_task.setdefault(group.task, []).append(group)
    return [TaskBoard(task, _entries(by_task[task])) for task in sorted(by_task)]


def aggregate_boards(groups: Sequence[ScoreGroup]) -> list[AggregateBoard]:
    """Algorithms over each set of two or more tasks that an algorithm was run on; only like is compared with like.

    A task counts where `REFERENCE_SCORES` has its two fixed points. An algorithm with several configs on a task does not count
    there: taking its best one would be a choice made after seeing the scores. A set that one algorithm covers is no comparison.
    """
    configs = Counter((group.algo, group.task) for group in groups if group.scored)
    scores: dict[str, dict[str, NDArray[np.float64]]] = {}
    for group in groups:
        reference = REFERENCE_SCORES.get(group.task)
        if reference is not None and configs[group.algo, group.task] == 1 and group.scored:
            scores.setdefault(group.algo, {})[group.task] = reference.normalise(group.last)
    boards: dict[tuple[str, ...], AggregateBoard] = {}
    task_sets = {tuple(sorted(tasks)) for tasks in scores.values() if len(tasks) > 1}
    for tasks in sorted(task_sets, key=lambda tasks: (-len(tasks), tasks)):
        covering = tuple(sorted(algo for algo in scores if set(tasks) <= set(scores[algo])))
        if len(covering) > 1 and covering not in boards:  # the same algorithms over fewer tasks say nothing more
            by_algo = {algo: [scores[algo][task] for task in tasks] for algo in covering}
            boards[covering] = AggregateBoard(tasks, _aggregate(by_algo))
    return list(boards.values())


def _entries(groups: list[ScoreGroup]) -> list[Entry]:
    groups = sorted(groups, key=lambda group: (-float(group.last.mean()), group.name))
    ranks = _ranks(groups, _clearly_better)
    return [
        Entry(
            group,
            rank=rank,
            tied=ranks.count(rank) > 1,
            mean=float(group.last.mean()),
            interval=stratified_interval(mean, [group.last]) if len(group.last) > 1 else None,
            iqm=float(interquartile_mean([group.last])),
            median=float(np.median(group.last)),
            best=float(group.best.mean()),
        )
        for group, rank in zip(groups, ranks)
    ]


def _clearly_better(group: ScoreGroup, other: ScoreGroup) -> bool:
    difference = difference_of(group, other)
    # One seed against one: their episodes tell the two runs apart, not the two methods.
    return difference.basis != "episodes" and difference.verdict() == "better"


def _ranks(items: Sequence[Any], beats: Callable[[Any, Any], bool]) -> list[int]:
    """Places of sorted items: one shares the rank of the item that opened it, unless that one clearly beats it."""
    ranks: list[int] = []
    first = 0
    for index, item in enumerate(items):
        if beats(items[first], item):
            first = index
        ranks.append(first + 1)
    return ranks


def _aggregate(scores: dict[str, list[NDArray[np.float64]]]) -> list[AggregateEntry]:
    algos = sorted(scores, key=lambda algo: (-float(interquartile_mean(scores[algo])), algo))
    ranks = _ranks(algos, lambda one, other: _clearly_higher_iqm(scores[one], scores[other]))
    entries = []
    for algo, rank in zip(algos, ranks):
        tasks = scores[algo]
        fewest = min(len(task) for task in tasks)
        spread = fewest > 1
        entries.append(
            AggregateEntry(
                algo,
                rank=rank,
                tied=ranks.count(rank) > 1,
                seeds=fewest,
                iqm=float(interquartile_mean(tasks)),
                iqm_interval=stratified_interval(interquartile_mean, tasks) if spread else None,
                median=float(median(tasks)),
                mean=float(mean(tasks)),
                optimality_gap=float(optimality_gap(tasks)),
                profile=_profile(tasks),
                profile_band=stratified_interval(_profile, tasks) if spread else None,
            )
        )
    return entries


def _clearly_higher_iqm(scores: Scores, others: Scores) -> bool:
    if min(len(task) for task in [*scores, *others]) < MIN_BOOTSTRAP:
        return False
    low, _ = stratified_interval(lambda a, b: interquartile_mean(a) - interquartile_mean(b), scores, others)
    return float(low) > 0.0


def _profile(scores: Scores) -> NDArray[np.float64]:
    return performance_profile(scores, PROFILE_THRESHOLDS)
