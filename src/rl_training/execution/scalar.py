"""Numbers that change while training goes on, kept where a recorded step finds them."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rl_training.utils.schedules import Schedule, schedule_value


class Scalar:
    """A number or schedule, and its present value as a tensor (): a recorded step would repeat a Python number for ever."""

    unwatched: ClassVar[frozenset[str]] = frozenset({"number"})

    def __init__(self, schedule: float | Schedule, device: torch.device):
        self.schedule = schedule
        self.number = schedule_value(schedule, 0.0)
        self.tensor: Tensor = torch.tensor(self.number, device=device)

    def advance(self, progress: float) -> None:
        """Takes the schedule's value at this point of training."""
        self.set(schedule_value(self.schedule, progress))

    def set(self, number: float) -> None:
        if number != self.number:  # else nothing to launch
            self.number = number
            self.tensor.fill_(number)
