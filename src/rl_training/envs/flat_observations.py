"""The wrappers that flatten nested observations, for one environment and for a vector environment object."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv, VectorWrapper

from rl_training.utils.nested import flat_obs, flat_space, is_nested


class FlatObservation(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with Dict in Dict or Tuple observations, which come out as one flat Dict. It remembers nothing."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self.observation_space = flat_space(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return flat_obs(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        return (flat_obs(obs), *rest)


class FlatVectorObservation(VectorWrapper[Any, Any, Any, Any, Any]):
    """The same around a vector environment, whose final observations the step contract flattens."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]):
        super().__init__(envs)
        self.single_observation_space = flat_space(envs.single_observation_space)
        self.observation_space = flat_space(envs.observation_space)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.env.reset(seed=seed, options=options)
        return flat_obs(obs), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, *rest = self.env.step(actions)
        return (flat_obs(obs), *rest)


def flattened(envs: VectorEnv[Any, Any, Any]) -> VectorEnv[Any, Any, Any]:
    """The vector environment itself, or wrapped if its observations are nested."""
    return FlatVectorObservation(envs) if is_nested(envs.single_observation_space) else envs
