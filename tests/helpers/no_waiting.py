"""Code for a GPU that must not wait, checked on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class NoWaiting(TorchDispatchMode):
    """Fails on operators for which the host would wait for a GPU, or copy numbers to one."""

    FORBIDDEN = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "equal",
        "is_nonzero",
        "unique",
        "scalar_tensor",
        "lift",
    )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert not any(name.startswith(word) for word in self.FORBIDDEN), f"{name} waits for the device"
        by_mask = name.startswith("index") and isinstance(args[1], list)
        assert not (by_mask and any(t is not None and t.dtype == torch.bool for t in args[1])), (
            f"{name} by a mask waits"
        )
        return func(*args, **(kwargs or {}))
