"""The generators that everything in a process shares: those of `random`, NumPy and, where it is loaded, torch.

Environments run in workers too, so this does not import torch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_NUMPY_STATE = ("name", "keys", "position", "has_gauss", "cached")


def process_random_state() -> dict[str, Any]:
    """Their states as arrays and JSON values; "torch" is there only where torch is loaded."""
    state: dict[str, Any] = {
        "python": python_tree(random.getstate()),
        "numpy": dict(zip(_NUMPY_STATE, np.random.get_state(legacy=True))),  # noqa: NPY002 - the global one is meant
    }
    if (generator := torch_generator()) is not None:
        state["torch"] = generator.get_state().numpy()
    return state


def set_process_random_state(state: dict[str, Any]) -> None:
    """Restores what `process_random_state` returned."""
    numpy_state = state["numpy"]
    random.setstate(python_from_tree(state["python"]))
    np.random.set_state(tuple(numpy_state[name] for name in _NUMPY_STATE))  # noqa: NPY002
    generator = torch_generator()
    if generator is not None and "torch" in state:
        generator.set_state(torch_state(state["torch"]))


def python_tree(state: tuple[Any, ...]) -> dict[str, Any]:
    """What `random.getstate()` returned, as a state tree."""
    version, internal, gauss = state
    return {"version": version, "internal": np.array(internal, dtype=np.int64), "gauss": gauss}


def python_from_tree(tree: dict[str, Any]) -> tuple[Any, ...]:
    return tree["version"], tuple(tree["internal"].tolist()), tree["gauss"]


def seed_process_random(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    if (generator := torch_generator()) is not None:
        generator.manual_seed(seed)


@contextmanager
def preserved_process_random() -> Iterator[None]:
    """Whatever the block draws, the generators go on after it as if it had not run."""
    state = process_random_state()
    try:
        yield
    finally:
        set_process_random_state(state)


def torch_state(array: Any) -> Any:
    """A state as torch wants it; None while nobody has imported torch."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.from_numpy(np.array(array))


def torch_generator() -> Any:
    """torch's generator on the CPU, or None while nobody has imported torch."""
    return getattr(sys.modules.get("torch"), "default_generator", None)
