"""A new environment for every episode, where a reset leaves something of the old one behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

KEEP_THEIR_WORLD = frozenset(("gymnasium.envs.box2d.bipedal_walker", "gymnasium.envs.box2d.car_racing"))
"""Modules of Gymnasium's environments whose simulator survives resets, with its caches and the order of its bodies. A new one
costs a tenth of a millisecond. (LunarLander makes its own.)"""


class RenewedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Makes the environment anew at every reset but the first, and gives each a seed: some take one from the clock without."""

    def __init__(self, env: gym.Env[Any, Any], make: Callable[[], gym.Env[Any, Any]]):
        super().__init__(env)
        self._make = make
        self._used = False
        self._seeds = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None:
            seed = int(self._seeds.integers(2**31))
        else:
            self._seeds = np.random.default_rng(seed)
        if self._used:
            self.env.close()
            self.env = self._make()
        self._used = True
        return self.env.reset(seed=seed, options=options)
