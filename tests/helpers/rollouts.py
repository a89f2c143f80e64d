"""Rollouts without environments, for tests of update rules."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.algorithms.ppo import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTIONS = spaces.Discrete(3)

AlgorithmT = TypeVar("AlgorithmT", bound=OnPolicyAlgorithm[Any])


def make_algorithm(
    algorithm: type[AlgorithmT], *, seed: int = 0, env: dict[str, Any] | None = None, **hyperparams: Any
) -> AlgorithmT:
    """The algorithm on three observed numbers and three actions; PPO with minibatches for small rollouts."""
    if issubclass(algorithm.config_class, PPOConfig):
        hyperparams = {"num_minibatches": 4, "update_epochs": 4, **hyperparams}
    return algorithm(OBSERVATIONS, ACTIONS, algorithm.config_class(**hyperparams), seed=seed, **(env or {}))


def flags(rows: list[list[int]] | None, shape: tuple[int, int], default: bool = False) -> Tensor:
    return torch.full(shape, default) if rows is None else torch.tensor(rows, dtype=torch.bool)


def make_rollout(
    algorithm: OnPolicyAlgorithm[Any],
    num_steps: int = 8,
    num_envs: int = 2,
    *,
    seed: int = 0,
    rewards: list[list[float]] | None = None,
    terminated: list[list[int]] | None = None,
    truncated: list[list[int]] | None = None,
    valid: list[list[int]] | None = None,
) -> RolloutBuffer:
    """Random observations, actions of the algorithm's policy and, unless given, random rewards and no ends; flags are (T, N)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_steps, num_envs)
    obs = torch.randn(num_steps + 1, num_envs, 3, generator=generator)
    final_obs = torch.randn(num_steps, num_envs, 3, generator=generator)
    reward = torch.randn(shape, generator=generator) if rewards is None else torch.tensor(rewards)
    is_terminated, is_truncated, is_valid = flags(terminated, shape), flags(truncated, shape), flags(valid, shape, True)
    buffer = RolloutBuffer(num_steps, num_envs, (3,), (), action_dtype=torch.int64)
    for t in range(num_steps):
        actions, _ = algorithm.policy.act(obs[t], generator=generator)
        buffer.add(
            obs=obs[t],
            actions=actions,
            rewards=reward[t],
            terminated=is_terminated[t],
            truncated=is_truncated[t],
            valid=is_valid[t],
            next_obs=torch.where((is_terminated | is_truncated)[t, :, None], final_obs[t], obs[t + 1]),
        )
    buffer.last_obs = obs[-1]
    return buffer


def copied_weights(algorithm: OnPolicyAlgorithm[Any]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in algorithm.policy.state_dict().items()}
