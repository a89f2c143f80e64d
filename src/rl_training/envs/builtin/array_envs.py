"""The classic control tasks as NumPy arrays: all environments step at once, several times faster than one after the other.

Each environment has a generator of its own and draws from it as Gymnasium's does, so that with equal seeds it lives through the
same episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.envs.builtin.classic_dynamics import DYNAMICS, Dynamics
from rl_training.utils.coerce import build_dataclass
from rl_training.utils.errors import ConfigError, EnvCreationError, UserError
from rl_training.utils.spaces import Array


class ArrayVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments with SAME_STEP autoreset.

    Attributes:
        states: (N, S) float64.
        steps: (N,) int64 steps in the current episode.
        limit: steps after which an episode is truncated.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, dynamics: Dynamics, num_envs: int, limit: int):
        self.dynamics, self.num_envs, self.limit = dynamics, num_envs, limit
        self.single_observation_space, self.single_action_space = dynamics.observation_space, dynamics.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._low, self._high = np.array(dynamics.initial).T
        self._drawn = np.flatnonzero(self._low < self._high)
        self._bounds = self._low[self._drawn], self._high[self._drawn]
        self.states = np.zeros((num_envs, len(dynamics.initial)))
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self._generators = [np_random()[0] for _ in range(num_envs)]
        self.reset()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Starts fresh episodes everywhere; a single seed s gives environment i the seed s + i, as Gymnasium does."""
        if options:
            raise UserError(f"array environments take no reset options, got {options}: use env.backend=sync for these.")
        seeds = [seed + index for index in range(self.num_envs)] if isinstance(seed, int) else seed
        for index, one in enumerate(seeds or ()):
            if one is not None:
                self._generators[index] = np_random(one)[0]
        for index in range(self.num_envs):
            self.states[index] = self._first_state(index)
        self.steps = np.zeros(self.num_envs, dtype=np.int64)
        return self._observe(self.states), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        space = self.single_action_space
        if isinstance(space, spaces.Discrete) and np.count_nonzero(actions // int(space.n)):  # 0 for 0 … n − 1 only
            raise UserError(f"actions must be in {self.action_space}, got {actions}")
        states, rewards, terminated = self.dynamics.step(np, self.states, actions)
        steps = self.steps + 1
        truncated = steps >= self.limit
        ended = terminated | truncated
        obs, infos = self._observe(states), dict[str, Any]()
        if np.count_nonzero(ended):  # much faster than any() on few numbers
            infos = {"final_obs": obs, "_final_obs": ended}
            for index in map(int, np.flatnonzero(ended)):
                states[index] = self._first_state(index)
            steps[ended] = 0
            obs = self._observe(states)
        self.states, self.steps = states, steps
        return obs, rewards, terminated, truncated, infos

    def get_state(self) -> dict[str, Any]:
        """Everything that decides the future, as arrays and plain values."""
        generators = [dict(generator.bit_generator.state) for generator in self._generators]
        return {"states": self.states.copy(), "steps": self.steps.copy(), "generators": generators}

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts back what `get_state` gave; ValueError if that was of other environments."""
        states, steps = np.asarray(state["states"]), np.asarray(state["steps"])
        if (
            states.shape != self.states.shape
            or steps.shape != self.steps.shape
            or len(state["generators"]) != self.num_envs
        ):
            raise ValueError(f"the saved states have the shape {states.shape}, not {self.states.shape}")
        self.states, self.steps = states.astype(np.float64), steps.astype(np.int64)
        for generator, saved in zip(self._generators, state["generators"]):
            generator.bit_generator.state = saved

    def _first_state(self, index: int) -> Array:
        state: Array = self._low.copy()
        state[self._drawn] = self._generators[index].uniform(*self._bounds)
        return state

    def _observe(self, states: Array) -> Array:
        obs: Array = self.dynamics.observe(np, states).astype(np.float32)
        return obs


def classic_task(
    env_id: str, kwargs: dict[str, Any] | None, max_episode_steps: int | None, backend: str
) -> tuple[Dynamics, int]:
    """The equations of a Gymnasium environment with its arguments, and the given time limit, else Gymnasium's."""
    try:
        dynamics = build_dataclass(DYNAMICS[env_id], kwargs or {}, "env.kwargs")
    except ConfigError as error:
        raise EnvCreationError(
            f"environment {env_id!r} could not be made with env.backend={backend}: {error}.\n"
            "Leave it out, or use env.backend=sync, which takes every argument of the Gymnasium environment."
        ) from error
    limit = max_episode_steps or gym.spec(env_id).max_episode_steps
    assert limit is not None, "each of these has a time limit in Gymnasium"
    return dynamics, limit


def make_array_env(
    env_id: str, num_envs: int, *, kwargs: dict[str, Any] | None = None, max_episode_steps: int | None = None
) -> ArrayVectorEnv:
    """The NumPy version of a Gymnasium environment, with Gymnasium's time limit unless another is given."""
    dynamics, limit = classic_task(env_id, kwargs, max_episode_steps, "native")
    return ArrayVectorEnv(dynamics, num_envs, limit)
