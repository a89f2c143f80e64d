"""What belongs to the owner of a recorded function: its tensors, and the numbers and flags that its code may read.

Found by walking from the owner through attributes, modules, dataclasses, dicts and lists. An attribute named in the class
attribute `unwatched` changes between calls and is read by no recorded function: a count of updates, the newest metrics.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from enum import Enum
from operator import getitem, is_
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OWN_OF_MODULES = frozenset(nn.Module().__dict__) - {"training", "_parameters", "_buffers", "_modules"}
"""Attributes that torch keeps for itself in every module; of these, hooks are looked at apart."""
FOREIGN = (
    "builtins",
    "collections",
    "functools",
    "gymnasium",
    "numpy",
    "random",
    "threading",
    "torch",
    "types",
    "weakref",
)
"""Packages whose objects are not looked into, modules of torch excepted."""
_GLOBAL_HOOKS = (
    nn.modules.module._global_forward_hooks,
    nn.modules.module._global_forward_pre_hooks,
    nn.modules.module._global_backward_hooks,
    nn.modules.module._global_backward_pre_hooks,
)
PLAIN = (int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device)
NONE: frozenset[str] = frozenset()

Keyed = dict[Any, Any] | list[Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A dict of attributes, a dict or a list, with what it held."""

    content: Keyed
    path: str
    unwatched: frozenset[str]
    before: Keyed

    def place(self, key: Any) -> str:
        return (
            f"{self.path}.{key}" if isinstance(self.content, dict) and isinstance(key, str) else f"{self.path}[{key}]"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One value and where it stands."""

    content: Keyed
    key: Any
    value: Any
    path: str

    def now(self) -> Any:
        return _get(self.content, self.key)


class Owned:
    """All that an owner has at one moment."""

    def __init__(self, owner: object):
        self.tensors: list[Tensor] = []
        self.modules: list[nn.Module] = []
        self.opaque: str | None = None
        """The first part that code may read and whose changes nobody can see."""
        self.generators: list[Any] = []
        """Sources of random numbers that belong to it."""
        self.containers: list[Container] = []
        self._watched: list[Entry] = []
        self._bound: list[Entry] = []
        self._sized: list[Keyed] = []
        self._later: list[Entry] = []
        seen: set[int] = set()
        self._walk(owner, type(owner).__name__, seen, watched=True)
        while self._later:  # what is reached on a watched way, too, is watched
            self._add(self._later.pop(0), seen, watched=False)
        self.memories = {memory_of(tensor) for tensor in self.tensors}

    def watch(self, read: list[Tensor]) -> Watch:
        """Notices changes of settings and parts, and of which tensors those are that were read."""
        hooks = [getattr(module, name) for module in self.modules for name in HOOKS]
        return Watch([*self._watched, *self._bound], self._sized, hooks, read)

    def hooked(self) -> str | None:
        """The first module or tensor with a hook, which a recorded function would not call."""
        for module in self.modules:
            if any(getattr(module, name) for name in HOOKS):
                return type(module).__name__
        if any(_hooked(tensor) for tensor in self.tensors):
            return "a tensor"
        return "all modules" if any(_GLOBAL_HOOKS) else None

    def _walk(self, value: Any, path: str, seen: set[int], *, watched: bool) -> None:
        if id(value) in seen:
            return
        seen.add(id(value))
        if isinstance(value, nn.Module):
            self.modules.append(value)
        content: Keyed
        if isinstance(value, dict | list):
            content, unwatched = value, NONE
        elif isinstance(value, tuple):
            content, unwatched = list(value), NONE
        elif isinstance(value, torch.Generator | np.random.Generator | random.Random):
            self.generators.append(value)
            return
        elif isinstance(value, nn.Module) or _looked_into(value):
            content, unwatched = value.__dict__, getattr(type(value), "unwatched", NONE)
        else:
            if watched and self.opaque is None and _changes_unseen(value):
                self.opaque = path
            return
        here = Container(content, path, unwatched, content.copy())
        self.containers.append(here)
        if watched and content is not here.before and not isinstance(value, tuple):
            self._sized.append(content)
        keys: Any = list(content) if isinstance(content, dict) else range(len(content))
        for key in keys:
            if key not in OWN_OF_MODULES and not getattr(type(content[key]), "outside_of_steps", False):
                inner = isinstance(value, nn.Module) and key in ("_parameters", "_buffers", "_modules")
                entry = Entry(content, key, content[key], path if inner else here.place(key))
                if key in unwatched:
                    self._later.append(entry)
                elif inner:
                    self._walk(entry.value, path, seen, watched=watched)
                else:
                    self._add(entry, seen, watched=watched)

    def _add(self, entry: Entry, seen: set[int], *, watched: bool) -> None:
        if isinstance(entry.value, Tensor):
            self.tensors.append(entry.value)
            if watched:
                self._bound.append(entry)
            return
        if watched:
            self._watched.append(entry)
        if not _is_setting(entry.value):
            self._walk(entry.value, entry.path, seen, watched=watched)


class Watch:
    """Tells whether what a recording rests on is still as it was. It is asked before every call, so it must be quick."""

    def __init__(self, entries: list[Entry], sized: list[Keyed], hooks: list[Any], read: list[Tensor]):
        self._entries = entries
        self._sized, self._sizes = sized, list(map(len, sized))
        self._contents, self._keys = [entry.content for entry in entries], [entry.key for entry in entries]
        self._values = [entry.value for entry in entries]
        self._hooks, self._last_hook = hooks, RemovableHandle.next_id
        self._read, self._places = read, list(map(_place, read))

    def holds(self) -> bool:
        try:
            values = list(map(getitem, self._contents, self._keys))
        except (KeyError, IndexError):  # an attribute is gone
            return False
        if not all(map(is_, values, self._values)):
            if not all(map(_same, values, self._values)):
                return False
            self._values = values  # equal numbers, other objects
        if self._last_hook != RemovableHandle.next_id:  # torch counts all hooks that anybody registers
            if self._hooked():
                return False
            self._last_hook = RemovableHandle.next_id
        return list(map(len, self._sized)) == self._sizes and list(map(_place, self._read)) == self._places

    def _hooked(self) -> bool:
        return any(self._hooks) or any(_GLOBAL_HOOKS) or any(map(_hooked, self._read))

    def difference(self) -> str:
        """What has changed, in words."""
        for entry in self._entries:
            now = entry.now()
            if not _same(now, entry.value):
                if _is_setting(entry.value):
                    return f"{entry.path} changed from {entry.value!r} to {now!r}"
                return f"{entry.path} is another object now"
        if list(map(len, self._sized)) != self._sizes:
            return "an attribute, item or module was added or removed"
        return "there is a hook now" if self._hooked() else "a tensor is another one now, or lies elsewhere"


class Undo:
    """Brings the owner's tensors and attributes, and the random streams, back to where they were."""

    def __init__(self, owned: Owned, *generators: torch.Generator | None):
        self._containers = owned.containers
        self._copies = [(memory, memory.clone()) for memory in _memories(owned.tensors)]
        on_gpu = any(tensor.is_cuda for tensor in owned.tensors)
        self._global, self._global_cuda = torch.random.get_rng_state(), torch.cuda.get_rng_state() if on_gpu else None
        given = [generator for generator in generators if generator is not None]
        self._streams = [(generator, generator.get_state()) for generator in given]
        others = [generator for generator in owned.generators if not any(generator is one for one in given)]
        self._others = [(generator, _stream(generator)) for generator in others]
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002

    @torch.no_grad()
    def __call__(self) -> None:
        for container in self._containers:
            if isinstance(container.content, dict):
                for key in [key for key in container.content if key not in container.before]:
                    del container.content[key]
                for key, value in container.before.items():  # type: ignore[union-attr]
                    if _get(container.content, key) is not value:
                        container.content[key] = value
            else:
                container.content[:] = container.before
        for memory, before in self._copies:
            memory.copy_(before)
        torch.random.set_rng_state(self._global)
        if self._global_cuda is not None:
            torch.cuda.set_rng_state(self._global_cuda)
        for generator, stream in self._streams:
            generator.set_state(stream)
        for other, stream in self._others:
            _rewind(other, stream)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002

    def drew(self) -> bool:
        """Whether numbers came from elsewhere than the given generator and torch's own, which a recording would not draw again."""
        moved = any(repr(_stream(other)) != repr(stream) for other, stream in self._others)
        return moved or random.getstate() != self._python or repr(np.random.get_state()) != repr(self._numpy)  # noqa: NPY002

    def values(self) -> list[Tensor]:
        """What the owner's tensors hold now, copied, in a fixed order."""
        return [memory.clone() for memory, _ in self._copies]

    def before(self) -> list[Tensor]:
        """What they held at the start, in the same order."""
        return [before for _, before in self._copies]

    def assigned(self) -> str | None:
        """The first attribute or item that is not what it was: a repeated recording would not assign it again."""
        for container in self._containers:
            content, before = container.content, container.before
            if isinstance(content, list):
                keys: Any = range(max(len(content), len(before)))
            else:
                keys = {**content, **before} if content.keys() != before.keys() else content  # type: ignore[dict-item,union-attr]
            for key in keys:
                now, then = _get(content, key), _get(before, key)
                outside = key in container.unwatched or getattr(type(now), "outside_of_steps", False)
                if not outside and not _same(now, then):
                    return container.place(key)
        return None


def _stream(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    return generator.getstate() if isinstance(generator, random.Random) else generator.bit_generator.state


def _rewind(generator: Any, stream: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.tensor(stream, dtype=torch.uint8))
    elif isinstance(generator, random.Random):
        generator.setstate(stream)
    else:
        generator.bit_generator.state = stream


def memory_of(tensor: Tensor) -> int:
    """Names the memory that a tensor, perhaps a view, lies in."""
    return tensor.untyped_storage().data_ptr()


def _memories(tensors: list[Tensor]) -> list[Tensor]:
    """All of the memory that the tensors lie in, each piece once, as vectors."""
    found: dict[int, Tensor] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in found:
            size = (storage.nbytes() // tensor.element_size(),)
            found[storage.data_ptr()] = tensor.detach().new_empty(0).set_(storage, 0, size, (1,))
    return list(found.values())


def _same(now: Any, before: Any) -> bool:
    """Whether code cannot tell two values apart; 1, 1.0 and True it can."""
    if now is before:
        return True
    settings = type(now) is type(before) and _is_setting(before) and _is_setting(now)
    return settings and now == before and repr(now) == repr(before)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.requires_grad, tensor.stride()


def _hooked(tensor: Tensor) -> bool:
    return bool(tensor.is_leaf and tensor._backward_hooks)


def _get(content: Keyed, key: Any) -> Any:
    try:
        return content[key]
    except (KeyError, IndexError):
        return None


def _is_setting(value: Any) -> bool:
    """A number, flag, name or the like, which code may depend on and which is compared by value."""
    if isinstance(value, PLAIN):
        return True
    if isinstance(value, tuple | frozenset):
        return all(_is_setting(part) for part in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen and all(_is_setting(getattr(value, field.name)) for field in dataclasses.fields(value))


def _changes_unseen(value: Any) -> bool:
    if isinstance(value, set | deque | bytearray | np.ndarray):
        return True
    slots = hasattr(type(value), "__slots__") and not hasattr(value, "__dict__") and not callable(value)
    return slots and type(value).__module__.split(".")[0] not in FOREIGN


def _looked_into(value: Any) -> bool:
    """Whether the attributes of an object count: of ours, of a user's, and of torch's optimisers, which hold step sizes."""
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return False
    return (
        isinstance(value, torch.optim.Optimizer | SimpleNamespace)
        or type(value).__module__.split(".")[0] not in FOREIGN
    )
