"""A policy with a memory, for tests: it acts on a running mean of what it has seen. `--import` registers its algorithm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training import register_algorithm
from rl_training.algorithms.a2c import A2CAlgorithm
from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.policy import ActingState
from rl_training.policies.spec import PolicySpec


class MemoryPolicy(ActorCritic):
    """Remembers how many steps of the episode it has seen, and a running mean of the observations."""

    def initial_state(self, count: int) -> ActingState:
        weight = self.value_head.weight
        return {"steps": weight.new_zeros(count), "mean": weight.new_zeros(count, self.encoder.features)}

    @torch.no_grad()
    def act(
        self,
        obs: ObsTensor,
        state: ActingState = None,
        *,
        generator: RandomSource = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, ActingState]:
        assert isinstance(state, dict)
        steps: Any = state["steps"]
        mean: Any = state["mean"]
        mean = 0.5 * mean + 0.5 * self.encoder(obs)
        distribution = self.action_head(self.actor_body(mean))
        actions = distribution.mode() if deterministic else distribution.sample(generator)
        return actions, {"steps": steps + 1, "mean": mean}


class MemoryAlgorithm(A2CAlgorithm):
    """A2C for a policy with a memory; what the policy remembers is left out of the gradient."""

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> MemoryPolicy:
        return MemoryPolicy(spec)


Memory = register_algorithm("memory", MemoryAlgorithm)
