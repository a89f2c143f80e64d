"""Registers environments that need a few lines before they speak Gymnasium's API: `--import scripts/third_party_envs.py`.

Their packages are imported only when such an environment is made.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np


class Crafter(gym.Env[Any, Any]):
    """Crafter speaks the API of the old gym package."""

    def __init__(self, **kwargs: Any) -> None:
        self.game = import_module("crafter").Env(**kwargs)
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(17)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.game.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, done, info = self.game.step(int(action))
        dead = info["discount"] == 0.0
        return observation, float(reward), bool(done and dead), bool(done and not dead), {}


def make_crafter(**kwargs: Any) -> gym.Env[Any, Any]:
    return Crafter(**kwargs)


def make_deep_sea_treasure(**kwargs: Any) -> gym.Env[Any, Any]:
    """Two rewards, treasure and time, weighed into one."""
    env = import_module("mo_gymnasium").make("deep-sea-treasure-v0", **kwargs)
    return import_module("mo_gymnasium.wrappers").LinearReward(env, weight=np.array([0.8, 0.2]))


gym.register("Crafter-v1", entry_point=make_crafter)
gym.register("DeepSeaTreasure-v0", entry_point=make_deep_sea_treasure, max_episode_steps=100)
