"""Export and restore of a whole vector environment's state, for each backend that can."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rl_training.envs.async_env import AsyncEnvs
from rl_training.envs.builtin.array_envs import ArrayVectorEnv
from rl_training.envs.replay import ReplayableEnv, first_line, is_plain
from rl_training.utils.errors import EnvWorkerError
from rl_training.utils.spaces import Observation, same_tree

# Native vector environments written with NumPy arrays: the attributes that are their whole state, next to the generator.
_NATIVE_STATE = {"gymnasium.envs.classic_control.cartpole.CartPoleVectorEnv": ("state", "steps", "prev_done")}


def export_vector_state(envs: VectorEnv[Any, Any, Any]) -> dict[str, Any] | None:
    """The state as a tree of arrays and JSON values, or None if this environment cannot give it."""
    base = envs.unwrapped
    if _is_replayable(base):
        return {"kind": "replay", "envs": _call_each(base, "export_state", [()] * base.num_envs)}
    if _exports_itself(base) and is_plain(own := base.get_state()):  # type: ignore[attr-defined]
        return {"kind": "own", "state": own}
    names = _NATIVE_STATE.get(_class_path(base))
    if names is not None:
        arrays = {name: np.array(getattr(base, name)) for name in names}
        return {"kind": "native", "arrays": arrays, "generator": dict(base.np_random.bit_generator.state)}
    return None


def restore_vector_state(
    envs: VectorEnv[Any, Any, Any], state: dict[str, Any] | None, obs: Observation, fallback_seeds: Any
) -> tuple[Observation, str] | None:
    """None when every environment is verified to be exactly where it was.

    Otherwise the observations of fresh episodes, and what stood in the way.
    """
    try:
        problem = _restore(envs, state, obs, fallback_seeds)
    except EnvWorkerError:
        raise
    except Exception as error:  # of the environment's own code, or of a state that is no environment's
        problem = f"restoring the environments raised {type(error).__name__}: {first_line(error)}"
    if problem is None:
        return None
    fresh_obs, _ = envs.reset(seed=fallback_seeds)
    return fresh_obs, problem


def _restore(envs: VectorEnv[Any, Any, Any], state: Any, obs: Observation, seeds: Any) -> str | None:
    """What stood in the way, or None."""
    base = envs.unwrapped
    if state is None:
        return f"{type(base).__name__} cannot export its state"
    if state["kind"] == "replay" and _is_replayable(base):
        if len(state["envs"]) != base.num_envs:
            return f"there were {len(state['envs'])} environments, and there are {base.num_envs} now"
        results = _call_each(base, "restore_state", list(zip(state["envs"], seeds)))
        problems = [f"environment {index}: {why}" for index, (_, why) in enumerate(results) if why is not None]
        return problems[0] if problems else None
    if state["kind"] == "own" and _exports_itself(base):
        envs.reset(seed=seeds)
        base.set_state(state["state"])  # type: ignore[attr-defined]
        same = same_tree(base.get_state(), state["state"])  # type: ignore[attr-defined]
        return None if same else "its get_state gives something else than its set_state was given"
    names = _NATIVE_STATE.get(_class_path(base), ())
    if state["kind"] == "native" and set(names) == set(state["arrays"]):
        envs.reset(seed=seeds)
        saved = {name: np.array(state["arrays"][name]) for name in names}
        if any(np.shape(getattr(base, name)) != array.shape for name, array in saved.items()):
            return "its arrays have other shapes"
        for name, array in saved.items():
            setattr(base, name, array)
        base.np_random.bit_generator.state = state["generator"]
        same = same_tree(base.state.T.astype(np.float32), obs)  # type: ignore[attr-defined]
        return None if same else "the observations differ"
    return "the environments were of another kind"


def cleared(envs: VectorEnv[Any, Any, Any], *, look: bool = True) -> bool:
    """Resets the environments, and says whether they are shown to be as they were after the first call of this function.

    The first call, on new environments, says whether they can be looked into at all. Without `look` nothing is shown.
    """
    base = envs.unwrapped
    if isinstance(base, SyncVectorEnv) and _is_replayable(base):
        return min(env.cleared(look) for env in base.envs)  # type: ignore[attr-defined] # all of them are reset
    return look and (isinstance(base, ArrayVectorEnv) or _class_path(base) in _NATIVE_STATE)


def _exports_itself(base: Any) -> bool:
    return hasattr(base, "get_state") and hasattr(base, "set_state")


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
