"""Batches of any form: dataclasses, dicts and tuples of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

BatchT = TypeVar("BatchT")


def tensors_of(batch: Any) -> list[Tensor]:
    """The tensors of a batch, in order; not the indices of replayed transitions, which no step reads."""
    if isinstance(batch, Tensor):
        return [batch]
    parts = batch if isinstance(batch, tuple) else _parts(batch).values()
    return [tensor for part in parts for tensor in ((part,) if isinstance(part, Tensor) else tensors_of(part))]


def mapped(change: Callable[[Tensor], Tensor], batch: BatchT) -> BatchT:
    """The same batch with `change(tensor)` in place of each of these tensors."""
    whole: Any = batch
    if isinstance(whole, Tensor):
        changed: Any = change(whole)
        return changed
    parts = {name: mapped(change, part) for name, part in _parts(whole).items()}
    if isinstance(whole, dict):
        changed = parts
    elif isinstance(whole, tuple):
        changed = tuple(parts.values())
    else:
        changed = dataclasses.replace(whole, **parts)
    return changed


def on_device(batch: BatchT, device: torch.device, *, wait: bool = True) -> BatchT:
    """The batch on a device. Without `wait` a GPU copies it when its turn comes, and nobody may change it before."""
    later = not wait and device.type == "cuda"
    return mapped(lambda tensor: tensor.to(device, non_blocking=later), batch)


def _parts(batch: Any) -> dict[Any, Any]:
    if isinstance(batch, dict):
        return batch
    if isinstance(batch, tuple):
        return dict(enumerate(batch))
    kind: Any = type(batch)
    return {name: getattr(batch, name) for name in _names(kind)}


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind) if field.name != "indices")
