"""The process-wide random generators of `random`, NumPy and torch: user code may draw from them, so runs must not mix them up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from rl_training.utils.process_random import process_random_state, set_process_random_state


def global_rng_state() -> dict[str, Any]:
    """State of the process-wide generators of `random`, NumPy and torch (user code may draw from them)."""
    return {
        **process_random_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def set_global_rng_state(state: dict[str, Any]) -> None:
    """Restores what `global_rng_state` returned."""
    set_process_random_state({"python": state["python"], "numpy": state["numpy"]})
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def preserved_global_rng() -> Iterator[None]:
    """Whatever the block draws from the process-wide generators, they continue after it as if it had not run."""
    state = global_rng_state()
    try:
        yield
    finally:
        set_global_rng_state(state)


@contextmanager
def seeded_global_rng(seed: int) -> Iterator[None]:
    """Runs the block (network initialisation) under a known global seed and in one thread, then puts everything back.

    One thread, because the last bits of an orthogonal initialisation depend on how many share the work.
    """
    threads = torch.get_num_threads()
    with preserved_global_rng():
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


class GlobalRandomStream:
    """A run's own state of the process-wide generators, swapped in while it trains.

    User code inside a run (an environment, a callback) may draw from them: so they are seeded with the run, saved with it, and the
    program around the run keeps its own.
    """

    def __init__(self, seed: int):
        with seeded_global_rng(seed):
            self._state = global_rng_state()
        self._active = False

    @contextmanager
    def active(self) -> Iterator[None]:
        with preserved_global_rng():
            set_global_rng_state(self._state)
            self._active = True
            try:
                yield
            finally:
                self._active = False
                self._state = global_rng_state()

    def state_dict(self) -> dict[str, Any]:
        return global_rng_state() if self._active else self._state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with preserved_global_rng():
            set_global_rng_state(state)  # so that a state that does not fit fails here and not in mid-run
        self._state = state
