"""How an algorithm's step on one batch is run: as it is, compiled into one function, or recorded as a CUDA graph.

A step is everything of an update that happens on the device: losses, gradients, optimisers, targets. It takes the batch, a
variant (whatever decides which operations it consists of) and its source of random numbers, and it may not wait for the device.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from rl_training.utils.draws import Draw, RandomSource, Recorder, Tape

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm

StepBatchT = TypeVar("StepBatchT")
VariantT = TypeVar("VariantT", bound=Hashable)
OutputT = TypeVar("OutputT")
Step = Callable[[StepBatchT, VariantT, RandomSource], OutputT]
RunStep = Callable[[StepBatchT, VariantT], OutputT]

WARM_UP_CALLS = 3
"""Calls that run as ordinary updates before a recording, so that libraries have allocated what they keep."""


def step_runner(
    algorithm: Algorithm[Any, Any], step: Step[StepBatchT, VariantT, OutputT]
) -> RunStep[StepBatchT, VariantT, OutputT]:
    """The fastest way to run this step that the algorithm's settings and its device allow.

    All batches must have the same shapes. What a call puts out may be overwritten by the next call.
    """
    run: RunStep[StepBatchT, VariantT, OutputT]
    if algorithm.compiled:
        run = CompiledStep(algorithm, step)
    else:

        def run(batch: StepBatchT, variant: VariantT) -> OutputT:
            return step(batch, variant, algorithm.generator)

    return GraphedStep(run, algorithm.generator) if algorithm.device.type == "cuda" else run


class CompiledFunction(Generic[OutputT]):
    """A function of tensors, gradients inside it included, compiled as a whole at its first call. Shapes may not change."""

    def __init__(self, function: Callable[..., OutputT]):
        self._function, self._compiled = function, False
        self.seconds = 0.0
        """How long compiling took."""

    def __call__(self, *args: Any) -> OutputT:
        if not self._compiled:
            begin = time.perf_counter()
            self._function, self._compiled = _compile(self._function, args), True
            self.seconds = time.perf_counter() - begin
        return self._function(*args)


def _compile(function: Callable[..., OutputT], args: tuple[Any, ...]) -> Callable[..., OutputT]:
    from torch._dynamo import config as tracing
    from torch._inductor import config as code

    def call(*args: Any) -> OutputT:
        return function(*args)

    # An ordinary compiled function asks before each call whether everything is as it was, weight by weight, which costs as
    # much as a small update. Here nothing changes but the numbers: compiled ahead for these arguments, it is called bare.
    ask_nothing: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    # Gradients inside the function, and the random numbers (of dropout) that the function itself would draw.
    with tracing.patch(trace_autograd_ops=True, enable_aot_compile=True), code.patch(fallback_random=True):
        compiled: Any = torch.compile(call, fullgraph=True, dynamic=False, options=ask_nothing)
        bare: Callable[..., OutputT] = compiled.aot_compile((args, {})).fn
    return bare


class CompiledStep(Generic[StepBatchT, VariantT, OutputT]):
    """Compiles a step, with its gradients and optimisers, into one function for each variant."""

    def __init__(self, algorithm: Algorithm[Any, Any], step: Step[StepBatchT, VariantT, OutputT]):
        self._algorithm, self._step = algorithm, step
        self._functions: dict[VariantT, CompiledFunction[OutputT]] = {}
        self._draws: dict[VariantT, list[Draw]] = {}

    def __call__(self, batch: StepBatchT, variant: VariantT) -> OutputT:
        if variant not in self._functions:
            return self._first_call(batch, variant)
        return self._functions[variant](batch, self._numbers(variant))

    def _numbers(self, variant: VariantT) -> list[Tensor]:
        return [draw.take(self._algorithm.generator) for draw in self._draws[variant]]

    def _first_call(self, batch: StepBatchT, variant: VariantT) -> OutputT:
        # A run of the ordinary step tells which random numbers it draws. It is undone, so that a resumed run, which must
        # compile anew, takes the same steps as one that never stopped.
        recorder = Recorder(self._algorithm.generator)
        with _undone(self._algorithm):
            self._step(batch, variant, recorder)
        self._draws[variant] = recorder.draws

        def with_numbers(batch: StepBatchT, numbers: list[Tensor]) -> OutputT:
            return self._step(batch, variant, Tape(numbers))

        function = CompiledFunction(with_numbers)
        outputs = function(batch, self._numbers(variant))
        self._functions[variant] = function
        self._algorithm.compile_seconds += function.seconds
        return outputs


class GraphedStep(Generic[StepBatchT, VariantT, OutputT]):
    """Runs a step and, after a few calls of a variant, replays its recording as a CUDA graph.

    Random numbers come from `generator`, whose state moves on as if the step had run.
    """

    def __init__(self, run: RunStep[StepBatchT, VariantT, OutputT], generator: torch.Generator):
        self._run, self._generator = run, generator
        self._calls: dict[VariantT, int] = {}
        self._graphs: dict[VariantT, tuple[torch.cuda.CUDAGraph, OutputT]] = {}
        self._inputs: StepBatchT | None = None
        self._stream = torch.cuda.Stream(generator.device)

    def __call__(self, batch: StepBatchT, variant: VariantT) -> OutputT:
        calls = self._calls.get(variant, 0)
        self._calls[variant] = calls + 1
        if calls < WARM_UP_CALLS:
            # On a side stream, where capturing will happen, as PyTorch asks for.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                outputs = self._run(batch, variant)
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
                outputs = self._run(self._inputs, variant)
            self._graphs[variant] = (graph, outputs)
        graph, outputs = self._graphs[variant]
        graph.replay()
        return outputs


@contextmanager
def _undone(algorithm: Algorithm[Any, Any]) -> Iterator[None]:
    """Brings weights, optimisers and random streams back to where they were."""
    policy, state = copy.deepcopy(algorithm.policy.state_dict()), copy.deepcopy(algorithm.state_dict())
    global_stream = torch.random.get_rng_state()
    yield
    algorithm.policy.load_state_dict(policy)
    algorithm.load_state_dict(state)
    torch.random.set_rng_state(global_stream)


def _batch_fields(batch: Any) -> dict[str, Any]:
    """The parts of a batch that a step reads: all but the indices of replayed transitions."""
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch) if field.name != "indices"}


def _tensors(batch: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in _batch_fields(batch).values():
        found += value.values() if isinstance(value, dict) else [value]
    return found


def _cloned(batch: StepBatchT) -> StepBatchT:
    copies = {
        name: {key: part.clone() for key, part in value.items()} if isinstance(value, dict) else value.clone()
        for name, value in _batch_fields(batch).items()
    }
    return dataclasses.replace(batch, **copies)  # type: ignore[type-var]
