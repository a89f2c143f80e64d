"""Spaces at the boundary between environments and policies.

Policies speak a canonical "policy form": indices that count from 0 for discrete actions, and numbers in which [-1, 1] spans the
bounds for Box actions. `ActionAdapter` turns that into what the environment wants. Nothing here imports torch, because
environment workers import it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces

from rl_training.utils.action_masks import ActionMask
from rl_training.utils.errors import CheckpointError, NonFiniteError, SpaceError

A = TypeVar("A")
B = TypeVar("B")
Array = np.ndarray[Any, Any]
Observation = Array | dict[str, Array]
"""A batch of observations: one array, or one array per key of a Dict space."""


def map_obs(fn: Callable[[A], B], obs: A | dict[str, A]) -> B | dict[str, B]:
    """Applies `fn` to the array, or to the array under each key."""
    if isinstance(obs, dict):
        return {key: fn(value) for key, value in obs.items()}
    return fn(obs)


def same_tree(a: Any, b: Any) -> bool:
    """Equality of observations or states, arrays bit for bit (NaN equals NaN): the test behind the resume grade `exact`."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_tree(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same_tree, a, b))
    if isinstance(a, np.ndarray):
        b = np.asarray(b)
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return bool(a == b)


def stored_obs(obs: Observation) -> Observation:
    """Observations as buffers keep them: all floats as float32, unsigned whole numbers that torch cannot compute with as signed
    ones (uint64 as float32, because int64 does not hold them), everything else as it is."""
    return map_obs(_as_stored, obs)


_STORED_AS = {"float64": "float32", "float16": "float32", "uint16": "int32", "uint32": "int64", "uint64": "float32"}
_STORED_CHARS = frozenset(char for char in np.typecodes["All"] if np.dtype(char).name in _STORED_AS)


def _as_stored(array: Array) -> Array:
    array = np.asarray(array)
    return array.astype(_STORED_AS[array.dtype.name]) if array.dtype.char in _STORED_CHARS else array


def obs_layout(space: spaces.Space[Any]) -> tuple[Any, Any]:
    """(shape, NumPy dtype name) of one stored observation; for Dict spaces two mappings by key."""
    if isinstance(space, spaces.Dict):
        layouts = {key: obs_layout(sub) for key, sub in space.spaces.items()}
        return {k: v[0] for k, v in layouts.items()}, {k: v[1] for k, v in layouts.items()}
    assert space.shape is not None and space.dtype is not None
    dtype = np.dtype(space.dtype).name
    return tuple(space.shape), _STORED_AS.get(dtype, dtype)


class ActionAdapter:
    """Turns a batch of actions from policy form into the environment's own form.

    Attributes:
        shape: shape of one action in policy form: () for Discrete, (k,) otherwise.
        dtype: NumPy dtype name of policy-form actions.
        choices: for numbered actions, how many there are of each, of `shape`; None for others.
    """

    def __init__(self, space: spaces.Space[Any]):
        self.space = space
        self.shape: tuple[int, ...]
        self.choices: Array | None = None
        if isinstance(space, spaces.Discrete):
            self.shape, self.dtype, self.choices = (), "int64", np.array(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            self.shape, self.dtype, self.choices = (int(space.nvec.size),), "int64", space.nvec.reshape(-1)
        elif isinstance(space, spaces.MultiBinary):
            self.shape, self.dtype = (int(np.prod(space.shape)),), "float32"
        elif isinstance(space, spaces.Box):
            _check_action_bounds(space)
            self.shape, self.dtype = (int(np.prod(space.shape)),), "float32"
            self._low = space.low.astype(np.float64)
            self._half_width = (space.high.astype(np.float64) - self._low) / 2
        else:
            raise SpaceError(
                f"action space {type(space).__name__} is not supported: use Discrete, MultiDiscrete, MultiBinary or Box.\n"
                "A Dict or Tuple of actions can be flattened with a gymnasium.ActionWrapper."
            )

    def sample(self, generator: np.random.Generator, count: int, masks: Array | None = None) -> Array:
        """(count, *self.shape) uniformly random actions in policy form; with masks (count, n) among the valid ones."""
        space = self.space
        if masks is not None:
            allowed = ActionMask.of(space)
            assert allowed is not None, "masks are for numbered actions"
            drawn = generator.random((count, len(allowed.sizes)))
            return allowed.pick(masks, drawn).reshape(count, *self.shape)
        if isinstance(space, spaces.Discrete):
            return generator.integers(space.n, size=count, dtype=np.int64)
        if isinstance(space, spaces.MultiDiscrete):
            return generator.integers(space.nvec.reshape(-1), size=(count, *self.shape), dtype=np.int64)
        if isinstance(space, spaces.MultiBinary):
            return generator.integers(2, size=(count, *self.shape)).astype(np.float32)
        return generator.uniform(-1.0, 1.0, size=(count, *self.shape)).astype(np.float32)

    def to_env(self, actions: Array) -> Array:
        """(N, *self.shape) in policy form -> (N, *space.shape) in the environment's form and dtype."""
        space, count = self.space, len(actions)
        if isinstance(space, spaces.Discrete):
            return (actions + space.start if space.start else actions).astype(space.dtype)
        if isinstance(space, spaces.MultiDiscrete):
            return (actions.reshape(count, *space.shape) + space.start).astype(space.dtype)
        if isinstance(space, spaces.MultiBinary):
            return actions.reshape(count, *space.shape).astype(space.dtype)
        assert isinstance(space, spaces.Box)
        shares = np.add(actions.reshape(count, *space.shape), 1.0, dtype=np.float64)
        scaled = self._low + shares * self._half_width
        # The bounds last: rounding to the space's dtype may step over one by a unit in the last place.
        native = np.minimum(np.maximum(scaled.astype(space.dtype), space.low), space.high)
        if np.count_nonzero(native != native):  # NaN
            raise NonFiniteError("the policy's actions became NaN; no environment was stepped with them")
        return native


def _check_action_bounds(space: spaces.Box) -> None:
    if not np.issubdtype(space.dtype, np.floating):
        raise SpaceError(f"Box actions of dtype {space.dtype} are not supported: use MultiDiscrete for whole numbers.")
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise SpaceError(
            "the Box action space has infinite bounds, so actions cannot be scaled to it.\n"
            "Give it finite bounds, for example gymnasium.wrappers.RescaleAction(env, -1.0, 1.0) over a bounded env, "
            "or set action_space = Box(-1, 1, shape) in the env."
        )


def space_name(space: spaces.Space[Any]) -> str:
    """The name by which algorithms declare what they support, e.g. 'Discrete'."""
    return type(space).__name__


def space_to_tree(space: spaces.Space[Any]) -> dict[str, Any]:
    """A space as a state tree, so that a saved policy can be rebuilt without its environment."""
    if isinstance(space, spaces.Box):
        return {"type": "Box", "low": space.low, "high": space.high, "dtype": np.dtype(space.dtype).name}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec, "start": space.start}
    if isinstance(space, ActionMask):
        return {"type": "ActionMask", "sizes": [*space.sizes]}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": [int(size) for size in space.shape]}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: space_to_tree(sub) for key, sub in space.spaces.items()}}
    raise SpaceError(f"space {type(space).__name__} is not supported")


def space_from_tree(tree: dict[str, Any]) -> spaces.Space[Any]:
    """The inverse of `space_to_tree`; anything unexpected is a CheckpointError."""
    try:
        kind = tree["type"]
        if kind == "Box":
            return spaces.Box(tree["low"], tree["high"], dtype=np.dtype(tree["dtype"]).type)
        if kind == "Discrete":
            return spaces.Discrete(int(tree["n"]), start=int(tree["start"]))
        if kind == "MultiDiscrete":
            return spaces.MultiDiscrete(tree["nvec"], start=tree["start"])
        if kind == "MultiBinary":
            shape = [int(size) for size in tree["shape"]]
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        if kind == "ActionMask":
            return ActionMask([int(size) for size in tree["sizes"]])
        if kind == "Dict":
            return spaces.Dict({key: space_from_tree(sub) for key, sub in tree["spaces"].items()})
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
        raise CheckpointError(f"the saved space description is not valid: {error!r}") from error
    raise CheckpointError(f"the saved space description names an unknown space {kind!r}")
