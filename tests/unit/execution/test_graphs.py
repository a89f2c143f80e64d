"""Where recorded steps find their batches, and that a recording on a GPU computes what the step does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.gpu import needs_gpu
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.batches import mapped, on_device, tensors_of
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import Executor, recordable
from rl_training.execution.graphs import ALIGNMENT, BatchMemory, _Staging

CPU = torch.device("cpu")
DEVICES = [CPU, pytest.param(torch.device("cuda"), marks=needs_gpu)]


def batch_of(seed: int, size: int = 3) -> TransitionBatch:
    """Observations of two dtypes, actions of a third; sizes that fill no aligned block."""
    stream = torch.Generator().manual_seed(seed)
    image = torch.randint(256, (size, 5, 5), generator=stream, dtype=torch.uint8)
    numbers = [torch.randn(size, generator=stream) for _ in range(4)]
    return TransitionBatch(
        {"state": torch.randn(size, 2, generator=stream), "image": image},
        torch.randint(9, (size,), generator=stream),
        numbers[0],
        {"state": torch.randn(size, 2, generator=stream), "image": 255 - image},
        numbers[1],
        numbers[2],
        indices=np.arange(size),
    )


def same(found: TransitionBatch, expected: TransitionBatch) -> bool:
    pairs = list(zip(tensors_of(found), tensors_of(expected), strict=True))
    return all(a.dtype == b.dtype and torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_put_into_memory_is_there_unchanged(device: torch.device) -> None:
    memory = BatchMemory(batch_of(0), device)
    places = [tensor.data_ptr() for tensor in tensors_of(memory.batch)]
    for tensor in tensors_of(memory.batch):
        assert tensor.storage_offset() * tensor.element_size() % ALIGNMENT == 0
    for seed in range(4):
        batch = batch_of(seed)
        memory.put(on_device(batch, device) if seed % 2 else batch)
        assert same(memory.batch, batch)
        assert [tensor.data_ptr() for tensor in tensors_of(memory.batch)] == places


@pytest.mark.parametrize("device", DEVICES)
def test_memory_does_not_follow_the_batch_that_was_put(device: torch.device) -> None:
    batch = batch_of(1)
    memory = BatchMemory(batch, device)
    memory.put(batch)
    expected = mapped(torch.Tensor.clone, batch)
    for tensor in tensors_of(batch):
        tensor.zero_()
    assert same(memory.batch, expected)


def test_a_batch_from_the_host_is_one_transfer_for_each_dtype() -> None:
    memory, batch = BatchMemory(batch_of(0), CPU), batch_of(1)
    assert sorted(str(piece.dtype) for piece in memory._pieces) == ["torch.float32", "torch.int64", "torch.uint8"]
    _Staging(batch, pinned=False).send(tensors_of(batch), memory._pieces)
    assert same(memory.batch, batch)


class Adding:
    """A step that takes the GPU long, and adds up what it is given."""

    def __init__(self, device: torch.device):
        self.matrix, self.total = torch.eye(4096, device=device), torch.zeros(3, device=device)
        self.executor = Executor(self, device, "recorded")

    @recordable
    def step(self, batch: TransitionBatch, random: RandomSource) -> torch.Tensor:
        self.matrix.copy_(self.matrix @ self.matrix)
        self.total.add_(batch.rewards)
        return self.total


@needs_gpu
def test_batches_in_a_row_from_the_host_are_each_learned_from() -> None:
    """The host may not fill its staging memory again before the GPU, busy with a step, has fetched what is in it."""
    device = torch.device("cuda")
    adding, generator = Adding(device), torch.Generator(device)
    for seed in range(40):
        adding.step(replace(batch_of(seed), rewards=torch.full((3,), float(seed))), generator)
    assert adding.total.tolist() == [sum(range(40))] * 3
    assert adding.step.recordings == 1  # type: ignore[attr-defined]
