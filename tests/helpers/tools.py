"""What several tests do with runs and state trees."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch

from rl_training.experiment.state_codec import decode, encode


def through_codec(tree: Any) -> Any:
    """The tree after a trip through the real codec and real JSON."""
    value, tensors = encode(tree)
    text = json.dumps(value, allow_nan=False)
    return decode(json.loads(text), {name: tensor.clone() for name, tensor in tensors.items()})


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """The places where two state trees are not bit-for-bit equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{path}: keys {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [line for key in a for line in differences(a[key], b[key], f"{path}.{key}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: {len(a)} and {len(b)} entries"]
        return [line for i, (x, y) in enumerate(zip(a, b)) for line in differences(x, y, f"{path}.{i}")]
    if isinstance(a, (torch.Tensor, np.ndarray)):
        first, second = torch.as_tensor(a).cpu().contiguous(), torch.as_tensor(b).cpu().contiguous()
        if first.shape != second.shape or first.dtype != second.dtype:
            return [f"{path}: {first.dtype}{tuple(first.shape)} and {second.dtype}{tuple(second.shape)}"]
        return [] if first.numpy().tobytes() == second.numpy().tobytes() else [f"{path}: values"]
    return [] if a == b or (a != a and b != b) else [f"{path}: {a!r} and {b!r}"]
