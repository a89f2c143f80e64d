"""How long an episode can become: what environments say about their limits."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from rl_training.envs.builtin.array_envs import ArrayVectorEnv


def episode_limit(envs: gym.Env[Any, Any] | VectorEnv[Any, Any, Any]) -> int | None:
    """The steps after which an environment, or those of a vector, truncate an episode; None if nothing says so.

    An environment may still have a limit of its own that it does not declare.
    """
    if isinstance(envs, gym.Env):
        return _limit_of(envs)
    base = envs.unwrapped
    if isinstance(base, SyncVectorEnv):
        return _limit_of(base.envs[0])
    if isinstance(base, ArrayVectorEnv):
        return base.limit
    return _declared(base) or getattr(base, "max_episode_steps", None)


def _limit_of(env: gym.Env[Any, Any]) -> int | None:
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            return layer._max_episode_steps
        layer = layer.env
    if isinstance(limit := getattr(layer, "max_episode_steps", None), int):
        return limit
    return None  # the spec of an environment made without gym.make means nothing


def _declared(envs: VectorEnv[Any, Any, Any]) -> int | None:
    return None if envs.spec is None else envs.spec.max_episode_steps
