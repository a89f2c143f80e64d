"""Steps on a GPU, recorded as CUDA graphs and replayed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor

from rl_training.execution.batches import mapped, tensors_of

StepBatchT = TypeVar("StepBatchT")
VariantT = TypeVar("VariantT", bound=Hashable)
OutputT = TypeVar("OutputT")
RunStep = Callable[[StepBatchT, VariantT], OutputT]

WARM_UP_CALLS = 3
"""Calls that run as ordinary updates before a recording, so that libraries have allocated what they keep."""

ALIGNMENT = 256
"""Bytes. What torch's own allocations keep to at least; for less, a GPU may take another way to compute the same product."""


class GraphedStep(Generic[StepBatchT, VariantT, OutputT]):
    """Runs a step and, after a few calls of a variant, replays its recording as a CUDA graph.

    Random numbers come from `generator`, whose state moves on as if the step had run.
    """

    def __init__(self, run: RunStep[StepBatchT, VariantT, OutputT], generator: torch.Generator):
        self._run, self._generator, self._device = run, generator, generator.device
        self._calls: dict[VariantT, int] = {}
        self._graphs: dict[VariantT, tuple[torch.cuda.CUDAGraph, OutputT]] = {}
        self._memory: BatchMemory[StepBatchT] | None = None
        self._stream = torch.cuda.Stream(self._device)

    def __call__(self, batch: StepBatchT, variant: VariantT) -> OutputT:
        if self._memory is None:
            self._memory = BatchMemory(batch, self._device)
        self._memory.put(batch)
        inputs = self._memory.batch
        calls = self._calls.get(variant, 0)
        if calls < WARM_UP_CALLS:
            self._calls[variant] = calls + 1
            with aside(self._stream):
                return self._run(inputs, variant)
        if variant not in self._graphs:
            # Each with memory of its own: what one variant has put out must outlive the next call of another.
            self._graphs[variant] = recorded_graph(lambda: self._run(inputs, variant), [self._generator], self._stream)
        graph, outputs = self._graphs[variant]
        graph.replay()
        return outputs


@contextmanager
def aside(stream: torch.cuda.Stream) -> Iterator[None]:
    """On a side stream, in turn with the current one: there PyTorch wants what is going to be captured to run first."""
    current = torch.cuda.current_stream(stream.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def recorded_graph(
    run: Callable[[], OutputT], generators: Sequence[torch.Generator], stream: torch.cuda.Stream
) -> tuple[torch.cuda.CUDAGraph, OutputT]:
    """What `run` does on the GPU, noted down and not played, and where a replay will put its results."""
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    torch.cuda.synchronize(stream.device)
    with torch.cuda.graph(graph, stream=stream):
        outputs = run()
    # Recording sets the generators' counters on the GPU to 0, in its own stream: that must be over before a replay sets them.
    torch.cuda.synchronize(stream.device)
    return graph, outputs


class BatchMemory(Generic[StepBatchT]):
    """Memory on a device for batches of one shape, one piece for each dtype: a batch from the host is one transfer for each,
    because a transfer costs as much as its bytes."""

    batch: StepBatchT
    """What was put last. Its tensors are always the same."""

    def __init__(self, like: StepBatchT, device: torch.device):
        self._device = device
        self._pieces, self.batch = _laid_out(like, lambda size, dtype: torch.empty(size, dtype=dtype, device=device))
        self._tensors = tensors_of(self.batch)
        self._staging: _Staging[StepBatchT] | None = None

    def put(self, batch: StepBatchT) -> None:
        """Copies all tensors of a batch, which lie on the device or all on the host. The host need not wait for it."""
        tensors = tensors_of(batch)
        if tensors[0].device.type == self._device.type:
            torch._foreach_copy_(self._tensors, tensors)
            return
        if self._staging is None:
            self._staging = _Staging(batch, pinned=self._device.type == "cuda")
        self._staging.send(tensors, self._pieces)


class _Staging(Generic[StepBatchT]):
    """Memory of the same layout on the host, from where a GPU can fetch while the host goes on."""

    def __init__(self, like: StepBatchT, pinned: bool):
        self._pieces, batch = _laid_out(like, lambda size, dtype: torch.empty(size, dtype=dtype, pin_memory=pinned))
        self._tensors = tensors_of(batch)
        self._fetched = torch.cuda.Event() if pinned else None

    def send(self, tensors: list[Tensor], pieces: list[Tensor]) -> None:
        if self._fetched is not None:
            self._fetched.synchronize()
        torch._foreach_copy_(self._tensors, tensors)
        for own, piece in zip(self._pieces, pieces):
            piece.copy_(own, non_blocking=True)
        if self._fetched is not None:
            self._fetched.record(torch.cuda.current_stream(pieces[0].device))


def _laid_out(like: StepBatchT, make: Callable[[int, torch.dtype], Tensor]) -> tuple[list[Tensor], StepBatchT]:
    """Memory for a batch, one piece for each dtype, and the batch that lies in it."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors_of(like):
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + _places(tensor)
    pieces = {dtype: make(size, dtype) for dtype, size in sizes.items()}
    used = dict.fromkeys(sizes, 0)

    def place(tensor: Tensor) -> Tensor:
        begin = used[tensor.dtype]
        used[tensor.dtype] += _places(tensor)
        return pieces[tensor.dtype][begin : begin + tensor.numel()].view(tensor.shape)

    return list(pieces.values()), mapped(place, like)


def _places(tensor: Tensor) -> int:
    """Elements that a tensor takes up, so that the next one begins where it should."""
    step = ALIGNMENT // tensor.element_size()
    return -(-tensor.numel() // step) * step
