"""Whole updates as CUDA graphs: recorded once, then launched with one call instead of a few hundred."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from rl_training.data.replay_buffer import TransitionBatch
from rl_training.data.rollout_buffer import ObsTensor

VariantT = TypeVar("VariantT", bound=Hashable)
OutputT = TypeVar("OutputT")

WARM_UP_CALLS = 3
"""Calls that run as ordinary updates first, so that libraries and optimisers have allocated what they keep."""


class GraphedStep(Generic[VariantT, OutputT]):
    """Runs `step(batch, variant)` and, after a few calls of a variant, replays its recording.

    The step may not wait for the device, and its outputs are overwritten by the variant's next call. Random numbers come from
    `generator`, whose state moves on as if the step had run.
    """

    def __init__(self, step: Callable[[TransitionBatch, VariantT], OutputT], generator: torch.Generator):
        self._step, self._generator = step, generator
        self._calls: dict[VariantT, int] = {}
        self._graphs: dict[VariantT, tuple[torch.cuda.CUDAGraph, OutputT]] = {}
        self._inputs: TransitionBatch | None = None
        self._stream = torch.cuda.Stream(generator.device)

    def __call__(self, batch: TransitionBatch, variant: VariantT) -> OutputT:
        calls = self._calls.get(variant, 0)
        self._calls[variant] = calls + 1
        if calls < WARM_UP_CALLS:
            # On a side stream, where capturing will happen, as PyTorch asks for.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                outputs = self._step(batch, variant)
            torch.cuda.current_stream().wait_stream(self._stream)
            return outputs
        if self._inputs is None:
            self._inputs = _cloned(batch)
        else:
            torch._foreach_copy_(_tensors(self._inputs), _tensors(batch))
        if variant not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._generator)
            # Each with memory of its own: what one variant has put out must outlive the next call of another.
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=self._stream):
                outputs = self._step(self._inputs, variant)
            self._graphs[variant] = (graph, outputs)
        graph, outputs = self._graphs[variant]
        graph.replay()
        return outputs


def _tensors(batch: TransitionBatch) -> list[Tensor]:
    """All tensors of a batch but its indices, which no update reads."""
    found: list[Tensor] = []
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if field.name != "indices":
            found += value.values() if isinstance(value, dict) else [value]
    return found


def _cloned(batch: TransitionBatch) -> TransitionBatch:
    def copied(obs: ObsTensor) -> ObsTensor:
        return {key: value.clone() for key, value in obs.items()} if isinstance(obs, dict) else obs.clone()

    return TransitionBatch(
        obs=copied(batch.obs),
        actions=batch.actions.clone(),
        rewards=batch.rewards.clone(),
        next_obs=copied(batch.next_obs),
        discounts=batch.discounts.clone(),
        weights=batch.weights.clone(),
        indices=batch.indices,
    )
