"""Two small goal environments in Gymnasium's GoalEnv convention, registered as BitFlip-v0 and PointReach-v0. Free of torch.

Observations are a Dict of `observation`, `achieved_goal` and `desired_goal`; `compute_reward` and `compute_terminated` judge any
pair of goals, also whole batches (B, ...) of them, so that hindsight can ask what another goal would have brought.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.utils.spaces import Array

GoalObservation = dict[str, Array]


class _GoalEnv(gym.Env[Any, Any], ABC):
    """A state that is its own achieved goal; each step costs 1 unless the goal is reached."""

    def __init__(self, goal_space: spaces.Space[Any]):
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, goal_space))
        self._state: Array
        self._goal: Array

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """0 where the goal is reached, else -1; goals (..., *goal_shape) give (...)."""
        return np.where(self.reached(achieved_goal, desired_goal), 0.0, -1.0)

    @abstractmethod
    def reached(self, achieved_goal: Array, desired_goal: Array) -> Array:
        """Where the goal is reached; goals (..., *goal_shape) give (...)."""

    def _observe(self) -> GoalObservation:
        return {
            "observation": self._state.copy(),
            "achieved_goal": self._state.copy(),
            "desired_goal": self._goal.copy(),
        }

    def _outcome(self) -> tuple[float, dict[str, Any]]:
        info = {"is_success": bool(self.reached(self._state, self._goal))}
        return float(self.compute_reward(self._state, self._goal, info)), info


class BitFlip(_GoalEnv):
    """n bits, of which each action flips one, must become the goal's (Andrychowicz et al. 2017, section 3.1).

    An episode terminates at the goal and is truncated after n steps, which always suffice.
    """

    def __init__(self, bits: int = 8):
        if bits < 1:
            raise ValueError(f"bits must be at least 1, not {bits}")
        super().__init__(spaces.MultiBinary(bits))
        self.action_space = spaces.Discrete(bits)
        self.bits = bits
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GoalObservation, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._goal = self.np_random.integers(2, size=(2, self.bits), dtype=np.int8)
        if (self._state == self._goal).all():  # at the goal already, from where each step would lead away
            self._goal[self.np_random.integers(self.bits)] ^= 1
        self._steps = 0
        return self._observe(), {"is_success": False}

    def step(self, action: Any) -> tuple[GoalObservation, float, bool, bool, dict[str, Any]]:
        self._state[action] ^= 1
        self._steps += 1
        reward, info = self._outcome()
        return self._observe(), reward, info["is_success"], self._steps >= self.bits, info

    def reached(self, achieved_goal: Array, desired_goal: Array) -> Array:
        return (achieved_goal == desired_goal).all(axis=-1)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        return self.reached(achieved_goal, desired_goal)


class PointReach(_GoalEnv):
    """A point in [-1, 1]² that each step moves by up to 0.1 in either direction must come within 0.1 of the goal, and stay.

    Episodes do not terminate; as PointReach-v0 they are truncated after 50 steps.
    """

    STRIDE = 0.1
    RADIUS = 0.1

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[GoalObservation, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._goal = self.np_random.uniform(-1.0, 1.0, (2, 2)).astype(np.float32)
        return self._observe(), self._outcome()[1]

    def step(self, action: Any) -> tuple[GoalObservation, float, bool, bool, dict[str, Any]]:
        move = np.float32(self.STRIDE) * np.clip(np.asarray(action, np.float32), -1.0, 1.0)
        self._state = np.clip(self._state + move, -1.0, 1.0)
        reward, info = self._outcome()
        return self._observe(), reward, False, False, info

    def reached(self, achieved_goal: Array, desired_goal: Array) -> Array:
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= self.RADIUS

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        return np.zeros(achieved_goal.shape[:-1], dtype=np.bool_)
