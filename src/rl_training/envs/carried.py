"""What an environment carries from one episode into the next: plain numbers, generators, and MuJoCo's state.

A reset is a function of these. They are noted just before it, so that replaying an episode can start from the same ones.
"""

from __future__ import annotations

import random
import types
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.inspection import MUJOCO_DATA, layers_of

Noted = dict[tuple[int, str], Any]
"""By the wrapper's place, outermost first, and the attribute's name, or its path: "queue.randomizer.rng"."""
Paths = tuple[tuple[int, str], ...]

_NUMBERS = frozenset(
    {type(None), bool, int, float, np.bool_}
    | {np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64}
    | {np.float16, np.float32, np.float64}
)
_BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_KIND = "kind"
_DEEPEST, _MOST_OBJECTS = 4, 2_000
_NO_PARTS = (type, types.ModuleType, types.FunctionType, gym.Space)


def note_carried(env: gym.Env[Any, Any], inner: Paths = ()) -> Noted:
    """The numbers, generators and simulator states among the attributes of the environment and its wrappers.

    `inner` are those of `inner_paths`.
    """
    noted: Noted = {}
    layers = layers_of(env)
    for place, path in inner:
        with suppress(KeyError, TypeError):  # it may come and go
            attributes, name = _owner(layers[place], path)
            if type(attributes[name]).__name__ in _STATEFUL:
                noted[place, path] = _state_of(attributes[name])
    for place, layer in enumerate(layers):
        for name, value in vars(layer).items():
            kind = type(value)
            if kind in _NUMBERS:
                noted[place, name] = value
            elif name != "_np_random" and kind.__name__ in _STATEFUL:  # that one is kept by itself
                noted[place, name] = _state_of(value)
    return noted


def inner_paths(env: gym.Env[Any, Any]) -> Paths:
    """Where generators and simulator states are in the objects that the environment is made of. Looking for them takes a while."""
    layers = layers_of(env)
    seen = {id(layer) for layer in layers}
    found: list[tuple[int, str]] = []
    for place, layer in enumerate(layers):
        open_paths = [(name, value, 1) for name, value in vars(layer).items()]
        while open_paths and len(seen) < _MOST_OBJECTS:
            path, value, depth = open_paths.pop()
            attributes = getattr(value, "__dict__", None)
            if id(value) in seen or not isinstance(attributes, dict) or isinstance(value, _NO_PARTS):
                continue
            seen.add(id(value))
            for name, part in attributes.items():
                if type(part).__name__ in _STATEFUL:
                    found.append((place, f"{path}.{name}"))
                elif depth < _DEEPEST:
                    open_paths.append((f"{path}.{name}", part, depth + 1))
    return tuple(sorted(found))


def carried_tree(noted: Noted, at_first: Noted) -> dict[str, Any]:
    """As a state tree: what is no longer as it was when the environment was made.

    What never changed is the environment's own business: a handle, say, that another process would mistake for its own.
    """
    return {
        f"{place}:{name}": np.asarray(value) if isinstance(value, np.generic) else value
        for (place, name), value in noted.items()
        if isinstance(value, dict) or not _same_number(value, at_first.get((place, name), at_first))
    }


def put_back(env: gym.Env[Any, Any], carried: dict[str, Any]) -> None:
    """Numbers go only where a number is, so that a forged checkpoint can change nothing else."""
    layers = layers_of(env)
    for label, value in carried.items():
        place, _, path = label.partition(":")
        attributes, name = _owner(layers[int(place)], path)
        if isinstance(value, dict):
            attributes[name] = _with_state(attributes[name], value)
        elif type(attributes[name]) in _NUMBERS:
            attributes[name] = value[()] if isinstance(value, np.ndarray) else value


def _owner(layer: gym.Env[Any, Any], path: str) -> tuple[dict[str, Any], str]:
    """The attributes in which the last part of the path is found."""
    *objects, name = path.split(".")
    owner: Any = layer
    for part in objects:
        owner = vars(owner)[part]
    return vars(owner), name


def generator_state(generator: Any) -> dict[str, Any]:
    """The state of a NumPy generator of any kind, or of Python's."""
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return dict(generator.get_state(legacy=False))
    version, internal, gauss = generator.getstate()
    return {"version": version, "internal": np.array(internal, dtype=np.int64), "gauss": gauss}


def with_generator_state(generator: Any, state: dict[str, Any]) -> Any:
    """The generator with that state: itself where the kind is the same, otherwise a new one."""
    if isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(state["internal"].tolist()), state["gauss"]))
        return generator
    if isinstance(generator, np.random.RandomState):
        generator.set_state(state)
        return generator
    name = state["bit_generator"]
    if type(generator.bit_generator).__name__ != name:
        if name not in _BIT_GENERATORS:
            raise ValueError(f"unknown random generator {name!r}")
        generator = np.random.Generator(getattr(np.random, name)())
    generator.bit_generator.state = state
    return generator


def _state_of(value: Any) -> dict[str, Any]:
    return {_KIND: type(value).__name__, **_STATEFUL[type(value).__name__][0](value)}


def _with_state(value: Any, state: dict[str, Any]) -> Any:
    kind = type(value).__name__
    if kind != state[_KIND]:
        raise ValueError(f"a {state[_KIND]} was saved where there is a {kind}")
    return _STATEFUL[kind][1](value, {name: part for name, part in state.items() if name != _KIND})


def _mujoco_state(data: Any) -> dict[str, Any]:
    return {name: np.array(getattr(data, name)) for name in MUJOCO_DATA if hasattr(data, name)}


def _with_mujoco_state(data: Any, state: dict[str, Any]) -> Any:
    for name, value in state.items():
        if name == "time":
            data.time = float(value)
        elif name in MUJOCO_DATA:
            getattr(data, name)[...] = value
    return data


_STATEFUL: dict[str, tuple[Any, Any]] = {
    "Generator": (generator_state, with_generator_state),
    "RandomNumberGenerator": (generator_state, with_generator_state),  # Gymnasium's older name
    "RandomState": (generator_state, with_generator_state),
    "Random": (generator_state, with_generator_state),
    "MjData": (_mujoco_state, _with_mujoco_state),
}


def _same_number(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)
