"""Batch renormalisation (Ioffe 2017, arXiv 1702.03275), for single networks and for ensembles.

Shapes: N members, B inputs, F features.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

MAX_R, MAX_D = 3.0, 5.0
"""Bounds of the correction: r in [1/3, 3], d in [−5, 5]."""
EPSILON = 1e-3
"""Added to a variance before its root is taken."""


@dataclass(frozen=True)
class RenormConfig:
    """How the running statistics come about and when they begin to matter."""

    momentum: float
    """Share of the running statistics that each batch leaves in place."""
    warmup: int
    """Batches that are normalised by their own statistics alone, as in batch normalisation."""


class BatchRenorm(nn.Module):
    """Normalises (B, F), or (N, B, F) with statistics, scales and shifts for each member.

    x̂ = r (x − μ_B) / σ_B + d with r = clip(σ_B / σ) and d = clip((μ_B − μ) / σ), both without gradient: where nothing is clipped,
    that is (x − μ) / σ with the gradient of batch normalisation. r = 1 and d = 0 while it warms up.

    Statistics of the batch are used, and the running μ and σ² moved, inside `batch_statistics` only. Everywhere else, whatever
    mode the module is in, x̂ = (x − μ) / σ: a policy that acts or is evaluated neither depends on its batch nor changes.
    """

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor

    def __init__(self, features: int, config: RenormConfig, members: int | None = None) -> None:
        """`members` None is for a single network."""
        super().__init__()
        shape = (1, features) if members is None else (members, 1, features)
        self.config = config
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape))
        self.register_buffer("running_mean", torch.zeros(shape))
        self.register_buffer("running_var", torch.ones(shape))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.learning = False
        """Set by `batch_statistics`."""

    def forward(self, x: Tensor, members: Tensor | slice = slice(None)) -> Tensor:
        """(B, F) for all or (M, B, F) for each of the members asked for → (M, B, F); for a single network (B, F) → (B, F)."""
        x = x.float()  # statistics need all digits, also of what was computed in bfloat16
        if not self.learning:
            mean, scale = self.running_mean[members], (self.running_var[members] + EPSILON).rsqrt()
            return torch.addcmul(self.bias[members], x - mean, scale * self.weight[members])
        mean = x.mean(dim=-2, keepdim=True)
        centered = x - mean
        var = centered.square().mean(
            dim=-2, keepdim=True
        )  # several times faster than torch.var_mean over this dimension
        std = (var + EPSILON).sqrt()
        r, d = self._correction(mean.detach(), std.detach(), members)
        self._follow(mean.detach(), var.detach(), members)
        weight = self.weight[members]
        return torch.addcmul(self.bias[members] + d * weight, centered, weight * r / std)

    def _correction(self, mean: Tensor, std: Tensor, members: Tensor | slice) -> tuple[Tensor, Tensor]:
        """r and d: the way from the batch's statistics to the running ones."""
        running_std = (self.running_var[members] + EPSILON).sqrt()
        r = (std / running_std).clamp(1.0 / MAX_R, MAX_R)
        d = ((mean - self.running_mean[members]) / running_std).clamp(-MAX_D, MAX_D)
        warm = self.batches >= self.config.warmup  # compared on the device: asking would stall it
        return torch.where(warm, r, 1.0), torch.where(warm, d, 0.0)

    def _follow(self, mean: Tensor, var: Tensor, members: Tensor | slice) -> None:
        rate = 1.0 - self.config.momentum
        for running, batch in ((self.running_mean, mean), (self.running_var, var)):
            # The step of a loss that is not finite is never applied; its statistics must not stay either.
            running[members] += rate * (batch - running[members]).nan_to_num(0.0, 0.0, 0.0)
        self.batches += 1


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Inside, the network's BatchRenorm layers normalise by the batch and learn its statistics."""
    layers = [module for module in network.modules() if isinstance(module, BatchRenorm)]
    for layer in layers:
        layer.learning = True
    try:
        yield
    finally:
        for layer in layers:
            layer.learning = False
