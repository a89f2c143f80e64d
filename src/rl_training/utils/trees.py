"""Comparing state trees: nested dicts, lists and tuples of tensors, arrays and JSON values."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MISSING = object()


def differing_paths(a: Any, b: Any, ignore: Collection[str] = ()) -> list[str]:
    """The dotted paths, like "runtime.envs.obs", at which two state trees differ; empty if they are identical.

    Tensors and arrays must agree in kind, dtype, shape and every bit, so that NaN equals itself, 0.0 differs from -0.0, and the
    device does not matter. Plain values must agree in type too: 1, 1.0 and True are three values. A missing key or item, or a
    container of another kind, is reported at its own path. The root has the path "".

    A pattern in `ignore` leaves out the paths that begin with it, part by part: "runtime.timer" covers that entry and all below
    it but not "runtime.timers". Each part may hold the wildcards of `fnmatch`, so "optimizers.*.lr" covers every optimiser's;
    a "*" stays within one part.
    """
    patterns = [pattern.split(".") for pattern in ignore]
    return list(_differences(a, b, "", patterns))


def _differences(a: Any, b: Any, path: str, ignore: list[list[str]]) -> Iterator[str]:
    if path and _ignored(path.split("."), ignore):
        return
    if any(isinstance(a, kind) and isinstance(b, kind) for kind in (list, tuple)):
        a, b = dict(enumerate(a)), dict(enumerate(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in {**a, **b}:
            below = f"{path}.{key}" if path else str(key)
            yield from _differences(a.get(key, _MISSING), b.get(key, _MISSING), below, ignore)
    elif not _same_leaf(a, b):
        yield path


def _ignored(parts: list[str], ignore: list[list[str]]) -> bool:
    return any(
        len(pattern) <= len(parts) and all(fnmatchcase(part, wanted) for part, wanted in zip(parts, pattern))
        for pattern in ignore
    )


def _same_leaf(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Tensor | np.ndarray) or isinstance(b, Tensor | np.ndarray) or type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))
    return bool(a == b)


def _bytes(tensor: Tensor) -> Tensor:
    """The tensor's memory as a flat uint8 tensor on the CPU."""
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8)


def count_arrays(tree: Any) -> int:
    """How many tensors and arrays a state tree holds."""
    if isinstance(tree, Mapping):
        return sum(count_arrays(value) for value in tree.values())
    if isinstance(tree, list | tuple):
        return sum(count_arrays(value) for value in tree)
    return int(isinstance(tree, Tensor | np.ndarray))
