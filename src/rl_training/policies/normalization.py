"""Running normalisation of observations and rewards, as modules: saved, loaded and moved with the policy.

Statistics change in `update` only, never in `forward`: an evaluated or exported policy is frozen by itself.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor

EPSILON = 1e-8
"""Added to a variance before its root is taken."""

CLIP = 10.0
"""Normalised values are cut to [-CLIP, CLIP]."""


class RunningMoments(nn.Module):
    """Mean and (population) variance of everything seen so far, elementwise over `shape`, in float64.

    Before the first update the mean is 0 and the variance 1.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    center: Tensor
    """The mean in float32, (*shape)."""
    scale: Tensor
    """1 / sqrt(var + EPSILON) in float32, (*shape)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.register_buffer("mean", torch.zeros(self.shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(self.shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        # Derived from mean and var whenever these change, so that the forward pass of every step stays cheap.
        self.register_buffer("center", torch.zeros(self.shape), persistent=False)
        self.register_buffer("scale", torch.ones(self.shape), persistent=False)
        self._refresh()

    def forward(self, x: Tensor) -> Tensor:
        """Return clip((x - mean) / sqrt(var + EPSILON)) in float32, (B, *shape)."""
        return ((x.to(torch.float32) - self.center) * self.scale).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Take in a batch (B, *shape). An empty batch changes nothing.

        Chan's parallel formula: with delta the difference of the means and n = n_a + n_b,
        mean = mean_a + delta * n_b / n and var = (n_a var_a + n_b var_b + delta^2 n_a n_b / n) / n.
        """
        if tuple(batch.shape[1:]) != self.shape:
            raise ValueError(f"expected values of shape {self.shape} after the batch, got {tuple(batch.shape)}")
        added = batch.shape[0]
        if added == 0:
            return
        values = batch.to(torch.float64)
        batch_var, batch_mean = torch.var_mean(values, dim=0, correction=0)
        total = self.count + added
        delta = batch_mean - self.mean
        squares = self.var * self.count + batch_var * added + delta.square() * (self.count * added / total)
        self.mean.add_(delta * (added / total))
        self.var.copy_(squares / total)
        self.count.copy_(total)
        self._refresh()

    @torch.no_grad()
    def _refresh(self) -> None:
        self.center.copy_(self.mean)
        self.scale.copy_((self.var + EPSILON).rsqrt())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._refresh()


class ObservationNormalizer(nn.Module):
    """Brings Box observations to mean 0 and variance 1, also inside a Dict; uint8 and other spaces pass."""

    def __init__(self, observation_space: spaces.Space) -> None:
        super().__init__()
        entries = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        boxes = {k: s for k, s in entries.items() if isinstance(s, spaces.Box) and s.dtype != np.uint8}
        self._keys = tuple(boxes)
        # A list: keys of a Dict space may hold dots or be named like a method, which ModuleDict refuses.
        self.moments = nn.ModuleList(RunningMoments(box.shape) for box in boxes.values())

    def forward(self, obs: ObsTensor) -> ObsTensor:
        """Return the observations with each normalised entry as clip((x - mean) / std) in float32."""
        if isinstance(obs, Tensor):
            return self.moments[0](obs) if len(self.moments) else obs
        return obs | {key: moments(obs[key]) for key, moments in zip(self._keys, self.moments)}

    def update(self, obs: ObsTensor) -> None:
        """Take in a batch of raw observations."""
        for key, moments in zip(self._keys, self.moments):
            assert isinstance(moments, RunningMoments)
            moments.update(obs if isinstance(obs, Tensor) else obs[key])


class RewardScaler(nn.Module):
    """Divides rewards by the standard deviation of the discounted returns; a reward of 0 stays 0."""

    def __init__(self) -> None:
        super().__init__()
        self.moments = RunningMoments(())

    def forward(self, rewards: Tensor) -> Tensor:
        """Return clip(rewards / std) in float32, in the shape given."""
        return (rewards.to(torch.float32) * self.moments.scale).clamp(-CLIP, CLIP)

    def update(self, returns: Tensor) -> None:
        """Take in the running discounted return of each environment, (B,)."""
        self.moments.update(returns)
