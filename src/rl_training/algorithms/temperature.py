"""The entropy temperature α of SAC: fixed, or learned so that the policy keeps a given entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Metrics
from rl_training.execution.optimizers import Adam, FlatOptimizer
from rl_training.utils.schedules import Schedule


def temperature_loss(log_alpha: Tensor, log_probs: Tensor, target_entropy: float | Tensor) -> Tensor:
    """−log α · mean(log π + H̄), with log π detached (arXiv 1812.05905, eq. 18, on log α as in the reference code). H̄ is a number,
    or one for each state (B,).

    Its gradient by log α is the surplus of entropy, H − H̄: α falls while the policy is more random than asked.
    """
    return -log_alpha * (log_probs.detach() + target_entropy).mean()


class Temperature:
    """α and, if it is learned, its optimiser."""

    def __init__(
        self,
        initial: float,
        target_entropy: float | None,
        learning_rate: float | Schedule,
        eps: float,
        device: torch.device,
    ):
        """`target_entropy` None keeps α at its initial value."""
        learned = target_entropy is not None
        start = math.log(initial) if initial > 0 else -math.inf
        self.log_alpha = nn.Parameter(torch.tensor(start, device=device), requires_grad=learned)
        self.target_entropy = target_entropy
        self.optimizer = Adam(self.log_alpha, learning_rate, eps=eps) if learned else None

    @property
    def alpha(self) -> Tensor:
        """() without gradient."""
        return self.log_alpha.detach().exp()

    def update(self, log_probs: Tensor, target_entropies: Tensor | None = None) -> Metrics:
        """One step towards the target entropy, given log-probabilities (B,) of the policy's own actions; `target_entropies` (B,)
        are those of the states, where they have their own."""
        metrics = {"alpha": self.alpha, "entropy": -log_probs.detach().mean()}
        if self.optimizer is not None and self.target_entropy is not None:
            target = self.target_entropy if target_entropies is None else target_entropies
            loss = temperature_loss(self.log_alpha, log_probs, target)
            self.optimizer.step(self.optimizer.gradient(loss), {"alpha_loss": loss})
        return metrics

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {} if self.optimizer is None else {"temperature": self.optimizer}

    def state_dict(self) -> dict[str, Any]:
        return {"log_alpha": self.log_alpha.detach().clone()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.log_alpha.copy_(state["log_alpha"])
