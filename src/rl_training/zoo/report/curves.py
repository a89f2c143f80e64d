"""Curves: one quantity of a run over its steps, and the mean over seeds with its interval on a common grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.utils.bootstrap import stratified_interval
from rl_training.zoo.values import number

Floats = NDArray[np.float64]
MAX_POINTS = 160
"""More points than a chart has pixels to tell apart only make the file large."""
INTERVAL_SEEDS = 3
"""Fewer seeds than this have no interval: a bootstrap of two values only repeats them."""
RESAMPLES = 2_000
"""Enough for a line a pixel or two wide."""


@dataclass(frozen=True)
class Series:
    """One quantity over environment steps."""

    steps: Floats
    """(K,) rising."""
    values: Floats
    """(K,) finite."""

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, start: float, end: float) -> Series:
        """The points between two shares of the series' own points, at least one: `part(0.5, 1)` is the second half."""
        first = min(int(len(self) * start), max(len(self) - 1, 0))
        last = max(int(np.ceil(len(self) * end)), first + 1)
        return Series(self.steps[first:last], self.values[first:last])


def series(records: Iterable[Mapping[str, Any]], key: str) -> Series:
    """The finite values of a key with their steps; lines without one are left out, a step that does not rise too."""
    steps, values = list[float](), list[float]()
    for record in records:
        step, value = number(record.get("step")), number(record.get(key))
        if step is not None and value is not None and (not steps or step > steps[-1]):
            steps.append(step)
            values.append(value)
    return Series(np.array(steps, dtype=np.float64), np.array(values, dtype=np.float64))


@dataclass(frozen=True)
class Band:
    """Mean over seeds at each step, with its 95 % bootstrap interval where there are enough seeds."""

    steps: Floats
    mean: Floats
    low: Floats | None
    high: Floats | None


def thin(curve: Series, limit: int = MAX_POINTS) -> Series:
    """The curve with at most `limit` points, each the mean of its neighbours; the last point stays as it is."""
    if len(curve) <= limit:
        return curve
    parts = np.array_split(np.arange(len(curve) - 1), limit - 1)
    steps = [curve.steps[part].mean() for part in parts]
    values = [curve.values[part].mean() for part in parts]
    return Series(np.array([*steps, curve.steps[-1]]), np.array([*values, curve.values[-1]]))


def band(curves: Sequence[Series]) -> Band | None:
    """The seeds' mean on a common grid, from where to where at least half of them have points; None without any point."""
    curves = [thin(curve) for curve in curves if len(curve)]
    if not curves:
        return None
    grid = np.unique(np.concatenate([curve.steps for curve in curves]))
    if len(grid) > MAX_POINTS:
        grid = grid[np.unique(np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(int))]
    values = np.stack([np.interp(grid, c.steps, c.values, left=np.nan, right=np.nan) for c in curves])
    known = np.isfinite(values)
    kept = known.sum(axis=0) >= (len(curves) + 1) // 2
    grid, values, known = grid[kept], values[:, kept], known[:, kept]
    if not len(grid):
        return None
    filled = np.where(known, values, 0.0)
    mean = filled.sum(axis=0) / known.sum(axis=0)
    low = high = None
    if len(curves) >= INTERVAL_SEEDS:
        low, high = _interval(filled, known, mean)
    return Band(grid, mean, low, high)


def _interval(filled: Floats, known: np.ndarray, mean: Floats) -> tuple[Floats, Floats]:
    """Whole seeds are drawn, so that a resample is a set of curves; where it has no point, it counts as the mean."""
    count = len(filled)

    def means(groups: Sequence[Floats]) -> Floats:
        drawn = groups[0].astype(int)
        weights = np.stack([(drawn == seed).sum(axis=-1) for seed in range(count)], axis=-1).astype(np.float64)
        total = weights @ known
        return np.where(total > 0, weights @ filled / np.maximum(total, 1), mean)

    return stratified_interval(means, [np.arange(count, dtype=np.float64)], resamples=RESAMPLES)
