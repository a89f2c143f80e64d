"""Export and restore of a whole vector environment's state, for each backend that can."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rl_training.envs.async_env import AsyncEnvs
from rl_training.envs.replay import ReplayableEnv
from rl_training.utils.spaces import Observation, same_tree

# Native vector environments written with NumPy arrays: the attributes that are their whole state, next to the generator.
_NATIVE_STATE = {"gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv": ("state", "steps", "prev_done")}


def export_vector_state(envs: VectorEnv[Any, Any, Any]) -> dict[str, Any] | None:
    """The state as a tree of arrays and JSON values, or None if this environment cannot give it."""
    base = envs.unwrapped
    if _is_replayable(base):
        return {"kind": "replay", "envs": _call_each(base, "export_state", [()] * base.num_envs)}
    if hasattr(base, "get_state") and hasattr(base, "set_state"):
        return {"kind": "own", "state": base.get_state()}
    names = _NATIVE_STATE.get(_class_path(base))
    if names is not None:
        arrays = {name: np.array(getattr(base, name)) for name in names}
        return {"kind": "native", "arrays": arrays, "generator": dict(base.np_random.bit_generator.state)}
    return None


def restore_vector_state(
    envs: VectorEnv[Any, Any, Any], state: dict[str, Any] | None, obs: Observation, fallback_seeds: Any
) -> Observation | None:
    """None when every environment is verified to be exactly where it was; otherwise the observations of fresh episodes."""
    if state is not None and _try_restore(envs, state, obs, fallback_seeds):
        return None
    fresh_obs, _ = envs.reset(seed=fallback_seeds)
    return fresh_obs


def _try_restore(envs: VectorEnv[Any, Any, Any], state: dict[str, Any], obs: Observation, seeds: Any) -> bool:
    base = envs.unwrapped
    if state["kind"] == "replay":
        if not _is_replayable(base) or len(state["envs"]) != base.num_envs:
            return False
        results = _call_each(base, "restore_state", list(zip(state["envs"], seeds)))
        return all(exact for _, exact in results)
    if state["kind"] == "own" and hasattr(base, "get_state") and hasattr(base, "set_state"):
        envs.reset(seed=seeds)
        try:
            base.set_state(state["state"])
        except ValueError:  # of another number of environments, say
            return False
        return same_tree(base.get_state(), state["state"])
    names = _NATIVE_STATE.get(_class_path(base), ())
    if state["kind"] == "native" and set(names) == set(state["arrays"]):
        envs.reset(seed=seeds)
        for name in names:
            setattr(base, name, np.array(state["arrays"][name]))
        base.np_random.bit_generator.state = state["generator"]
        return same_tree(base.state.T.astype(np.float32), obs)  # type: ignore[attr-defined]
    return False


def _is_replayable(base: VectorEnv[Any, Any, Any]) -> bool:
    if isinstance(base, AsyncEnvs):
        return True
    return isinstance(base, SyncVectorEnv) and all(isinstance(env, ReplayableEnv) for env in base.envs)


def _call_each(base: Any, name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
    if isinstance(base, AsyncEnvs):
        return base.call_each(name, arguments)
    return [getattr(env, name)(*args) for env, args in zip(base.envs, arguments)]


def _class_path(obj: object) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"
