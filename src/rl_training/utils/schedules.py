"""Hyperparameters that change over the course of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from rl_training.utils.coerce import check_fields
from rl_training.utils.fields import Range


@dataclass(frozen=True)
class Schedule:
    """A value that moves linearly from `start` to `end` over the first `fraction` of training, then stays.

    In YAML: `learning_rate: {start: 2.5e-4, end: 0.0}`.
    """

    start: float
    """Value at the first step of training."""
    end: float
    """Value once `fraction` of training is done, kept until the end."""
    fraction: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of training over which the value moves."""

    ranged_fields: ClassVar[tuple[str, ...]] = ("start", "end")
    """A `Range` on a field typed `float | Schedule` bounds these."""

    def __post_init__(self) -> None:
        check_fields(self)


def schedule_value(value: float | Schedule, progress: float) -> float:
    """The value at `progress`, the share of training done: 0 at the first step, 1 at the last.

    start + (end - start) * min(progress / fraction, 1); progress outside [0, 1] counts as the nearer end.
    """
    if not isinstance(value, Schedule):
        return value
    done = max(progress, 0.0) / value.fraction
    if done >= 1.0:
        return value.end  # exact, where the formula would round
    return value.start + (value.end - value.start) * done
