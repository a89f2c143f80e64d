"""The policy of the off-policy actor-critic algorithms: an encoder, an actor and an ensemble of critics."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from rl_training.execution.draws import RandomSource
from rl_training.policies.actors import Actor
from rl_training.policies.encoders import FlattenEncoder, Observation
from rl_training.policies.normalization import ObservationNormalizer
from rl_training.policies.spec import PolicySpec


class OffPolicyActorCritic(nn.Module):
    """Observations are encoded once, actor and critics work on the features.

    Observations enter raw: the normaliser, if there is one, is part of the policy and saved with its weights.
    """

    def __init__(
        self, spec: PolicySpec, make_actor: Callable[[int], Actor], make_critics: Callable[[int], nn.Module]
    ) -> None:
        """`make_actor` and `make_critics` get the number of features."""
        super().__init__()
        space = spec.observation_space
        self.observation_normalizer = ObservationNormalizer(space) if spec.normalize_observations else None
        self.encoder = FlattenEncoder(space)
        self.actor = make_actor(self.encoder.features)
        self.critics = make_critics(self.encoder.features)

    def encode(self, obs: Observation) -> Tensor:
        """Raw observations → features (B, F)."""
        if self.observation_normalizer is not None:
            obs = self.observation_normalizer(obs)
        return self.encoder(obs)

    @torch.no_grad()
    def act(self, obs: Observation, *, generator: RandomSource = None, deterministic: bool = False) -> Tensor:
        """Return actions in policy form, without gradient: the actor's sample, or its best guess when deterministic."""
        return self.actor.act(self.encode(obs), generator=generator, deterministic=deterministic)
