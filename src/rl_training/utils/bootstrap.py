"""95 % percentile bootstrap intervals. A fixed generator makes them repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Scores = Sequence[Array]
"""One array per task, with the seeds on the last axis."""

RESAMPLES = 10_000
"""The ends of an interval then move by about 1 % of its length from one generator to another."""
_TAILS = (0.025, 0.975)


def bootstrap_interval(values: Array, resamples: int = 2000) -> tuple[float, float]:
    """Interval (low, high) of the mean of one sample."""
    return stratified_interval(lambda sample: sample[0].mean(axis=-1), [values], resamples=resamples)


def stratified_interval(
    statistic: Callable[..., Any], *groups: Scores, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Any, Any]:
    """Interval (low, high) of `statistic(*groups)`, which maps shapes (..., seeds of the task) to (...).

    The seeds are drawn with replacement within each task, the tasks stay: the interval is about other seeds on these tasks, not
    about other tasks. Groups are resampled independently. A statistic of shape (thresholds,) gives a band, valid at each
    threshold on its own.
    """
    generator = np.random.default_rng(seed)
    resampled = [[_resample(task, resamples, generator) for task in scores] for scores in groups]
    low, high = np.quantile(statistic(*resampled), _TAILS, axis=0)
    return (low, high) if low.ndim else (float(low), float(high))


def _resample(task: Array, resamples: int, generator: np.random.Generator) -> Array:
    """Shape (resamples, seeds): each row draws the task's runs anew."""
    return task[generator.integers(len(task), size=(resamples, len(task)))]
