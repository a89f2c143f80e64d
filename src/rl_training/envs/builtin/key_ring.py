"""A small task with action masks, registered as KeyRing-v0. Free of torch."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.utils.action_masks import MASK_KEY
from rl_training.utils.spaces import Array


class KeyRing(gym.Env[Any, Any]):
    """A row of doors, each behind the one before, and a ring with 100 keys, of which 5 fit into the lock and 1 of those opens it.

    Every lock has one of 20 colours, drawn anew for each door; a colour's keys lie side by side on the ring. A key that does not
    open costs a step, whether it fits or not. Behind the last door is 1 − 0.9 · steps / 25, and nothing before. Episodes last 25
    steps, so a random choice among the keys that fit opens all 5 doors every other time, one among all keys once in 200,000 times.

    Observations: (doors opened, colour of the lock). `masks` says how the fitting keys are told: by the method `action_masks()`, as
    `info["action_mask"]`, or in a Dict observation beside `observation`.
    """

    KEYS, FITTING, DOORS, LIMIT = 100, 5, 5, 25

    def __init__(self, masks: Literal["method", "info", "observation"] = "method"):
        if masks not in ("method", "info", "observation"):
            raise ValueError(f"masks must be 'method', 'info' or 'observation', not {masks!r}")
        self.masks = masks
        self.colours = self.KEYS // self.FITTING
        self.action_space = spaces.Discrete(self.KEYS)
        seen = spaces.MultiDiscrete([self.DOORS + 1, self.colours])
        self.observation_space: spaces.Space[Any] = seen
        if masks == "observation":
            self.observation_space = spaces.Dict({"observation": seen, MASK_KEY: spaces.MultiBinary(self.KEYS)})
        if masks == "method":
            self.action_masks = self._fitting
        self._opened = self._steps = self._colour = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._opened = self._steps = 0
        self._colour = int(self.np_random.integers(self.colours))
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if int(action) == self.right_key(self._colour):
            self._opened += 1
            self._colour = int(self.np_random.integers(self.colours))
        through = self._opened == self.DOORS
        reward = 1.0 - 0.9 * self._steps / self.LIMIT if through else 0.0
        return self._observe(), reward, through, False, self._info()

    def right_key(self, colour: int) -> int:
        """The key that opens locks of a colour."""
        return colour * self.FITTING + (3 * colour + 1) % self.FITTING

    def _fitting(self) -> Array:
        mask = np.zeros(self.KEYS, np.int8)
        mask[self._colour * self.FITTING :][: self.FITTING] = 1
        return mask

    def _observe(self) -> Any:
        seen = np.array([self._opened, self._colour])
        return {"observation": seen, MASK_KEY: self._fitting()} if self.masks == "observation" else seen

    def _info(self) -> dict[str, Any]:
        success = {"is_success": self._opened == self.DOORS}
        return {**success, MASK_KEY: self._fitting()} if self.masks == "info" else success
