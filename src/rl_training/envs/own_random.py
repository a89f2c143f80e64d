"""The process-wide generators (`random`, NumPy, torch) as one environment sees them.

An environment that draws from them instead of its own `np_random` would share them with the other environments of the process,
and nobody could say afterwards who drew what. In a worker they are the environment's alone. Elsewhere the first calls are
watched; an environment that draws gets generators of its own, put in place while it is called. All others pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from rl_training.utils.process_random import (
    preserved_process_random,
    process_random_state,
    seed_process_random,
    set_process_random_state,
)
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import same_tree

WATCHED_CALLS = 8

P = ParamSpec("P")
R = TypeVar("R")


class OwnRandom:
    """Attributes:
    in_worker: the process has no other environment.
    draws: the environment was seen to draw.
    idle: nothing has to be done around a call.
    """

    def __init__(self) -> None:
        self.in_worker = self.draws = self.idle = False
        self._watched = self._seed = 0
        self._state: dict[str, Any] | None = None

    def take_process(self) -> None:
        """In a worker everything that is drawn is this environment's."""
        self.in_worker = self.idle = True

    @property
    def kept(self) -> bool:
        """The generators belong to the environment's state."""
        return self.in_worker or self.draws

    def seed(self, seed: int) -> None:
        """For a seeded reset: what is drawn depends on the seed too."""
        self._seed = seed
        if self.in_worker:
            seed_process_random(seed)
        elif not self.idle:
            with preserved_process_random():
                seed_process_random(seed)
                self._state = process_random_state()

    def watch(self) -> None:
        """Watches one more call; some environments draw only in a reset without a seed."""
        if self.idle and not self.in_worker:
            self._watched, self.idle = WATCHED_CALLS - 1, False
            self.seed(derive_seed(self._seed, "watched again"))

    def state(self) -> dict[str, Any] | None:
        """The generators as the next call will find them, where that is known."""
        return process_random_state() if self.in_worker else self._state

    def restore(self, state: dict[str, Any]) -> None:
        if self.in_worker:
            set_process_random_state(state)
        else:
            self.draws, self.idle, self._state = True, False, state

    def call(self, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls a method of the environment with its own generators in place."""
        if self.idle:
            return method(*args, **kwargs)
        with preserved_process_random():
            if self._state is not None:
                set_process_random_state(self._state)
            before = process_random_state()
            result = method(*args, **kwargs)
            after = process_random_state()
        self._watched += 1
        self.draws = self.draws or not same_tree(before, after)
        self.idle = not self.draws and self._watched >= WATCHED_CALLS
        self._state = None if self.idle else after
        return result
