"""How an algorithm's step on one batch is run: as it is, compiled into one function, or recorded and repeated.

A step is everything of an update that happens on the device: losses, gradients, optimisers, targets. It takes the batch, a
variant (whatever decides which operations it consists of) and its source of random numbers, and it may not wait for the device.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Generic

import torch
from torch import Tensor

from rl_training.execution.batches import mapped, on_device, tensors_of
from rl_training.execution.draws import Draw, RandomSource, Recorder, Tape
from rl_training.execution.graphs import GraphedStep, OutputT, RunStep, StepBatchT, VariantT
from rl_training.execution.host_program import HostProgram

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm

Step = Callable[[StepBatchT, VariantT, RandomSource], OutputT]


def step_runner(
    algorithm: Algorithm[Any, Any], step: Step[StepBatchT, VariantT, OutputT]
) -> RunStep[StepBatchT, VariantT, OutputT]:
    """The fastest way to run this step that the algorithm's settings and its device allow.

    All batches must have the same shapes; they may come from the host. What a call puts out may be overwritten by the next call.
    """
    step = in_precision(algorithm, step)
    if algorithm.compiled:
        return CompiledStep(algorithm, step)
    if algorithm.device.type == "cpu":
        return HostStep(algorithm, step)

    def run(batch: StepBatchT, variant: VariantT) -> OutputT:
        return step(batch, variant, algorithm.generator)

    if algorithm.device.type == "cuda":
        return GraphedStep(run, algorithm.generator)
    return lambda batch, variant: run(on_device(batch, algorithm.device), variant)


def in_precision(
    algorithm: Algorithm[Any, Any], step: Step[StepBatchT, VariantT, OutputT]
) -> Step[StepBatchT, VariantT, OutputT]:
    """The step in the precision that the algorithm's settings ask for."""
    if algorithm.precision != "bf16":
        return step

    def run(batch: StepBatchT, variant: VariantT, random: RandomSource) -> OutputT:
        with precision_of(algorithm):
            return step(batch, variant, random)

    return run


def precision_of(algorithm: Algorithm[Any, Any]) -> AbstractContextManager[Any]:
    """Networks compute in the precision of the algorithm's updates inside it. TF32 is a mode of the process, set elsewhere."""
    if algorithm.precision != "bf16":
        return nullcontext()
    # Without a cache of converted weights: a step moves them, and a recorded one would keep them for ever.
    return torch.autocast(algorithm.device.type, torch.bfloat16, cache_enabled=False)


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
    # `fallback_random` is for the numbers that the function itself would draw (dropout). A main program in C++ saves the
    # way through Python from kernel to kernel, and torch's own tanh takes several times as long as one from exponentials.
    settings = {"fallback_random": True, "cpp_wrapper": True, "cpp.use_decompose_tanh": True}
    with unseeded(), tracing.patch(trace_autograd_ops=True, enable_aot_compile=True), code.patch(settings):
        compiled: Any = torch.compile(call, fullgraph=True, dynamic=False, options=ask_nothing)
        bare: Callable[..., OutputT] = compiled.aot_compile((args, {})).fn
    return bare


@contextmanager
def unseeded() -> Iterator[None]:
    """Numbers of `random` that no seed decides, and a stream that is the same afterwards.

    What torch cannot find in its cache of compiled code by a hash it stores under such a number: with the run's own seed that
    would be the same one in every run, and the code found there that of another function.
    """
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)


class CompiledDraws(Generic[OutputT]):
    """A compiled function of tensors and random numbers, which are drawn before each call.

    The first call runs the function once as it is, inside `undoing()`, to see which numbers it draws.
    """

    def __init__(
        self,
        function: Callable[..., OutputT],
        device: torch.device,
        undoing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self._function, self._device, self._undoing = function, device, undoing
        self._draws: list[Draw] | None = None
        self._compiled = CompiledFunction(self._with_numbers)

    @property
    def seconds(self) -> float:
        """How long compiling took."""
        return self._compiled.seconds

    def __call__(self, *args: Any, generator: torch.Generator) -> OutputT:
        if self._draws is None:
            with self._undoing():
                self._draws = _draws_of(self._function, args, self._device)
        return self._compiled([draw.take(generator) for draw in self._draws], *args)

    def _with_numbers(self, numbers: list[Tensor], *args: Any) -> OutputT:
        return self._function(*args, Tape(numbers))


class HostDraws(Generic[OutputT]):
    """A function of tensors on the CPU and random numbers, repeated by a HostProgram where that can be done.

    What it does may depend on the shapes of the tensors, but not on the numbers in them. Its first runs, inside `undoing()`,
    only show what it does.
    """

    def __init__(
        self,
        function: Callable[..., OutputT],
        undoing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self._function, self._undoing = function, undoing
        self._shapes: list[torch.Size] = []
        self._draws: list[tuple[Draw, Tensor]] = []
        self._program: HostProgram[OutputT] | None = None

    def __call__(self, *args: Any, generator: torch.Generator) -> OutputT:
        tensors = tensors_of(args)
        shapes = [tensor.shape for tensor in tensors]
        if self._program is None or shapes != self._shapes or self._program.outdated():
            self._program, self._shapes = self._recorded(args, generator.device), shapes
        if not self._program.repeatable:
            return self._function(*args, generator)
        for draw, numbers in self._draws:
            draw.fill(numbers, generator)
        return self._program(tensors)

    def _recorded(self, args: tuple[Any, ...], device: torch.device) -> HostProgram[OutputT]:
        with self._undoing():
            draws = _draws_of(self._function, args, device)
        own, other = mapped(Tensor.clone, args), torch.Generator(device)
        numbers = [draw.take(other) for draw in draws]
        self._draws = list(zip(draws, numbers))
        with self._undoing():
            return HostProgram(lambda: self._function(*own, Tape(numbers)), tensors_of(own), numbers)


def repeated(function: Callable[..., OutputT], device: torch.device) -> Callable[..., OutputT]:
    """A function of tensors and random numbers, to be called with `generator=`: recorded and repeated on a CPU, else as it is."""
    return HostDraws(function) if device.type == "cpu" else _as_written(function)


def computed(algorithm: Algorithm[Any, Any], function: Callable[..., OutputT]) -> Callable[..., OutputT]:
    """The same for large batches of one shape: compiled if the algorithm is, else as it is."""
    return _counted(algorithm, function) if algorithm.compiled else _as_written(function)


def _as_written(function: Callable[..., OutputT]) -> Callable[..., OutputT]:
    return lambda *args, generator: function(*args, generator)


def _counted(algorithm: Algorithm[Any, Any], function: Callable[..., OutputT]) -> Callable[..., OutputT]:
    """A compiled function; how long compiling took is added to the algorithm's own."""
    compiled = CompiledDraws(function, algorithm.device)

    def run(*args: Any, generator: torch.Generator) -> OutputT:
        before = compiled.seconds
        outputs = compiled(*args, generator=generator)
        algorithm.compile_seconds += compiled.seconds - before
        return outputs

    return run


def _draws_of(function: Callable[..., Any], args: tuple[Any, ...], device: torch.device) -> list[Draw]:
    """The random numbers that the function asks for, found by a call."""
    recorder = Recorder(torch.Generator(device))  # one of its own: the run's stream must not move
    function(*args, recorder)
    return recorder.draws


class CompiledStep(Generic[StepBatchT, VariantT, OutputT]):
    """Compiles a step, with its gradients and optimisers, into one function for each variant."""

    def __init__(self, algorithm: Algorithm[Any, Any], step: Step[StepBatchT, VariantT, OutputT]):
        self._algorithm, self._step = algorithm, step
        self._functions: dict[VariantT, CompiledDraws[OutputT]] = {}

    def __call__(self, batch: StepBatchT, variant: VariantT) -> OutputT:
        known = self._functions.get(variant)
        if known is not None:
            return known(batch, generator=self._algorithm.generator)
        # The first run is undone, so that a resumed run, which must compile anew, takes the same steps as one that never stopped.
        function = CompiledDraws(
            lambda batch, random: self._step(batch, variant, random),
            self._algorithm.device,
            lambda: _undone(self._algorithm),
        )
        outputs = function(batch, generator=self._algorithm.generator)
        self._functions[variant] = function
        self._algorithm.compile_seconds += function.seconds
        return outputs


class HostStep(Generic[StepBatchT, VariantT, OutputT]):
    """Repeats a step, with its gradients and optimisers, by a program for each variant."""

    def __init__(self, algorithm: Algorithm[Any, Any], step: Step[StepBatchT, VariantT, OutputT]):
        self._algorithm, self._step = algorithm, step
        self._functions: dict[VariantT, HostDraws[OutputT]] = {}

    def __call__(self, batch: StepBatchT, variant: VariantT) -> OutputT:
        if variant not in self._functions:
            self._functions[variant] = HostDraws(
                lambda batch, random: self._step(batch, variant, random), lambda: _undone(self._algorithm)
            )
        return self._functions[variant](batch, generator=self._algorithm.generator)


class Acting:
    """How actions are computed from tensors and random numbers: recorded as a HostProgram on a CPU, as a CUDA graph on a GPU,
    where the next call may overwrite them, and elsewhere as written."""

    def __init__(self, act: Callable[..., Tensor], device: torch.device):
        self._act, self._device = act, device
        self._otherwise = repeated(act, device)
        self._graphed: GraphedStep[tuple[Any, ...], None, Tensor] | None = None

    def __call__(self, *tensors: Any, generator: torch.Generator) -> Tensor:
        if self._device.type != "cuda":
            return self._otherwise(*tensors, generator=generator)
        if self._graphed is None:
            self._graphed = GraphedStep(lambda tensors, _: self._act(*tensors, generator), generator)
        return self._graphed(tensors, None)


@contextmanager
def _undone(algorithm: Algorithm[Any, Any]) -> Iterator[None]:
    """Brings weights, optimisers and random streams back to where they were."""
    policy, state = copy.deepcopy(algorithm.policy.state_dict()), copy.deepcopy(algorithm.state_dict())
    global_stream = torch.random.get_rng_state()
    yield
    algorithm.policy.load_state_dict(policy)
    algorithm.load_state_dict(state)
    torch.random.set_rng_state(global_stream)
