"""What an environment remembers, as digests by attribute.

Replaying the current episode brings an environment back only if nothing else matters: no counter that runs from one episode to
the next, no statistics in a wrapper, no class attribute that every instance changes, no simulator that survives resets. None of
that need show in the observations. So everything that can be reached from an environment is looked into, before and after, and
what cannot be looked into is named.
"""

from __future__ import annotations

import dis
import hashlib
import json
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

from rl_training.envs.action_masks import MaskedEnv
from rl_training.envs.checked_env import CheckedEnv
from rl_training.envs.flat_observations import FlatObservation

# They look on, and change nothing that the policy sees.
_ONLOOKERS = (
    wrappers.RecordEpisodeStatistics,
    wrappers.RecordVideo,
    wrappers.RenderCollection,
    wrappers.HumanRendering,
    CheckedEnv,
    FlatObservation,
    MaskedEnv,
)
# fmt: off
_ONLOOKING_PACKAGES = frozenset((
    "pygame", "matplotlib", "PIL", "OpenGL", "glfw", "logging", "threading", "_thread", "weakref", "_weakref",
    "_io",
))
# fmt: on
"""Their objects draw pictures, write logs or keep order between threads."""
_HANDLES = ("pybullet", "pybullet_utils")
"""Libraries whose simulators stay inside the library and are known to Python by a number."""
_FOREIGN = (*_HANDLES, "Box2D")
"""What Python shows of their objects is not what they are."""
_NOT_STATE = frozenset(("env", "spec", "_cached_spec", "_saved_kwargs", "_metadata", "_np_random_seed"))
_PLAIN = bool | int | float | complex | str | bytes | np.generic
_DATA = _PLAIN | np.ndarray | list | tuple | dict | set | deque | np.random.Generator | np.random.RandomState
# fmt: off
MUJOCO_DATA = (
    "time", "qpos", "qvel", "act", "ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied", "mocap_pos",
    "mocap_quat", "eq_active", "userdata", "plugin_state",
)
# fmt: on
"""What MuJoCo's next step is computed from (its mjSTATE_INTEGRATION)."""
# fmt: off
_MUJOCO_MODEL = (
    "qpos0", "body_pos", "body_quat", "body_mass", "geom_pos", "geom_quat", "geom_size", "geom_friction",
    "geom_rgba", "site_pos", "site_size", "dof_damping", "dof_frictionloss", "actuator_gainprm",
    "actuator_biasprm", "jnt_stiffness", "eq_data",
)
# fmt: on
"""What environments are known to change in a model."""
_MAX_NODES = 100_000


class _Plain:
    pass


_PLAIN_SIZE = _Plain.__basicsize__
"""An object of this size has nothing but its `__dict__`; those of other languages are larger."""


@dataclass(frozen=True)
class Inspection:
    digests: dict[str, str]
    """By attribute, such as "0:TimeLimit._elapsed_steps", with the wrapper's place in front, outermost first."""
    opaque: tuple[tuple[str, Any], ...]
    """The objects that nobody can look into, with the attribute that leads to each."""
    unordered: tuple[str, ...]
    """The attributes that lead to sets whose order is another in every process."""


def layers_of(env: gym.Env[Any, Any]) -> list[gym.Env[Any, Any]]:
    """The wrappers, outermost first, and the environment inside them."""
    layers = [env]
    while isinstance(env, gym.Wrapper):
        env = env.env
        layers.append(env)
    return layers


def inspect_env(env: gym.Env[Any, Any], *, shared: bool = True) -> Inspection:
    """Looks into the environment and its wrappers; `shared` also into what its classes and their modules hold for all."""
    layers = [layer for layer in layers_of(env) if type(layer) not in _ONLOOKERS]
    walker = _Walker(layers_of(env))
    digests: dict[str, str] = {}
    for place, layer in enumerate(layers):
        for name, value in vars(layer).items():
            if name not in _NOT_STATE:
                label = f"{place}:{type(layer).__name__}.{name}"
                digests[label] = walker.digest(label, value)
    opaque = list(walker.opaque)
    if shared:
        apart = _Walker(layers_of(env))  # what is opaque in there is mostly code
        for label, value in _shared_values(layers):
            if isinstance(value, types.ModuleType):
                opaque.append((label, value))
            else:
                digests[label] = apart.digest(label, value)
    return Inspection(digests, tuple(opaque), tuple(walker.unordered))


def first_difference(found: Mapping[str, str], expected: Mapping[str, str]) -> str | None:
    """The name of an attribute that is not the same in both."""
    for label in {**expected, **found}:
        if found.get(label) != expected.get(label):
            return attribute_name(label)
    return None


def attribute_name(label: str) -> str:
    """The label as a user knows it: "TimeLimit._elapsed_steps"."""
    return label.partition(":")[2]


class _Walker:
    """Digests of values that may share parts. An object met again counts by its number, so loops end."""

    def __init__(self, layers: list[gym.Env[Any, Any]]):
        self.opaque: list[tuple[str, Any]] = []
        self.unordered: list[str] = []
        self._layers = {id(layer) for layer in layers}
        self._met: dict[int, int] = {}
        self._alive: list[Any] = []  # or a number would be given twice
        self._nodes = 0

    def digest(self, label: str, value: Any) -> str:
        self._label, self._hash = label, hashlib.blake2b(digest_size=8)
        try:
            self._feed(value)
        except Exception:  # too deep, or a foreign class that does not like to be asked
            self.opaque.append((label, value))
            return "unknown"
        return self._hash.hexdigest()

    def _feed(self, value: Any) -> None:
        kind, update = type(value), self._hash.update
        module = str(getattr(kind, "__module__", ""))  # some classes of other languages have none
        update(f"{module}.{kind.__qualname__}:".encode())
        if isinstance(value, str | PurePath) and PurePath(value).is_absolute():
            pass  # where something lies, in a temporary folder perhaps, is not what it is
        elif value is None or isinstance(value, _PLAIN):
            update(repr(value).encode())
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            update(f"{value.dtype}{value.shape}".encode())
            update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        elif id(value) in self._layers or module.partition(".")[0] in _ONLOOKING_PACKAGES:
            pass  # the layers are looked into one by one
        elif isinstance(value, type | types.BuiltinFunctionType):
            update(f"{value.__module__}.{value.__qualname__}".encode())
        elif kind in (dict, list, tuple) and (packed := _packed(value)) is not None:
            update(packed)
        elif id(value) in self._met:
            update(f"@{self._met[id(value)]}".encode())
        else:
            self._met[id(value)] = len(self._met)
            self._alive.append(value)
            self._nodes += 1
            parts = self._parts(value) if self._nodes <= _MAX_NODES else None
            if parts is None:
                self.opaque.append((self._label, value))
            for part in parts or ():
                self._feed(part)
            update(b";")

    def _parts(self, value: Any) -> list[Any] | None:
        """What the object is made of; None if that cannot be seen."""
        kind = type(value)
        module = str(getattr(kind, "__module__", ""))
        if module.startswith("mujoco."):  # its other objects are pictures and options
            names = {"MjData": MUJOCO_DATA, "MjModel": _MUJOCO_MODEL}.get(kind.__qualname__, ())
            return [getattr(value, name, None) for name in names]
        if module.startswith(_FOREIGN):
            return None
        if isinstance(value, gym.Space):
            return _space_parts(value)
        if isinstance(value, types.ModuleType):
            return [value.__name__]
        if isinstance(value, types.FunctionType):
            return [value.__qualname__, *(_contents(cell) for cell in value.__closure__ or ())]
        if isinstance(value, types.MethodType):
            return [value.__func__.__qualname__, value.__self__]
        if isinstance(value, np.random.Generator):
            return [value.bit_generator.state]
        if isinstance(value, Mapping):
            return [part for item in value.items() for part in item] + _own_attributes(value)
        if isinstance(value, list | tuple | deque):
            return [*value, *_own_attributes(value)]
        if isinstance(value, set | frozenset):
            return self._in_any_order(value)
        if isinstance(value, np.ndarray):
            return list(value.ravel().tolist())
        if hasattr(value, "__dict__") and kind.__basicsize__ <= _PLAIN_SIZE:
            return [vars(value)]
        if module.startswith("torch") and hasattr(value, "detach"):
            return [value.detach().cpu().numpy()]
        return _reduced(value)

    def _in_any_order(self, values: set[Any] | frozenset[Any]) -> list[Any]:
        """Sets have no order of their own. Objects that are known by their place in memory do not have the same one twice."""
        if len(values) > 1 and any(_known_by_place(type(value)) for value in values):
            self.unordered.append(self._label)
            return [len(values)]
        try:
            return sorted(values)
        except TypeError:
            return sorted(values, key=repr)


def _known_by_place(kind: type) -> bool:
    """Whether its objects are told apart by where they lie in memory."""
    return bool(getattr(kind, "__hash__", None) == object.__hash__)


def _packed(value: Any) -> bytes | None:
    """A container of nothing but plain values, in one go: tables of a hundred thousand numbers are not rare."""
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError):
        return None


def _space_parts(space: gym.Space[Any]) -> list[Any]:
    """Not its generator, which Gymnasium seeds differently in each process, and not the order of a text's characters."""
    if isinstance(space, gym.spaces.Dict):
        return [part for item in space.spaces.items() for part in item]
    if isinstance(space, gym.spaces.Tuple):
        return list(space.spaces)
    return [getattr(space, name, None) for name in ("low", "high", "n", "nvec", "start")] + [str(space.shape)]


def _own_attributes(value: Any) -> list[Any]:
    """Those that a class derived from a container adds."""
    own = getattr(value, "__dict__", None)
    return [own] if own else []


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None


def _reduced(value: Any) -> list[Any] | None:
    """The parts that the object would be copied from: every class knows them, or refuses."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:  # whatever a foreign class answers
        return None
    if isinstance(reduced, str):
        return [reduced]
    make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    return [make, arguments, state, list(items or ()), list(pairs or ())]


def _shared_values(layers: list[gym.Env[Any, Any]]) -> Iterator[tuple[str, Any]]:
    """Data that the environments' classes hold, or that their methods find in their modules; and libraries with handles."""
    seen = set()
    for cls in (cls for layer in layers for cls in type(layer).__mro__):
        if cls.__module__.partition(".")[0] in ("gymnasium", "rl_training", "builtins", "typing") or cls in seen:
            continue
        seen.add(cls)
        for name, value in list(vars(cls).items()):
            if not name.startswith("__") and isinstance(value, _DATA):
                yield f"shared:{cls.__name__}.{name}", value
        for name, namespace in _globals_used(cls):
            value = namespace.get(name)
            if isinstance(value, types.ModuleType):
                if value.__name__ in _HANDLES:
                    yield f"shared:{value.__name__}", value
            elif isinstance(value, _DATA):
                yield f"shared:{cls.__module__}.{name}", value


@lru_cache(maxsize=256)
def _globals_used(cls: type) -> tuple[tuple[str, dict[str, Any]], ...]:
    """(name, namespace) of each global variable that the class's own methods mention."""
    found: dict[str, dict[str, Any]] = {}
    for member in vars(cls).values():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(function, types.FunctionType):
            for name in _global_names(function.__code__):
                found[name] = function.__globals__
    return tuple(sorted(found.items(), key=lambda item: item[0]))


def _global_names(code: types.CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL"):
            yield str(instruction.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)
