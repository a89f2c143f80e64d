"""Steps on a GPU, recorded as CUDA graphs and replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from rl_training.execution.batches import mapped, tensors_of

BatchT = TypeVar("BatchT")
OutputT = TypeVar("OutputT")

ALIGNMENT = 256
"""Bytes. What torch's own allocations keep to at least; for less, a GPU may take another way to compute the same product."""


class GraphProgram(Generic[OutputT]):
    """A function of tensors and a generator as a CUDA graph, whose replays move the generator on as if the function had run.

    What it returns lies where the next call writes again.
    """

    def __init__(self, function: Callable[..., OutputT], like: list[Any], generator: torch.Generator):
        """`like` are arguments of the shapes to come, on the device."""
        self._memory = BatchMemory(like, generator.device)
        self._memory.put(like)
        stream = torch.cuda.Stream(generator.device)
        with aside(stream):  # once, so that libraries have allocated what they keep
            function(*self._memory.batch, generator)
        run = partial(function, *self._memory.batch, generator)
        self._graph, self._outputs = recorded_graph(run, [generator], stream)

    def __call__(self, tensors: list[Tensor]) -> OutputT:
        """`tensors` are those of the arguments, in order."""
        self._memory.put_tensors(tensors)
        self._graph.replay()
        return self._outputs


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
    # Gradients of an earlier run would be waited for in its stream, and what Python collects meanwhile may hold memory or graphs
    # of the GPU: either ends a recording.
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    states = [generator.get_state() for generator in generators]
    try:
        with torch.cuda.graph(graph, stream=stream):
            outputs = run()
    except RuntimeError:
        for generator, state in zip(generators, states):  # a recording that fails leaves them waiting for its end
            generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())
            generator.set_state(state)
        raise
    finally:
        if collecting:
            gc.enable()
    # Recording sets the generators' counters on the GPU to 0, in its own stream: that must be over before a replay sets them.
    torch.cuda.synchronize(stream.device)
    return graph, outputs


class BatchMemory(Generic[BatchT]):
    """Memory on a device for batches of one shape, one piece for each dtype: a batch from the host is one transfer for each,
    because a transfer costs as much as its bytes."""

    batch: BatchT
    """What was put last. Its tensors are always the same."""

    def __init__(self, like: BatchT, device: torch.device):
        self._device = device
        self._pieces, self.batch = _laid_out(like, lambda size, dtype: torch.empty(size, dtype=dtype, device=device))
        self._tensors = tensors_of(self.batch)
        self._staging: _Staging[BatchT] | None = None

    def put(self, batch: BatchT) -> None:
        """Copies all tensors of a batch, which lie on the device or all on the host. The host need not wait for it."""
        self.put_tensors(tensors_of(batch))

    def put_tensors(self, tensors: list[Tensor]) -> None:
        if not tensors or tensors[0].device.type == self._device.type:
            if tensors:
                torch._foreach_copy_(self._tensors, tensors)
            return
        if self._staging is None:
            self._staging = _Staging(self.batch, pinned=self._device.type == "cuda")
        self._staging.send(tensors, self._pieces)


class _Staging(Generic[BatchT]):
    """Memory of the same layout on the host, from where a GPU can fetch while the host goes on."""

    def __init__(self, like: BatchT, pinned: bool):
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


def _laid_out(like: BatchT, make: Callable[[int, torch.dtype], Tensor]) -> tuple[list[Tensor], BatchT]:
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
