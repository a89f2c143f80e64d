"""Environment state in a checkpoint, as plain data.

A deterministic Gymnasium environment is a function of what it carried into its last reset (its generator above all) and of the
actions since. So that is what `ReplayableEnv` keeps. To restore, it puts these back, resets, replays the actions, and compares
the outcome with what was stored: the observation, the return, and everything that can be reached from the environment. Only a
bit-for-bit match counts as exact. An environment with its own `get_state`/`set_state` skips the replay.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rl_training.envs.action_log import ActionLog
from rl_training.envs.action_masks import MaskedEnv
from rl_training.envs.carried import (
    Paths,
    carried_tree,
    generator_state,
    inner_paths,
    note_carried,
    put_back,
    with_generator_state,
)
from rl_training.envs.checked_env import CheckedEnv
from rl_training.envs.flat_observations import FlatObservation
from rl_training.envs.inspection import attribute_name, first_difference, inspect_env, layers_of
from rl_training.envs.own_random import OwnRandom, moved
from rl_training.utils.process_random import preserved_process_random, process_random_state
from rl_training.utils.spaces import map_obs, same_tree

# Wrappers whose whole state is known, so that an environment's own export is enough.
_TRANSPARENT_WRAPPERS = (OrderEnforcing, PassiveEnvChecker, TimeLimit, CheckedEnv, MaskedEnv, FlatObservation)
_PROBE_SEED = 12_345
SHARED_GENERATORS = "the generators of random, NumPy (np.random) or torch"


class _NotExact(Exception):
    """Why an environment is not known to be where it was."""


class ReplayableEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Records what is needed to bring this environment back to where it is."""

    def __init__(self, env: gym.Env[Any, Any]):
        super().__init__(env)
        self.random = OwnRandom()
        self._at_first = note_carried(env)
        self._start: dict[str, Any] | None = None
        self._actions = ActionLog(env.action_space)
        self._resets = 0
        self._inner: Paths = ()
        self._survivors: list[str] = []
        """The attributes that lead to objects which live on through a reset and cannot be looked into."""
        self._clear: dict[str, str] | None = None
        self._observation: Any = None
        self._episode_return = 0.0
        self._done = False
        self._restored_done = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._resets == 1:
            self.random.watch()
            self._inner = inner_paths(self.env)
        if seed is not None:
            self.random.seed(seed)
            # For those that draw before they pass the seed on, or do not: theirs would come from the operating system.
            self.unwrapped._np_random, self.unwrapped._np_random_seed = seeding.np_random(seed)
        self._start = {"seed": seed, "options": options or None, "random": self.random.state()}
        if seed is None:
            self._start |= {"generator": self._generator_state(), "carried": note_carried(self.env, self._inner)}
        self._resets += 1
        self._actions.clear()
        self._episode_return = 0.0
        self._done = self._restored_done = False
        before = inspect_env(self.env).opaque if self._resets == 2 else ()
        self._observation, info = self.random.call(self.env.reset, seed=seed, options=options)
        if before:
            old = {id(value) for _, value in before}
            self._survivors = sorted({name for name, value in inspect_env(self.env).opaque if id(value) in old})
        return self._observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self._restored_done:
            # Restored between an episode's end and its reset: the vector env has forgotten that this step is the reset.
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        self._actions.append(action)
        outcome = self.env.step(action) if self.random.idle else self.random.call(self.env.step, action)
        self._observation, reward, terminated, truncated, info = outcome
        self._episode_return += float(reward)
        self._done = bool(terminated or truncated)
        return self._observation, reward, terminated, truncated, info

    def cleared(self, look: bool) -> bool:
        """Resets with a fixed seed, and says whether everything is as it was when this was first called."""
        self.reset(seed=_PROBE_SEED)
        for layer in layers_of(self.env):
            if isinstance(layer, CheckedEnv):
                layer.count_from_here()
        if not look:
            return False
        found = inspect_env(self.env)
        if self._clear is None and self._resets == 1:
            self._clear = found.digests
        return not found.opaque and found.digests == self._clear

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
        if (kept := self.random.kept(self.random.state())) is not None:
            state["random"] = kept
        if (reason := getattr(self.unwrapped, "not_restorable", None)) is not None:
            return {**state, "not_exact": reason}
        if (own := self._own_state()) is not None:
            elapsed = [limit._elapsed_steps for limit in self._time_limits()]
            return {**state, "own": own, "elapsed": elapsed, "attributes": self._attributes(shared=False)}
        start = {name: self._start[name] for name in ("seed", "options")}
        if "carried" in self._start:
            carried = carried_tree(self._start["carried"], self._at_first)
            start |= {"generator": self._start["generator"], "carried": carried}
        if (kept := self.random.kept(self._start["random"])) is not None:
            start["random"] = kept
        found = inspect_env(self.env)
        state |= {"start": start, "actions": self._actions.array(), "attributes": found.digests}
        if self._actions.full:
            state["not_exact"] = "the episode is too long to be replayed"
        elif found.unordered:
            names = _names(found.unordered)
            state["not_exact"] = f"{names} holds a set of objects, whose order is another in every process"
        elif self._survivors and self._resets > 1:
            state["not_exact"] = f"{_names(self._survivors)} cannot be looked into and outlives an episode"
        return state

    def restore_state(self, state: dict[str, Any] | None, fallback_seed: int) -> tuple[Any, str | None]:
        """Returns the current observation and why the environment is not known to be where it was; None if it is.

        If it cannot be brought back, a fresh episode is started with `fallback_seed`.
        """
        try:
            if state is None:
                raise _NotExact("its state was not saved")
            self._restore(state)
            return self._observation, None
        except _NotExact as reason:
            problem = str(reason)
        except Exception as error:  # whatever the environment's own code raises
            problem = f"restoring it raised {type(error).__name__}: {first_line(error)}"
        observation, _ = self.reset(seed=fallback_seed)
        return observation, problem

    def _restore(self, state: dict[str, Any]) -> None:
        if "not_exact" in state:
            raise _NotExact(str(state["not_exact"]))
        if self.random.in_worker:
            self._bring_back(state)
        else:
            with preserved_process_random():
                self._bring_back(state)
        if "random" in state and not same_tree(self.random.kept(self.random.state()), state["random"]):
            raise _NotExact(f"what it draws from {SHARED_GENERATORS} differs")

    def _bring_back(self, state: dict[str, Any]) -> None:
        if "own" in state:
            self._take_over(state)
        else:
            self._replay(state)
        if not same_tree(self._generator_state(), state["generator"]):
            raise _NotExact("its generator np_random differs")
        expected = state.get("attributes")  # older checkpoints have none
        if expected is not None:
            differing = first_difference(self._attributes(shared="own" not in state), expected)
            if differing is not None:
                means = "its set_state" if "own" in state else "replaying the episode"
                raise _NotExact(f"{differing} differs: {means} does not bring it back")

    def _take_over(self, state: dict[str, Any]) -> None:
        """Restores what the environment exported itself."""
        self.reset(seed=0)
        if self._own_state() is None:
            raise _NotExact("it has no get_state and set_state any more")
        self.unwrapped.set_state(state["own"])  # type: ignore[attr-defined]
        self._set_generator(state["generator"])
        for limit, steps in zip(self._time_limits(), state["elapsed"]):
            limit._elapsed_steps = steps
        if "random" in state:
            self.random.restore(state["random"])
        self._observation = map_obs(lambda stored: stored[()], state["observation"])
        self._episode_return = state["return"]
        self._done = self._restored_done = state["done"]
        if not same_tree(self.unwrapped.get_state(), state["own"]):  # type: ignore[attr-defined]
            raise _NotExact("its get_state gives something else than its set_state was given")

    def _replay(self, state: dict[str, Any]) -> None:
        start = state["start"]
        if start["seed"] is None:
            self.reset(seed=0)  # some insist on a seed first, and it makes what the first reset makes
            put_back(self.env, start.get("carried", {}))
            self._set_generator(start["generator"])
        if "random" in start:
            self.random.restore(start["random"])
        before = process_random_state()
        self.reset(seed=start["seed"], options=start["options"])
        for action in state["actions"] if state["actions"] is not None else ():
            native_action = self._actions.native(action)
            if self._done or not self.action_space.contains(native_action):
                raise _NotExact("the replayed episode ends early")
            self.step(native_action)
        hidden = self.random.kinds if "random" not in start else ()
        if hidden or (not self.random.in_worker and moved(before, process_random_state())):
            raise _NotExact(f"it draws from {SHARED_GENERATORS}, which others share: let it use self.np_random")
        self._restored_done = self._done
        if not same_tree(map_obs(np.asarray, self._observation), state["observation"]):
            raise _NotExact("the observation after the replay differs")
        if self._episode_return != state["return"] or self._done != state["done"]:
            raise _NotExact("the return after the replay differs")

    def _attributes(self, *, shared: bool) -> dict[str, str]:
        return inspect_env(self.env, shared=shared).digests

    def _own_state(self) -> Any:
        """What the environment exports itself; None if it does not, or not as plain data."""
        inner = layers_of(self.env)[:-1]
        if not _has_own_state(self.unwrapped) or not all(isinstance(layer, _TRANSPARENT_WRAPPERS) for layer in inner):
            return None
        try:
            own = self.unwrapped.get_state()  # type: ignore[attr-defined]
        except Exception:  # it means something else by the word
            return None
        return own if is_plain(own) else None

    def _time_limits(self) -> list[Any]:
        return [layer for layer in layers_of(self.env) if isinstance(layer, TimeLimit)]

    def _generator_state(self) -> dict[str, Any]:
        return generator_state(self.unwrapped.np_random)

    def _set_generator(self, state: dict[str, Any]) -> None:
        generator = self.unwrapped.np_random
        restored = with_generator_state(generator, state)
        if restored is not generator:
            self.unwrapped.np_random = restored


def _names(labels: Sequence[str]) -> str:
    return ", ".join(attribute_name(label) for label in sorted(set(labels))[:3])


def _has_own_state(env: Any) -> bool:
    """Whether it has `get_state()` and `set_state(state)`: MuJoCo's environments have a `set_state(qpos, qvel)`."""
    try:
        inspect.signature(env.get_state).bind()
        inspect.signature(env.set_state).bind(None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold it."""
    if isinstance(value, dict):
        return all(type(key) is str and not key.startswith("$") for key in value) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf" and value.dtype.itemsize <= 8
    return value is None or type(value) in (bool, int, float, str)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
