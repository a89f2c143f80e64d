"""Trunks: what actor and critics each make of an encoder's many features, before their hidden layers (DrQ, DrQ-v2)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rl_training.execution.draws import RandomSource
from rl_training.policies.actors import Actor
from rl_training.policies.critics import ALL, CriticEnsemble, Members
from rl_training.policies.networks import orthogonal_init_


class Trunk(nn.Sequential):
    """(B, features) → (B, size) between −1 and 1: linear, layer normalisation, tanh."""

    def __init__(self, features: int, size: int) -> None:
        linear = nn.Linear(features, size)
        orthogonal_init_(linear, math.sqrt(2.0))
        super().__init__(linear, nn.LayerNorm(size), nn.Tanh())


class TrunkedActor(Actor):
    """An actor behind a trunk of its own."""

    def __init__(self, features: int, size: int, actor: Actor) -> None:
        super().__init__()
        self.trunk, self.actor = Trunk(features, size), actor

    def forward(self, features: Tensor) -> Tensor:
        return self.actor(self.trunk(features))

    def act(self, features: Tensor, *, generator: RandomSource, deterministic: bool) -> Tensor:
        return self.actor.act(self.trunk(features), generator=generator, deterministic=deterministic)


class TrunkedCritics(nn.Module):
    """Critics of features and actions, (B, F + d) → (N, B, outputs), that share a trunk for the features."""

    def __init__(self, features: int, size: int, critics: CriticEnsemble) -> None:
        super().__init__()
        self.features, self.trunk, self.critics = features, Trunk(features, size), critics

    def forward(self, x: Tensor, members: Members = ALL) -> Tensor:
        short = self.trunk(x[..., : self.features])
        return self.critics(torch.cat([short, x[..., self.features :]], dim=-1), members)
