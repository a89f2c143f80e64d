"""Exploration noise that is added to deterministic actions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class ActionNoise:
    """x ← (1 − θ) x + σ ε with ε ~ N(0, 1), per environment and action dimension, starting anew in every episode.

    θ = 1 is white Gaussian noise; less is an Ornstein-Uhlenbeck process in steps of 1 (arXiv 1509.02971). It starts at 0, as in
    that paper, or, `stationary`, with the spread that it keeps from then on, σ / √(1 − (1 − θ)²).
    """

    def __init__(self, theta: float, *, stationary: bool = False) -> None:
        self.theta = theta
        self._first = 1.0 / math.sqrt(1.0 - (1.0 - theta) ** 2) if stationary else 1.0
        self._state: Tensor | None = None

    def sample(self, shape: tuple[int, int], scale: float, generator: torch.Generator) -> Tensor:
        """The next noise for a batch of actions of this shape, (N, d)."""
        noise = torch.normal(0.0, scale, shape, generator=generator, device=generator.device)
        if self.theta < 1.0:
            if self._state is None or self._state.shape != shape:
                self._state = torch.zeros_like(noise)
            before = self._state.to(noise.device)  # a loaded one comes from the CPU
            if self._first != 1.0:
                # Only at an episode's start is there nothing to go on from.
                noise *= torch.where((before == 0.0).all(dim=-1, keepdim=True), self._first, 1.0)
            noise += (1.0 - self.theta) * before
            self._state = noise.clone()
        return noise

    def reset(self, ended: Tensor) -> None:
        """Forgets the noise of the environments whose episodes ended, (N,) bool."""
        if self._state is None:
            return
        if len(self._state) != len(ended):
            self._state = None  # loaded, from another number of environments
        elif bool(ended.any()):
            self._state[ended.to(self._state.device)] = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"state": None if self._state is None else self._state.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = None if state["state"] is None else state["state"].clone()
