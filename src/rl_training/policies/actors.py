"""Actors: from features (B, F) to continuous actions in [-1, 1], or to choices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from rl_training.execution.draws import RandomSource
from rl_training.policies.distributions import Categorical, SquashedGaussian, valid_only
from rl_training.policies.networks import OutputLinear, mlp, orthogonal_init_
from rl_training.policies.policy_config import PolicyConfig

MIN_LOG_STD, MAX_LOG_STD = -20.0, 2.0
"""Bounds of the log standard deviation before the tanh (arXiv 1812.05905, reference code)."""


class Actor(nn.Module, ABC):
    """What a policy asks of its actor."""

    @abstractmethod
    def act(self, features: Tensor, *, generator: RandomSource, deterministic: bool) -> Tensor:
        """Actions of features (B, F)."""


class StochasticActor(Actor):
    """An actor whose forward pass gives a distribution over actions."""

    def act(self, features: Tensor, *, generator: RandomSource, deterministic: bool) -> Tensor:
        distribution = self(features)
        return distribution.mode() if deterministic else distribution.sample(generator)


class GaussianActor(StochasticActor):
    """A squashed Gaussian whose mean and standard deviation both depend on the state."""

    def __init__(
        self,
        features: int,
        action_size: int,
        config: PolicyConfig,
        make_norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        """`make_norm` gives a normalisation of so many features, which goes before every linear layer."""
        super().__init__()
        self.body = mlp(features, config.actor_sizes, None, config.activation, make_norm)
        width = (features, *config.actor_sizes)[-1]
        self.head = OutputLinear(width, 2 * action_size)
        if config.orthogonal_init:
            orthogonal_init_(self.body, math.sqrt(2.0))
            orthogonal_init_(self.head, 0.01)

    def forward(self, features: Tensor) -> SquashedGaussian:
        mean, log_std = self.head(self.body(features)).chunk(2, dim=-1)
        return SquashedGaussian(mean, log_std.clamp(MIN_LOG_STD, MAX_LOG_STD))


class DeterministicActor(Actor):
    """One action per state: tanh of a perceptron."""

    def __init__(self, features: int, action_size: int, config: PolicyConfig) -> None:
        super().__init__()
        self.network = _network(features, action_size, config)

    def forward(self, features: Tensor) -> Tensor:
        return self.network(features).tanh()

    def act(self, features: Tensor, *, generator: RandomSource, deterministic: bool) -> Tensor:
        return self(features)


class CategoricalActor(StochasticActor):
    """A probability for each of n choices."""

    def __init__(self, features: int, choices: int, config: PolicyConfig) -> None:
        super().__init__()
        self.network = _network(features, choices, config)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Categorical:
        """A mask (B, n) bool rules out choices."""
        return Categorical(valid_only(self.network(features), mask))


def _network(features: int, outputs: int, config: PolicyConfig) -> nn.Sequential:
    """A perceptron whose first outputs are nearly 0 if it starts from orthogonal weights."""
    network = mlp(features, config.actor_sizes, outputs, config.activation)
    if config.orthogonal_init:
        orthogonal_init_(network[:-1], math.sqrt(2.0))
        orthogonal_init_(network[-1], 0.01)
    return network
