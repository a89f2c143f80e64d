"""The actions of one episode, in one array."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

MAX_ACTIONS = 1_000_000
MAX_BYTES = 8_000_000


class ActionLog:
    """Grows with the episode up to a limit, after which it keeps nothing: replaying more would take minutes anyway."""

    def __init__(self, space: gym.Space[Any]):
        self._space = space
        self._rows: Any = None
        self._count = self._room = 0
        self.full = False

    def clear(self) -> None:
        self._count, self.full = 0, False

    def append(self, action: Any) -> None:
        if self._count == self._room:
            if not self.full:
                self._grow(np.asarray(action))
            if self.full:
                return
        self._rows[self._count] = action
        self._count += 1

    def array(self) -> Any:
        """The actions so far as one array, or None if there are none."""
        return self._rows[: self._count].copy() if self._count else None

    def native(self, stored: Any) -> Any:
        """A stored action as the environment was given it: a Discrete one gets back its NumPy integer."""
        if isinstance(self._space, gym.spaces.Discrete):
            return self._space.dtype.type(stored)
        return np.array(stored)

    def _grow(self, action: Any) -> None:
        if self._rows is None:
            self._rows = np.empty((64, *action.shape), self._stored_dtype(action))
        elif self._count:
            allowed = max(min(MAX_ACTIONS, MAX_BYTES // max(self._rows[0].nbytes, 1)), 1)
            if self._count >= allowed:
                self._rows, self._count, self._room, self.full = None, 0, 0, True
                return
            grown = np.empty((min(2 * self._count, allowed), *self._rows.shape[1:]), self._rows.dtype)
            grown[: self._count] = self._rows
            self._rows = grown
        self._room = len(self._rows)

    def _stored_dtype(self, action: Any) -> Any:
        if isinstance(self._space, gym.spaces.Discrete):
            first, last = int(self._space.start), int(self._space.start) + int(self._space.n) - 1
            return np.promote_types(np.min_scalar_type(first), np.min_scalar_type(last))
        return action.dtype
