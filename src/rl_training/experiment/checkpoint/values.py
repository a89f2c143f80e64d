"""What a value in a saved state must be: the checks of single values and arrays, with messages that say where and what."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from torch import Tensor

from rl_training.utils.errors import CheckpointError
from rl_training.utils.printable import quoted

MAX_WORD: Final = 2**128
"""Size of the largest integer in the state of a random generator."""


class Misfit(CheckpointError):
    """A saved state of another form than the run's."""


def require(condition: bool, path: str, problem: str) -> None:
    if not condition:
        raise Misfit(f"{path[:200]}: {problem}")


def described(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.dtype} {shape_text(tuple(value.shape))}"
    return f"{len(value)} values" if isinstance(value, list | tuple | dict) else quoted(value)


def shape_text(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in shape)})"


def fit_array(found: Any, expected: Tensor | np.ndarray, path: str, shape: tuple[int | None, ...]) -> None:
    """The same kind and dtype; None in `shape` stands for any length."""
    same_kind = isinstance(found, Tensor) if isinstance(expected, Tensor) else isinstance(found, np.ndarray)
    fits = (
        same_kind
        and found.dtype == expected.dtype
        and len(found.shape) == len(shape)
        and all(wanted is None or size == wanted for size, wanted in zip(found.shape, shape))
    )
    require(fits, path, f"expected {expected.dtype} {shape_text(shape)}, got {described(found)}")


def fit_number(found: Any, expected: Any, path: str, _: int) -> None:
    require(
        isinstance(found, int | float) and not isinstance(found, bool), path, f"expected a number, got {quoted(found)}"
    )
    require(isinstance(found, float) or abs(found) <= MAX_WORD, path, "is too large")


def fit_whole(found: Any, path: str, low: int, high: int) -> None:
    fits = isinstance(found, int) and not isinstance(found, bool) and low <= found <= high
    require(fits, path, f"expected a whole number within its range, got {quoted(found)}")


def fit_keys(found: Any, keys: Any, path: str) -> None:
    require(isinstance(found, dict), path, f"expected a mapping, got {described(found)}")
    different = sorted(map(str, set(keys) ^ set(found)))
    require(not different, path, f"has other keys than expected: {quoted(different)}")


def fit_rows(tree: Any, count: int, path: str) -> None:
    """Every array in `tree` has `count` rows."""
    for array in tree.values() if isinstance(tree, dict) else [tree]:
        if array is not None:
            rows = len(array) if isinstance(array, Tensor | np.ndarray) and array.ndim else None
            require(rows == count, path, f"expected {count:,} rows, got {described(array)}")
