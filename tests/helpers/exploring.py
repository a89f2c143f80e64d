"""Acting as it happens during collection."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.exploration import Explorer
from rl_training.execution.batches import ObsTensor


def explored(
    explorer: Explorer, obs: ObsTensor, generator: torch.Generator | None = None, progress: float = 0.0
) -> Tensor:
    """Actions of an explorer whose policy remembers nothing."""
    actions, state = explorer.act(obs, None, generator=generator or torch.Generator(), progress=progress)
    assert state is None
    return actions
