"""Environments that raise when an action is taken that they have ruled out."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class PickyEnv(gym.Env[Any, Any]):
    """Draws a mask for each state, and raises on any other action. Episodes of 3 to 9 steps terminate or are truncated, as drawn.

    `form` is how it tells the mask: "method", "info", "observation", or "silent" for not at all. Where an episode terminated it
    says that nothing is valid, or refuses to answer. `parts` gives MultiDiscrete masks as one for each dimension.
    """

    sizes: tuple[int, ...] = (6,)

    def __init__(self, form: str = "method", parts: bool = False, start: int = 0):
        self.form, self.parts, self.start = form, parts, start
        if len(self.sizes) == 1:
            self.action_space: spaces.Space[Any] = spaces.Discrete(self.sizes[0], start=start)
        else:
            self.action_space = spaces.MultiDiscrete(self.sizes, start=[start] * len(self.sizes))
        box = spaces.Box(-10.0, 10.0, (3,), np.float32)
        self.observation_space: spaces.Space[Any] = box
        if form == "observation":
            each = [spaces.MultiBinary(size) for size in self.sizes]
            mask = spaces.Tuple(each) if parts else spaces.Box(0, 1, (sum(self.sizes),), np.int8)
            self.observation_space = spaces.Dict({"seen": box, "action_mask": mask})
        if form == "method":
            self.action_masks = self._told

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left, self.over = int(self.np_random.integers(3, 10)), False
        self._next()
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = np.asarray(action).reshape(-1) - self.start
        for mask, choice in zip(self.mask, chosen, strict=True):
            assert mask[choice], f"action {action} is not valid, the masks are {self.mask}"
        self._next()
        self.left -= 1
        terminated = self.left == 0 and bool(self.np_random.integers(2))
        self.over = terminated
        return self._observe(), float(self.seen[0]), terminated, self.left == 0 and not terminated, self._info()

    def _next(self) -> None:
        self.seen = self.np_random.normal(size=3).clip(-10, 10).astype(np.float32)
        self.mask = [self.np_random.random(size) < 0.4 for size in self.sizes]
        for mask in self.mask:
            mask[self.np_random.integers(len(mask))] = True

    def _told(self) -> Any:
        if self.over and self.form == "method":
            raise RuntimeError("the game is over")
        masks = [mask & (not self.over) for mask in self.mask]
        return tuple(mask.astype(np.int8) for mask in masks) if self.parts else np.concatenate(masks).astype(np.int8)

    def _observe(self) -> Any:
        return {"seen": self.seen, "action_mask": self._told()} if self.form == "observation" else self.seen

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._told()} if self.form == "info" else {}


class PickyMultiEnv(PickyEnv):
    """The same with three choices at once."""

    sizes = (3, 2, 4)


class BadMaskEnv(PickyEnv):
    """Says `bad` in place of a mask from its third step on."""

    def __init__(self, bad: Any, form: str = "info"):
        super().__init__(form)
        self.bad, self.steps = bad, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        obs, reward, *_, info = super().step(action)
        return obs, reward, False, False, info

    def _told(self) -> Any:
        return self.bad if self.steps >= 3 else super()._told()
