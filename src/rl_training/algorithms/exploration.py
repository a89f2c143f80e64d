"""Explorers: how off-policy algorithms act while they collect. They know the policy, and nothing of how it is trained."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Metrics
from rl_training.execution.batches import ObsTensor, count_of
from rl_training.execution.draws import RandomSource, Tape
from rl_training.execution.executor import Executor
from rl_training.execution.scalar import Scalar
from rl_training.policies.action_noise import ActionNoise
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.policy import ActingState, Policy
from rl_training.policies.q_network import QNetwork
from rl_training.utils.errors import ConfigError
from rl_training.utils.schedules import Schedule, schedule_value

Acted = tuple[Tensor, ActingState]


class Explorer(ABC):
    """Chooses actions during collection."""

    @abstractmethod
    def act(self, obs: ObsTensor, state: ActingState, *, generator: torch.Generator, progress: float) -> Acted:
        """Actions (N, ...) in policy form, and what the policy remembers from now on. `progress` in [0, 1] is for schedules."""

    def episodes_ended(self, ended: Tensor) -> None:  # noqa: B027  # not every explorer has something to forget
        """Told after every step where episodes ended with it, (N,) bool."""

    def metrics(self) -> Metrics:
        """Scalars () worth reporting."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Restores what `state_dict` returned."""


class SamplingExplorer(Explorer):
    """Samples from the policy itself."""

    def __init__(self, policy: Policy, executor: Executor):
        self._policy = policy
        self._sample = executor.for_owner(policy).function(self._sampled)

    def act(self, obs: ObsTensor, state: ActingState, *, generator: torch.Generator, progress: float) -> Acted:
        return self._sample(obs, state, generator)

    def _sampled(self, obs: ObsTensor, state: ActingState, random: RandomSource) -> Acted:
        return self._policy.act(obs, state, generator=random)


class EpsilonGreedyExplorer(Explorer):
    """The greedy action, or with probability ε any one."""

    def __init__(self, policy: QNetwork, executor: Executor, epsilon: float | Schedule):
        if policy.initial_state(1) is not None:
            raise ConfigError(
                f"{type(policy).__name__} has a memory, which ε-greedy actions do not carry along: set epsilon: 0."
            )
        self._epsilon = Scalar(epsilon, executor.device)
        self._greedy = SamplingExplorer(policy, executor)
        self._explore = executor.for_owner(policy).function(policy.explore)

    def act(self, obs: ObsTensor, state: ActingState, *, generator: torch.Generator, progress: float) -> Acted:
        self._epsilon.advance(progress)
        if self._epsilon.number <= 0:
            return self._greedy.act(obs, state, generator=generator, progress=progress)
        return self._explore(obs, self._epsilon.tensor, generator), state

    def metrics(self) -> Metrics:
        return {"epsilon": self._epsilon.tensor}


class NoisyActionExplorer(Explorer):
    """Deterministic actions plus noise, inside the action range."""

    def __init__(
        self,
        policy: OffPolicyActorCritic,
        executor: Executor,
        action_space: spaces.Space[Any],
        scale: float | Schedule,
        noise: ActionNoise,
    ):
        """`scale` is σ of the noise."""
        self._policy, self._scale, self.noise = policy, scale, noise
        self._size = math.prod(action_space.shape or ())
        self._disturb = executor.for_owner(policy).function(self._disturbed)

    def act(self, obs: ObsTensor, state: ActingState, *, generator: torch.Generator, progress: float) -> Acted:
        noise = self.noise.sample((count_of(obs), self._size), schedule_value(self._scale, progress), generator)
        return self._disturb(obs, state, noise, generator)

    def _disturbed(self, obs: ObsTensor, state: ActingState, noise: Tensor, random: RandomSource) -> Acted:
        actions, state = self._policy.act(obs, state, generator=random)
        return (actions + noise).clamp(-1.0, 1.0), state

    def episodes_ended(self, ended: Tensor) -> None:
        self.noise.reset(ended)

    def state_dict(self) -> dict[str, Any]:
        return {"noise": self.noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.noise.load_state_dict(state["noise"])


class CorrelatedSamplingExplorer(NoisyActionExplorer):
    """Samples from the policy with noise that is correlated from step to step and of variance 1, as the policy's own."""

    def __init__(
        self, policy: OffPolicyActorCritic, executor: Executor, action_space: spaces.Space[Any], correlation: float
    ):
        noise = ActionNoise(1.0 - correlation, stationary=True)
        super().__init__(policy, executor, action_space, math.sqrt(1.0 - correlation**2), noise)

    def _disturbed(self, obs: ObsTensor, state: ActingState, noise: Tensor, random: RandomSource) -> Acted:
        return self._policy.act(obs, state, generator=Tape([noise]))
