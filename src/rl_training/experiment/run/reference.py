"""What a run is measured against: the training seeds of a shipped result with the same config, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from rl_training.experiment.run.run_dir import write_atomically
from rl_training.utils.disk import writing
from rl_training.utils.errors import UserError
from rl_training.utils.numbers import finite
from rl_training.utils.safe_files import read_json

REFERENCE = "reference.json"
"""Name of the file in a run directory; a run without a reference has none."""

NO_REFERENCE = "no reference: no shipped result has this config"

Curve = tuple[tuple[int, float], ...]
"""(environment step, mean return) of each evaluation of one seed."""


@dataclass(frozen=True)
class Band:
    """What the reference seeds had at one step."""

    step: int
    low: float
    """The lowest seed."""
    high: float
    """The highest seed."""
    mean: float
    seeds: int

    def place(self, score: float, ci_low: float, ci_high: float) -> str:
        """Where a score lies: `within`, `below` or `above` the seeds' range.

        `slightly below` and `slightly above` mean that the score's interval still reaches into the range. Data files hold two
        decimals, so less than that is no difference.
        """
        if score < self.low - 0.005:
            return "slightly below" if ci_high >= self.low - 0.005 else "below"
        if score > self.high + 0.005:
            return "slightly above" if ci_low <= self.high + 0.005 else "above"
        return "within"


@dataclass(frozen=True)
class Reference:
    """The seeds of one shipped result."""

    preset: str
    last_mean: float
    """Mean over the seeds of the last checkpoint's score."""
    last_interval: tuple[float, float]
    """Its 95 % interval."""
    last_scores: tuple[float, ...]
    """The last checkpoint's score of each seed."""
    curves: tuple[Curve, ...]
    """The evaluations of each seed, in the order of their steps."""

    @property
    def seeds(self) -> int:
        return len(self.last_scores)

    @property
    def first_step(self) -> int:
        """The step of the first evaluation of any seed."""
        return min(curve[0][0] for curve in self.curves)

    @cached_property
    def mean_curve(self) -> Curve:
        """The mean over the seeds at each step at which one of them was evaluated."""
        steps = sorted({step for curve in self.curves for step, _ in curve})
        return tuple((band.step, band.mean) for step in steps if (band := self.at(step)) is not None)

    def at(self, step: int) -> Band | None:
        """The seeds at a step, interpolated between their evaluations; None before the first one."""
        values = [value for curve in self.curves if (value := value_at(curve, step)) is not None]
        return Band(step, min(values), max(values), fmean(values), len(values)) if values else None

    @property
    def at_end(self) -> Band:
        """The seeds' last checkpoints, measured over more episodes than the curves."""
        step = max(curve[-1][0] for curve in self.curves)
        return Band(step, min(self.last_scores), max(self.last_scores), self.last_mean, self.seeds)

    def to_dict(self) -> dict[str, Any]:
        """JSON values for `reference.json`."""
        return {
            "preset": self.preset,
            "last_mean": self.last_mean,
            "last_interval_95": list(self.last_interval),
            "last_scores": list(self.last_scores),
            "curves": [[list(point) for point in curve] for curve in self.curves],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Reference:
        low, high = values["last_interval_95"]
        reference = cls(
            preset=str(values["preset"]),
            last_mean=float(values["last_mean"]),
            last_interval=(float(low), float(high)),
            last_scores=tuple(float(score) for score in values["last_scores"]),
            curves=tuple(tuple((int(step), float(mean)) for step, mean in curve) for curve in values["curves"]),
        )
        if not reference.last_scores or not reference.curves or not all(reference.curves):
            raise ValueError("it has no scores")
        scores = [reference.last_mean, *reference.last_interval, *reference.last_scores]
        if None in map(finite, [*scores, *(mean for curve in reference.curves for _, mean in curve)]):
            raise ValueError("it has a score that is not finite")
        if any(after[0] <= before[0] for curve in reference.curves for before, after in pairwise(curve)):
            raise ValueError("the steps of a curve do not rise")
        return reference


def value_at(curve: Sequence[tuple[float, float]], step: float) -> float | None:
    """A curve's value at a step: on the line between its neighbours, the last value after the end, None before the start."""
    if not curve or step < curve[0][0]:
        return None
    for (left, before), (right, after) in pairwise(curve):
        if step < right:
            return before + (after - before) * (step - left) / (right - left)
    return curve[-1][1]


def save_reference(run_dir: Path, reference: Reference | None) -> None:
    """Writes a run's reference; None takes away the one of a run that was changed since."""
    path = run_dir / REFERENCE
    if reference is None:
        with writing(path):
            path.unlink(missing_ok=True)
    else:
        write_atomically(path, json.dumps(reference.to_dict()) + "\n")


def read_reference(run_dir: Path) -> Reference | None:
    """A run's reference, None if it has none."""
    path = run_dir / REFERENCE
    try:
        return Reference.from_dict(read_json(path, inside=run_dir))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} cannot be read ({why}); the run does without it if you delete it") from error
