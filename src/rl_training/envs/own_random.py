"""The process-wide generators (`random`, NumPy, torch) as one environment sees them.

An environment that draws from them instead of its own `np_random` would share them with the other environments of the process,
and nobody could say afterwards who drew what. In a worker they are the environment's alone. Elsewhere the first calls are
watched; an environment that draws gets generators of its own, put in place while it is called. All others pay nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.random import mtrand

from rl_training.utils.process_random import (
    preserved_process_random,
    process_random_state,
    python_from_tree,
    python_tree,
    seed_process_random,
    set_process_random_state,
    torch_generator,
    torch_state,
)
from rl_training.utils.seeding import derive_seed

WATCHED_CALLS = 8

P = ParamSpec("P")
R = TypeVar("R")


class OwnRandom:
    """Attributes:
    in_worker: the process has no other environment.
    idle: nothing has to be done around a call.
    kinds: the generators it was seen to draw from: "python", "numpy", "torch".
    """

    def __init__(self) -> None:
        self.in_worker = self.idle = False
        self.kinds: frozenset[str] = frozenset()
        self._watched = self._seed = 0
        self._seen: dict[str, Any] | None = None
        """While it is watched: the generators as the next call will find them."""
        self._own: _Generators | None = None
        """Afterwards, if it draws."""

    def take_process(self) -> None:
        """In a worker everything that is drawn is this environment's."""
        self.in_worker = self.idle = True

    def seed(self, seed: int) -> None:
        """For a seeded reset: what is drawn depends on the seed too."""
        self._seed = seed
        if self.in_worker:
            seed_process_random(seed)
        elif not self.idle:
            with preserved_process_random():
                seed_process_random(seed)
                self._take(process_random_state())

    def watch(self) -> None:
        """Watches one more call; some environments draw only in a reset without a seed."""
        if self.idle and not self.in_worker:
            self._watched, self.idle = WATCHED_CALLS - 1, False
            self.seed(derive_seed(self._seed, "watched again"))

    def state(self) -> dict[str, Any] | None:
        """The generators as the next call will find them, where that is known."""
        if self.in_worker:
            return process_random_state()
        return self._seen if self._own is None else self._own.tree()

    def kept(self, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """The part of a state that belongs to the environment; None if it draws from nothing."""
        if self.in_worker or state is None:
            return state
        return {kind: state[kind] for kind in sorted(self.kinds)} or None

    def restore(self, state: dict[str, Any]) -> None:
        """Takes up what `kept` returned."""
        if self.in_worker:
            set_process_random_state(state)
        else:
            self.kinds, self.idle, self._watched = frozenset(state), False, WATCHED_CALLS
            self._take(state)

    def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a method of the environment with its own generators in place."""
        if self.idle:
            return method(*args, **kwargs)
        if self._own is not None:
            with self._own.in_place():
                return method(*args, **kwargs)
        with preserved_process_random():
            if self._seen is not None:
                set_process_random_state(self._seen)
            before = process_random_state()
            result = method(*args, **kwargs)
            after = process_random_state()
        self._watched += 1
        self.kinds |= moved(before, after)
        self._take(after)
        return result

    def _take(self, state: dict[str, Any]) -> None:
        """A second normal number that NumPy keeps for the next call is not kept here: it could not be put in place."""
        if "numpy" in state:
            state = {**state, "numpy": {**state["numpy"], "has_gauss": 0, "cached": 0.0}}
        if self._watched < WATCHED_CALLS:
            self._seen = state
            return
        self._seen, self.idle = None, not self.kinds
        self._own = _Generators({kind: state[kind] for kind in self.kinds}) if self.kinds else None


class _Generators:
    """Generators that can be put in place of the process's quickly."""

    def __init__(self, state: dict[str, Any]):
        self._python = python_from_tree(state["python"]) if "python" in state else None
        self._torch = torch_state(state["torch"]) if "torch" in state else None
        self._numpy: np.random.MT19937 | None = None
        if "numpy" in state:
            self._numpy = np.random.MT19937()
            key, position = state["numpy"]["keys"], state["numpy"]["position"]
            self._numpy.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": position}}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        python = random.getstate() if self._python is not None else None
        numpy = mtrand.get_bit_generator() if self._numpy is not None else None
        torch = torch_generator().get_state() if self._torch is not None else None
        if self._python is not None:
            random.setstate(self._python)
        if self._numpy is not None:
            mtrand.set_bit_generator(self._numpy)
        if self._torch is not None:
            torch_generator().set_state(self._torch)
        try:
            yield
        finally:
            if python is not None:
                self._python = random.getstate()
                random.setstate(python)
            if numpy is not None:
                mtrand.set_bit_generator(numpy)
            if torch is not None:
                self._torch = torch_generator().get_state()
                torch_generator().set_state(torch)

    def tree(self) -> dict[str, Any]:
        """As `process_random_state` would give them."""
        tree: dict[str, Any] = {}
        if self._python is not None:
            tree["python"] = python_tree(self._python)
        if self._numpy is not None:
            state: Any = self._numpy.state["state"]
            numbers = {"keys": np.array(state["key"]), "position": int(state["pos"]), "has_gauss": 0, "cached": 0.0}
            tree["numpy"] = {"name": "MT19937", **numbers}
        if self._torch is not None:
            tree["torch"] = self._torch.numpy().copy()
        return tree


def moved(before: dict[str, Any], after: dict[str, Any]) -> frozenset[str]:
    """Which generators were drawn from in between."""
    found = set()
    if not np.array_equal(before["python"]["internal"], after["python"]["internal"]):
        found.add("python")
    old, new = before["numpy"], after["numpy"]
    if old["position"] != new["position"] or not np.array_equal(old["keys"], new["keys"]):
        found.add("numpy")
    if "torch" in before and not np.array_equal(before["torch"], after["torch"]):
        found.add("torch")
    return frozenset(found)
