"""Small deterministic environments with any supported spaces, for conformance checks and tests. Free of torch.

An environment's state is four numbers that wander with noise from its own generator and a push from the action. Observations
show that state in whatever space is asked for, and the reward says how well the push answered it. Given the generator's state
and the actions, everything repeats bit for bit.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.utils.spaces import Array

STATE_SIZE = 4

OBSERVATION_SPACES: dict[str, tuple[spaces.Space[Any], ...]] = {
    "Box": (
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Box(-2.0, 5.0, (2, 2), np.float64),
        spaces.Box(0, 255, (3, 2), np.uint8),
    ),
    "Discrete": (spaces.Discrete(5, start=-2),),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 4], start=[1, -3]), spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))),
    "MultiBinary": (spaces.MultiBinary(4), spaces.MultiBinary([2, 3])),
    "Dict": (
        spaces.Dict(
            {
                "position": spaces.Box(-1.0, 1.0, (2,), np.float32),
                "mode": spaces.Discrete(3, start=1),
                "switches": spaces.MultiBinary(2),
                "levels": spaces.MultiDiscrete([2, 3]),
            }
        ),
    ),
}
"""Examples of each observation space that an algorithm may declare, with the corners that are easily got wrong: starts other than
0, several dimensions, float64, uint8."""

ACTION_SPACES: dict[str, tuple[spaces.Space[Any], ...]] = {
    "Discrete": (spaces.Discrete(3, start=1), spaces.Discrete(2)),
    "MultiDiscrete": (spaces.MultiDiscrete([2, 3], start=[1, -1]), spaces.MultiDiscrete(np.array([[2, 3], [2, 2]]))),
    "MultiBinary": (spaces.MultiBinary(3), spaces.MultiBinary([2, 2])),
    "Box": (
        spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32)),
        spaces.Box(-1.0, 1.0, (2, 1), np.float64),
    ),
}
"""Examples of each action space that an algorithm may declare."""

UNSUPPORTED_OBSERVATION_SPACES: tuple[spaces.Space[Any], ...] = (
    spaces.Tuple((spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,), np.float32))),
    spaces.Text(5),
)
"""Observation spaces that nothing here can encode."""

UNSUPPORTED_ACTION_SPACES: tuple[spaces.Space[Any], ...] = (
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(3)}),
    spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
    spaces.Box(-np.inf, np.inf, (2,), np.float32),
    spaces.Box(np.array([0.0, -1.0], np.float32), np.array([np.inf, 1.0], np.float32)),
)
"""Action spaces that nothing here can act in; unbounded boxes are among them because there is nothing to scale an action to."""


class SyntheticEnv(gym.Env[Any, Any]):
    """Episodes end with a chance of 5 % per step, and are truncated after `max_steps`. An action outside its space is an error."""

    END_CHANCE = 0.05

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], max_steps: int = 20):
        self.observation_space, self.action_space, self.max_steps = observation_space, action_space, max_steps
        self._state = np.zeros(STATE_SIZE)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.np_random.normal(size=STATE_SIZE)
        self._steps = 0
        return _observation(self._state, self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"action {action!r} is not in {self.action_space}")
        push = action_size(action, self.action_space)
        reward = 1.0 - abs(push - math.tanh(self._state[0]))
        self._state = 0.9 * self._state + 0.3 * push + 0.3 * self.np_random.normal(size=STATE_SIZE)
        self._steps += 1
        terminated = bool(self.np_random.random() < self.END_CHANCE)
        truncated = self._steps >= self.max_steps
        return _observation(self._state, self.observation_space), reward, terminated, truncated, {}


def action_size(action: Any, space: spaces.Space[Any]) -> float:
    """The action as one number from -1 (all parts lowest) to 1 (all parts highest)."""
    low, high = _bounds(space)
    return float(np.mean((np.asarray(action, np.float64) - low) / np.maximum(high - low, 1.0) * 2.0 - 1.0))


def _observation(state: Array, space: spaces.Space[Any]) -> Any:
    """The state as an element of the space: each number squeezed into its bounds, or as it is where there are none."""
    if isinstance(space, spaces.Dict):
        return {key: _observation(np.roll(state, i), sub) for i, (key, sub) in enumerate(space.spaces.items())}
    low, high = _bounds(space)
    numbers = np.resize(state, low.shape)
    bounded = np.isfinite(low) & np.isfinite(high)
    share = 0.5 + 0.5 * np.tanh(numbers)
    whole = not (isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating))
    with np.errstate(invalid="ignore"):
        # Whole numbers: low to high, each with an equal part of the interval.
        inside = np.minimum(np.floor(low + share * (high - low + 1)), high) if whole else low + share * (high - low)
    value = np.where(bounded, inside, numbers).astype(space.dtype)
    return value[()] if isinstance(space, spaces.Discrete) else value


def _bounds(space: spaces.Space[Any]) -> tuple[Array, Array]:
    """Lowest and highest value of each number in the space."""
    if isinstance(space, spaces.Discrete):
        low, size = np.asarray(space.start), np.asarray(space.n)
    elif isinstance(space, spaces.MultiDiscrete):
        low, size = space.start, space.nvec
    elif isinstance(space, spaces.MultiBinary):
        low, size = np.zeros(space.shape), np.full(space.shape, 2)
    elif isinstance(space, spaces.Box):
        return space.low.astype(np.float64), space.high.astype(np.float64)
    else:
        raise NotImplementedError(f"no synthetic values for {space}")
    return low.astype(np.float64), (low + size - 1).astype(np.float64)
