"""Statistics over few seeds: robust aggregates with bootstrap intervals, after Agarwal et al. (2021).

"Deep Reinforcement Learning at the Edge of the Statistical Precipice", https://arxiv.org/abs/2108.13264. The definitions are
those of the authors' library rliable, except where tasks may have different numbers of seeds, which it does not allow.

Scores are one array per task. The last axis holds the seeds; axes in front of it are separate data sets, so that each
function maps shapes (..., seeds of the task) to (...), and one call computes a statistic on all bootstrap resamples at once.
"""

from __future__ import annotations

import numpy as np

from rl_training.utils.bootstrap import Array, Scores

# Student's t at 97.5 %, for 1, 2, ... degrees of freedom; beyond the table its last value is used, which is a little too large.
_STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def mean(scores: Scores) -> Array:
    """Mean over tasks of each task's mean: every task counts the same, whatever its number of seeds."""
    return _task_means(scores).mean(axis=-1)


def median(scores: Scores) -> Array:
    """Median over tasks of each task's mean. For a single task that is its mean."""
    return np.median(_task_means(scores), axis=-1)


def interquartile_mean(scores: Scores) -> Array:
    """Mean of the middle half of all runs of all tasks together.

    The cut is in whole runs, as in `scipy.stats.trim_mean(scores, 0.25, axis=None)`: of n runs the int(n / 4) lowest and as many
    highest are left out, and the others count fully. So 5 runs lose one at each end, and 3 runs lose none.
    A task with more seeds has more of the runs.
    """
    runs = np.sort(np.concatenate(list(scores), axis=-1), axis=-1)
    cut = runs.shape[-1] // 4
    return runs[..., cut : runs.shape[-1] - cut].mean(axis=-1)


def optimality_gap(scores: Scores, target: float = 1.0) -> Array:
    """How far runs fall short of the target on average, those beyond it counted as 0: less is better."""
    return target - _task_means([np.minimum(task, target) for task in scores]).mean(axis=-1)


def probability_of_improvement(scores: Scores, others: Scores) -> Array:
    """Mean over tasks of P(a run of `scores` beats one of `others`), equal runs counted half (the Mann-Whitney statistic).

    Above 0.5, `scores` is the better one. Both must have the same tasks in the same order.
    """
    return np.mean([_wins(task, other) for task, other in zip(scores, others, strict=True)], axis=0)


def mean_difference(scores: Scores, others: Scores) -> Array:
    """`mean(scores) - mean(others)`, over the same tasks."""
    return mean(scores) - mean(others)


def performance_profile(scores: Scores, thresholds: Array) -> Array:
    """Share of runs with a score above each threshold, averaged over tasks: shape (..., thresholds).

    This is the run-score distribution of the paper, Equation 2, which has no bias for few seeds, unlike that of task means.
    """
    return np.mean([(task[..., None] > thresholds).mean(axis=-2) for task in scores], axis=0)


def student_interval(scores: Array, others: Array) -> tuple[float, float] | None:
    """95 % interval of the difference of two means if one side has too few seeds for a bootstrap, even a single one.

    Student's t with the pooled variance, so the spread of the side with more seeds stands for both; with one seed on a side this
    is the test of a single case against a sample (Crawford and Howell, 1998). None for one seed on each side: no spread is known.
    """
    deviation = pooled_deviation(scores, others)
    if deviation is None:
        return None
    quantile = _STUDENT_T[min(len(scores) + len(others) - 2, len(_STUDENT_T)) - 1]
    width = quantile * deviation * (1 / len(scores) + 1 / len(others)) ** 0.5
    difference = float(scores.mean() - others.mean())
    return difference - width, difference + width


def pooled_deviation(scores: Array, others: Array) -> float | None:
    """Standard deviation of runs within their group, estimated from both groups; None for one run in each."""
    freedom = len(scores) + len(others) - 2
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (scores, others))
    return (squares / freedom) ** 0.5 if freedom else None


def _task_means(scores: Scores) -> Array:
    return np.stack([task.mean(axis=-1) for task in scores], axis=-1)


def _wins(task: Array, other: Array) -> Array:
    """Looped over one side's runs: all pairs of all resamples at once would need too much memory."""
    total = np.zeros(task.shape[:-1])
    for index in range(other.shape[-1]):
        opponent = other[..., index : index + 1]
        total += (task > opponent).mean(axis=-1) + 0.5 * (task == opponent).mean(axis=-1)
    return total / other.shape[-1]
