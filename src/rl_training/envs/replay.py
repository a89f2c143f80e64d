"""Environment state in a checkpoint, as plain data.

A deterministic Gymnasium environment is a function of its generator's state at the last reset and of the actions since. So that
is what `ReplayableEnv` keeps. To restore, it puts the generator back, resets, replays the actions, and compares the outcome with
what was stored; only a bit-for-bit match counts as exact. An environment with its own `get_state`/`set_state` skips the replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rl_training.envs.checked_env import CheckedEnv
from rl_training.envs.wrapper_state import wrappers_digest
from rl_training.utils.spaces import map_obs, same_tree

# Wrappers whose whole state is known, so that an environment's own export is enough.
_TRANSPARENT_WRAPPERS = (OrderEnforcing, PassiveEnvChecker, TimeLimit, CheckedEnv)


class ReplayableEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Records what is needed to bring this environment back to where it is."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self._start: dict[str, Any] | None = None
        self._actions: list[Any] = []
        self._observation: Any = None
        self._episode_return = 0.0
        self._done = False
        self._restored_done = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._start = {"seed": seed, "options": options or None}
        if seed is None:
            self._start["generator"] = self._generator_state()
        self._actions, self._episode_return = [], 0.0
        self._done = self._restored_done = False
        self._observation, info = self.env.reset(seed=seed, options=options)
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._restored_done:
            # Restored between an episode's end and its reset: the vector env has forgotten that this step is the reset.
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        self._actions.append(np.array(action))
        self._observation, reward, terminated, truncated, info = self.env.step(action)
        self._episode_return += float(reward)
        self._done = bool(terminated or truncated)
        return self._observation, reward, terminated, truncated, info

    def export_state(self) -> dict[str, Any] | None:
        """The state as a tree of arrays and JSON values; None before the first reset."""
        if self._start is None:
            return None
        state: dict[str, Any] = {
            "observation": map_obs(np.asarray, self._observation),
            "generator": self._generator_state(),
            "return": self._episode_return,
            "done": self._done,
        }
        if self._exports_itself():
            elapsed = [limit._elapsed_steps for limit in self._time_limits()]
            return {**state, "own": self.unwrapped.get_state(), "elapsed": elapsed}  # type: ignore[attr-defined]
        state |= {"start": self._start, "actions": np.stack(self._actions) if self._actions else None}
        if (digest := self._wrappers_digest()) is not None:
            state["wrappers"] = digest
        return state

    def restore_state(self, state: dict[str, Any] | None, fallback_seed: int) -> tuple[Any, bool]:
        """Returns the current observation and whether the environment is verified to be exactly where it was.

        If it cannot be brought back, a fresh episode is started with `fallback_seed`.
        """
        if state is not None and self._try_restore(state):
            return self._observation, True
        observation, _ = self.reset(seed=fallback_seed)
        return observation, False

    def _try_restore(self, state: dict[str, Any]) -> bool:
        if "own" in state:
            if not self._exports_itself():
                return False
            self.reset(seed=0)
            self.unwrapped.set_state(state["own"])  # type: ignore[attr-defined]
            self.unwrapped.np_random.bit_generator.state = state["generator"]
            for limit, steps in zip(self._time_limits(), state["elapsed"]):
                limit._elapsed_steps = steps
            self._observation = map_obs(lambda stored: stored[()], state["observation"])
            self._episode_return = state["return"]
            self._done = self._restored_done = state["done"]
            return same_tree(self.unwrapped.get_state(), state["own"])  # type: ignore[attr-defined]
        start = state["start"]
        if start["seed"] is None:
            self.unwrapped.np_random.bit_generator.state = start["generator"]
        self.reset(seed=start["seed"], options=start["options"])
        for action in state["actions"] if state["actions"] is not None else ():
            native_action = _as_action(action, self.action_space)
            if self._done or not self.action_space.contains(native_action):
                return False
            self.step(native_action)
        self._restored_done = self._done
        return (
            same_tree(map_obs(np.asarray, self._observation), state["observation"])
            and self._generator_state() == state["generator"]
            and self._episode_return == state["return"]
            and self._done == state["done"]
            and self._wrappers_digest() == state.get("wrappers") != "unknown"
        )

    def _exports_itself(self) -> bool:
        has_methods = hasattr(self.unwrapped, "get_state") and hasattr(self.unwrapped, "set_state")
        return has_methods and all(isinstance(wrapper, _TRANSPARENT_WRAPPERS) for wrapper in self._inner_wrappers())

    def _inner_wrappers(self) -> Iterator[gym.Env[Any, Any]]:
        env = self.env
        while isinstance(env, gym.Wrapper):
            yield env
            env = env.env

    def _wrappers_digest(self) -> str | None:
        return wrappers_digest([w for w in self._inner_wrappers() if not isinstance(w, _TRANSPARENT_WRAPPERS)])

    def _time_limits(self) -> list[Any]:
        return [wrapper for wrapper in self._inner_wrappers() if isinstance(wrapper, TimeLimit)]

    def _generator_state(self) -> dict[str, Any]:
        return dict(self.unwrapped.np_random.bit_generator.state)


def _as_action(stored: Any, space: gym.Space[Any]) -> Any:
    """Actions are kept as arrays; a Discrete environment gets back the NumPy integer it was given."""
    return stored[()] if isinstance(space, gym.spaces.Discrete) else np.array(stored)
