"""Batches of any form: dataclasses, dicts, lists and tuples of tensors, and what else a step is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

BatchT = TypeVar("BatchT")

ObsTensor = Tensor | dict[str, Tensor]
"""A batch of observations: (B, *shape), or one such tensor per key of a Dict space."""


def count_of(obs: ObsTensor) -> int:
    """How many observations a batch holds."""
    return len(next(iter(obs.values())) if isinstance(obs, dict) else obs)


def tensors_of(values: Any) -> list[Tensor]:
    """The tensors in a batch, in order."""
    tensors: list[Tensor] = []
    flatten(values, tensors, [])
    return tensors


def flatten(values: Any, tensors: list[Tensor], layout: list[Hashable]) -> None:
    """Appends the tensors of a batch to `tensors`, and everything else that tells batches apart to `layout`: shapes, dtypes and
    devices, names, lengths, and the values that are no tensors. Arrays stay on the host, so their content does not count."""
    if isinstance(values, Tensor):
        tensors.append(values)
        layout.append((values.shape, values.dtype, values.device, values.stride(), values.requires_grad))
    elif isinstance(values, tuple | list):
        layout.append((values.__class__.__name__, len(values)))
        for part in values:
            flatten(part, tensors, layout)
    elif isinstance(values, dict):
        layout.append(("dict", *values))
        for part in values.values():
            flatten(part, tensors, layout)
    elif (names := _names(values.__class__)) is not None:
        layout.append(type(values).__qualname__)
        for name in names:
            flatten(getattr(values, name), tensors, layout)
    elif not isinstance(values, np.ndarray):
        layout.append((type(values), values))


def mapped(
    change: Callable[[Tensor], Any], values: BatchT, other: Callable[[Any], Any] = lambda value: value
) -> BatchT:
    """The same batch with `change(tensor)` in place of each tensor, and `other(value)` in place of all that is none."""
    whole: Any = values
    changed: Any
    if isinstance(whole, Tensor):
        changed = change(whole)
    elif isinstance(whole, dict):
        changed = {name: mapped(change, part, other) for name, part in whole.items()}
    elif isinstance(whole, tuple | list):
        parts = [mapped(change, part, other) for part in whole]
        changed = type(whole)(*parts) if hasattr(whole, "_fields") else type(whole)(parts)
    elif (names := _names(whole.__class__)) is not None:
        changed = type(whole)(**{name: mapped(change, getattr(whole, name), other) for name in names})
    else:
        changed = other(whole)
    return changed


def on_device(batch: BatchT, device: torch.device, *, wait: bool = True) -> BatchT:
    """The batch on a device. Without `wait` a GPU copies it when its turn comes, and nobody may change it before."""
    later = not wait and device.type == "cuda"
    return mapped(lambda tensor: tensor.to(device, non_blocking=later), batch)


@cache
def _names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a dataclass; None for any other type."""
    return tuple(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None
