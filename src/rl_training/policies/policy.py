"""What every policy is: from observations, and perhaps a memory of its own, to actions."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor, mapped
from rl_training.execution.draws import RandomSource
from rl_training.policies.encoders import ObservationEncoder

ActingState: TypeAlias = Tensor | tuple["ActingState", ...] | dict[str, "ActingState"] | None
"""What a policy remembers between steps: tensors (N, ...), one row for each environment; None for nothing."""


class Policy(nn.Module):
    """Observations enter raw: the normaliser, if there is one, is part of the encoder and saved with the weights."""

    encoder: ObservationEncoder

    def initial_state(self, count: int) -> ActingState:
        """What it remembers at the start of an episode, in `count` environments."""
        return None

    @torch.no_grad()
    def act(
        self,
        obs: ObsTensor,
        state: ActingState = None,
        *,
        generator: RandomSource = None,
        deterministic: bool = False,
    ) -> tuple[Tensor, ActingState]:
        """Actions in policy form, without gradient, and what it remembers from now on. A policy with a memory overrides this."""
        return self.choose(obs, generator, deterministic), state

    def choose(self, obs: ObsTensor, generator: RandomSource, deterministic: bool) -> Tensor:
        """Actions that depend on the observations alone: a sample, or the best guess when deterministic."""
        raise TypeError(f"{type(self).__name__} must say what it chooses: override choose, or act if it has a memory")


def restarted(state: ActingState, initial: ActingState, ended: Tensor) -> ActingState:
    """The state with the initial one in the rows (N,) whose episodes ended."""
    if state is None or initial is None:
        return state
    fresh = iter(_leaves(initial))

    def replace(rows: Tensor) -> Tensor:
        start = next(fresh)
        return start.where(ended.to(rows.device).view(-1, *[1] * (rows.dim() - 1)), rows)

    return mapped(replace, state)


def _leaves(state: ActingState) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(lambda tensor: found.append(tensor), state)
    return found
