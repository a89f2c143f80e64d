"""Optimisers that torch does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class RMSpropTF(torch.optim.Optimizer):
    """RMSprop as TensorFlow computes it, which A2C's published results rest on:

        v ← α v + (1 − α) g²,   θ ← θ − lr · g / √(v + ε),   v starts at 1

    torch adds ε outside the root and starts at 0, which makes the first steps much larger. Skips the step where `found_inf` is set.
    """

    found_inf: Tensor | None = None

    def __init__(self, params: Iterable[Tensor], lr: float, alpha: float = 0.99, eps: float = 1e-5):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["square_avg"] = torch.ones_like(parameter)
        gradient, square_avg = parameter.grad, state["square_avg"]
        assert gradient is not None
        new_average = torch.addcmul(group["alpha"] * square_avg, gradient, gradient, value=1 - group["alpha"])
        change = group["lr"] * gradient / (new_average + group["eps"]).sqrt()
        if self.found_inf is not None:
            skip = self.found_inf.to(torch.bool)
            new_average, change = torch.where(skip, square_avg, new_average), torch.where(skip, 0.0, change)
        square_avg.copy_(new_average)
        parameter.sub_(change)
