"""The policy of the off-policy actor-critic algorithms: an encoder, an actor and an ensemble of critics."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.policies.actors import Actor
from rl_training.policies.distributions import Categorical
from rl_training.policies.encoders import make_encoder
from rl_training.policies.policy import Policy
from rl_training.policies.spec import PolicySpec


class OffPolicyActorCritic(Policy):
    """Observations are encoded once, actor and critics work on the features."""

    def __init__(
        self, spec: PolicySpec, make_actor: Callable[[int], Actor], make_critics: Callable[[int], nn.Module]
    ) -> None:
        """`make_actor` and `make_critics` get the number of features."""
        super().__init__()
        self.encoder = make_encoder(spec)
        self.actor = make_actor(self.encoder.features)
        self.critics = make_critics(self.encoder.features)

    def choose(self, obs: ObsTensor, generator: RandomSource, deterministic: bool) -> Tensor:
        return self.actor.act(self.encoder(obs), generator=generator, deterministic=deterministic)


class CategoricalActorCritic(OffPolicyActorCritic):
    """The same with a choice among actions, of which a mask may rule out some."""

    def distribution(self, obs: ObsTensor, features: Tensor) -> Categorical:
        """The choice for raw observations, whose features (B, F) are known already."""
        distribution: Categorical = self.actor(features, self.encoder.action_mask(obs))
        return distribution

    def choose(self, obs: ObsTensor, generator: RandomSource, deterministic: bool) -> Tensor:
        distribution = self.distribution(obs, self.encoder(obs))
        return distribution.mode() if deterministic else distribution.sample(generator)
