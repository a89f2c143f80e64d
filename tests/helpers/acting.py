"""Actions of policies without a memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.execution.batches import ObsTensor


def acted(policy: Any, obs: ObsTensor, **settings: Any) -> Tensor:
    """What `policy.act` chooses. Nothing was remembered before, and nothing is from now on."""
    actions, state = policy.act(obs, **settings)
    assert state is None
    return actions
