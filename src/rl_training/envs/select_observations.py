"""A wrapper that shows only some of an observation's numbers, to make a task that needs a memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.utils.spaces import Array


class SelectObservations(gym.ObservationWrapper[Any, Any, Any]):
    """The numbers of a flat Box observation at these indices, in this order; everything else is hidden.

    CartPole without velocities: `{name: SelectObservations, indices: [0, 2]}`; Pendulum: `[0, 1]`.
    """

    def __init__(self, env: gym.Env[Any, Any], indices: Sequence[int]):
        super().__init__(env)
        whole = env.observation_space
        if not isinstance(whole, spaces.Box) or len(whole.shape) != 1:
            raise ValueError(f"it chooses from the numbers of a flat Box, and the observation space is {whole}")
        size, chosen = whole.shape[0], list(indices)
        wrong = [i for i in chosen if not isinstance(i, int) or isinstance(i, bool) or not 0 <= i < size]
        if wrong or not chosen or len(set(chosen)) < len(chosen):
            raise ValueError(f"indices are different whole numbers from 0 to {size - 1}, got {chosen}")
        self._indices = np.array(chosen)
        self.observation_space = spaces.Box(whole.low[self._indices], whole.high[self._indices], dtype=whole.dtype.type)

    def observation(self, observation: Array) -> Array:
        return observation[self._indices]
