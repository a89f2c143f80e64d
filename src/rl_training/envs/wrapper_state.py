"""What wrappers remember, as a digest.

A wrapper may keep something from one episode to the next: running statistics, counters, a generator of its own. Replaying the
current episode does not bring that back, and need not show in the observations. So the digests before and after are compared.
"""

from __future__ import annotations

import hashlib
import types
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import wrappers

# They look on, and change nothing that the policy sees.
_ONLOOKERS = (
    wrappers.RecordEpisodeStatistics,
    wrappers.RecordVideo,
    wrappers.RenderCollection,
    wrappers.HumanRendering,
)
_NOT_STATE = ("env", "_cached_spec", "_saved_kwargs", "_metadata")


class _Plain:
    pass


_PLAIN_SIZE = _Plain.__basicsize__
"""An object of this size has nothing but its `__dict__`; tensors, generators of other libraries and the like are larger."""


class _Opaque(Exception):
    """An object that cannot be looked into."""


def wrappers_digest(chain: Sequence[gym.Env[Any, Any]]) -> str | None:
    """A digest of the wrappers' attributes; None where no wrapper has any to compare, "unknown" where one cannot be looked into."""
    watched = [wrapper for wrapper in chain if type(wrapper) not in _ONLOOKERS]
    if not watched:
        return None
    digest = hashlib.sha256()
    try:
        for wrapper in watched:
            attributes = {name: value for name, value in vars(wrapper).items() if name not in _NOT_STATE}
            _feed(digest, [type(wrapper), attributes])
    except (_Opaque, RecursionError):
        return "unknown"
    return digest.hexdigest()


def _feed(digest: Any, value: Any, within: tuple[int, ...] = ()) -> None:
    """Adds a value to the digest, part by part; `within` are the objects it is a part of."""
    digest.update(f"{type(value).__module__}.{type(value).__qualname__}:".encode())
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic):
        digest.update(repr(value).encode())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        digest.update(f"{value.__module__}.{value.__qualname__}".encode())
    elif isinstance(value, types.MethodType):
        digest.update(value.__func__.__qualname__.encode())
    elif (
        not isinstance(value, gym.Env | types.ModuleType) and id(value) not in within
    ):  # environments are compared apart
        for part in _parts(value):
            _feed(digest, part, (*within, id(value)))
        digest.update(b";")


def _parts(value: Any) -> list[Any]:
    if isinstance(value, np.random.Generator):
        return [value.bit_generator.state]
    if isinstance(value, gym.Space):
        return [repr(value)]  # not its generator, which Gymnasium seeds differently in each process
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in item]
    if isinstance(value, list | tuple | deque):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, np.ndarray):
        return value.ravel().tolist()
    if hasattr(value, "__dict__") and type(value).__basicsize__ <= _PLAIN_SIZE:
        return [vars(value)]
    raise _Opaque
