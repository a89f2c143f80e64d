"""Who runs the steps of an algorithm, and how: as they are written, or recorded once and repeated.

`eager` is what the code means. A recording must give the same or step aside: whatever it cannot repeat faithfully runs as written,
and the log says so once. Each recording is compared with the run it was taken from before it is used.
"""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, update_wrapper
from types import MethodType
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast, overload

import numpy as np
import torch
from torch import Tensor

from rl_training.execution.batches import flatten, mapped, on_device, tensors_of
from rl_training.execution.draws import Recorder, Tape
from rl_training.execution.graphs import GraphProgram
from rl_training.execution.owned import PLAIN, Owned, Undo, Watch, memory_of
from rl_training.execution.program import HostProgram
from rl_training.execution.recording import Notes, NotRecordable, Recording, record
from rl_training.utils.errors import ExecutionError

P = ParamSpec("P")
R = TypeVar("R")

Execution: TypeAlias = Literal["auto", "eager", "recorded"]
"""How steps run: `auto` records what it can, `eager` nothing, `recorded` everything or raises."""

MOST_RECORDINGS = 16
"""Kept of one function for arguments of one form. More mean that something it reads changes all the time."""

logger = logging.getLogger("rl_training.execution")


class Executor:
    """The setting that the recordable functions of one owner share."""

    outside_of_steps = True

    def __init__(
        self,
        owner: object,
        device: torch.device,
        execution: Execution = "auto",
        *,
        check_every: int = 0,
    ):
        """`check_every` compares every so many calls of each recording with a run as written; 0 never does."""
        if execution == "recorded" and device.type not in ("cpu", "cuda"):
            raise ExecutionError(f"steps cannot be recorded on the device {device.type}: set execution: auto or eager")
        self.owner, self.device, self.execution, self.check_every = owner, device, execution, check_every
        self.records = execution != "eager" and device.type in ("cpu", "cuda")
        self.recording = False
        """While a recording is made, recordable functions that it calls run as written."""
        self.eager_because: dict[str, str] = {}
        """Functions that run as written although recording was allowed, and why."""
        self.functions: list[RecordedFunction[Any]] = []
        """Those that may be recorded, as far as they were asked for."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Executor:
        """For the copied owner, without what was recorded."""
        other = memo[id(self)] = object.__new__(Executor)
        other.__dict__.update(self.__dict__)
        other.recording, other.eager_because, other.functions = False, {}, []
        other.owner = copy.deepcopy(self.owner, memo)
        return other

    @contextmanager
    def as_written(self) -> Iterator[None]:
        """Nothing is recorded or repeated inside."""
        before, self.recording = self.recording, True
        try:
            yield
        finally:
            self.recording = before

    def for_owner(self, owner: object) -> Executor:
        """The same setting for the functions of another owner."""
        return Executor(owner, self.device, self.execution, check_every=self.check_every)

    def function(self, function: Callable[P, R]) -> Callable[P, R]:
        """The same function, recorded if the setting allows it. See `recordable` for what it must be like."""
        if not self.records and self.device.type == "cpu":
            return function
        self.functions.append(RecordedFunction(function, self))
        return cast("Callable[P, R]", self.functions[-1])


class recordable(Generic[P, R]):
    """Marks a method that may be recorded and repeated: a function of tensors whose last argument is its source of random numbers.

    Its owner has an `executor`. The method may read the owner's tensors, networks and settings and change tensors in place; other
    arguments than tensors (flags, numbers) tell recordings apart. It must not ask what a tensor holds, nor assign attributes; if it
    does, it runs as written. What it returns may be overwritten by its next call.
    """

    def __init__(self, method: Callable[P, R]):
        self._method = method
        update_wrapper(self, method)  # type: ignore[arg-type]

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> recordable[P, R]: ...
    @overload
    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        bound = MethodType(self._method, instance)
        if getattr(type(instance), self._name, None) is not self:
            return bound  # called through super(), by a method that is recorded itself
        found = instance.executor.function(bound)
        instance.__dict__[self._name] = found  # from now on found without asking here
        return found


class RecordedFunction(Generic[R]):
    """A function that is repeated from a recording of it, one for each kind of arguments and settings."""

    outside_of_steps = True

    def __init__(self, function: Callable[..., R], executor: Executor):
        self._function, self._executor = function, executor
        self.name = getattr(function, "__qualname__", repr(function))
        self._recordings: dict[Hashable, list[_Recorded[R]]] = {}
        self._count = 0
        self._eager = not executor.records

    def __call__(self, *args: Any) -> R:
        executor = self._executor
        if executor.recording:
            return self._function(*args)
        *given, generator = args
        if self._eager:
            return self._function(*on_device(given, executor.device), generator)
        tensors: list[Tensor] = []
        layout: list[Hashable] = []
        flatten(given, tensors, layout)
        layout += _ambient(executor.device)
        try:
            known: Any = self._recordings.get(tuple(layout), ())
        except TypeError:  # an argument that nobody can compare
            known = ()
        for recorded in known:
            if recorded.holds(generator):
                return recorded(given, tensors, generator)
        recorded_now = self._record(given, generator)
        if recorded_now is None:
            return self._function(*on_device(given, executor.device), generator)
        kept: list[_Recorded[R]] = self._recordings.setdefault(tuple(layout), [])
        self._count += 1
        if self._count == MOST_RECORDINGS:
            changed = kept[0].watch.difference() if kept else "its arguments have ever new forms or values"
            logger.warning(
                "%s was recorded %d times, which is slow: %s. Name an attribute that it does not read in the class attribute "
                "`unwatched`, or set execution: eager.",
                *(self.name, self._count, changed),
            )
        kept.insert(0, recorded_now)
        del kept[MOST_RECORDINGS:]
        return recorded_now(given, tensors, generator)

    @property
    def recordings(self) -> int:
        """How often it was recorded so far."""
        return self._count

    def _record(self, given: list[Any], generator: Any) -> _Recorded[R] | None:
        executor, kind = self._executor, _OnCPU if self._executor.device.type == "cpu" else _OnGPU
        try:
            with executor.as_written():
                return kind(self._function, executor, given, generator)
        except NotRecordable as error:
            self._step_aside(str(error))
            return None

    def __deepcopy__(self, memo: dict[int, Any]) -> RecordedFunction[R]:
        """A function of the copied owner, which records anew."""
        executor = copy.deepcopy(self._executor, memo)
        executor.functions.append(RecordedFunction(copy.deepcopy(self._function, memo), executor))
        return executor.functions[-1]

    def _step_aside(self, reason: str) -> None:
        message = f"{self.name} runs as written, not recorded, because of {reason}"
        if self._executor.execution == "recorded":
            raise ExecutionError(f"{message}.\nexecution: recorded allows no exception; set execution: auto or eager.")
        self._eager, self._recordings = True, {}
        self._executor.eager_because[self.name] = reason
        logger.warning("%s", message)


class _Recorded(ABC, Generic[R]):
    """One recording, compared with the run it was taken from, and what it rests on."""

    watch: Watch

    def __init__(self, function: Callable[..., R], executor: Executor, given: list[Any], generator: Any):
        self._function, self._executor = function, executor
        self._calls = 0
        _check_leaves(given)
        for name in _recordable_names(_class_of(executor.owner)):
            getattr(executor.owner, name)  # bound now, because what belongs to the owner must not grow later
        owned = Owned(executor.owner)
        if (module := owned.hooked()) is not None:
            raise NotRecordable(f"a hook of {module}")
        if owned.opaque is not None:
            raise NotRecordable(
                f"{owned.opaque}, whose changes nobody can see (name it in `unwatched` if it is not read)"
            )
        if {memory_of(tensor) for tensor in tensors_of(given)} & (owned.memories - {0}):
            raise NotRecordable("an argument that belongs to its owner, which a copy of it would not follow")
        self._undo = Undo(owned, generator)
        try:
            self._make(owned, given, generator)
        except NotRecordable:
            raise
        except ExecutionError as error:
            raise NotRecordable(str(error)) from error
        finally:
            self._undo()
            del self._undo

    @abstractmethod
    def _make(self, owned: Owned, given: list[Any], generator: Any) -> None:
        """Makes the recording and compares it with a run as written; NotRecordable if that cannot be done."""

    @abstractmethod
    def _repeat(self, given: list[Any], tensors: list[Tensor], generator: Any) -> R:
        """What the function would return."""

    def _run(
        self,
        function: Callable[[Notes], R],
        arguments: list[Tensor],
        owned: Owned,
        drawn: list[Tensor] | None = None,
        generator: torch.Generator | None = None,
    ) -> Recording[R]:
        """One run under observation."""
        recording = record(function, arguments, owned.memories, drawn or [], generator)
        if (place := self._undo.assigned()) is not None:
            raise NotRecordable(f"an assignment to {place}")
        if self._undo.drew():
            raise NotRecordable("random numbers from another source than the one it is given")
        return recording

    def _as_written(self, given: list[Any], generator: Any) -> R:
        return self._function(*given, generator)

    def holds(self, generator: Any) -> bool:
        """Whether it may be repeated: nothing it rests on has changed."""
        return self.watch.holds()

    def __call__(self, given: list[Any], tensors: list[Tensor], generator: Any) -> R:
        self._calls += 1
        every = self._executor.check_every
        if every and self._calls % every == 0:
            self._check(given, tensors, generator)
        return self._repeat(given, tensors, generator)

    def _check(self, given: list[Any], tensors: list[Tensor], generator: Any) -> None:
        """Compares a call with a run as written; ExecutionError if they differ."""
        undo = Undo(Owned(self._executor.owner), generator)
        try:
            with self._executor.as_written():
                written = mapped(Tensor.clone, self._as_written(given, generator)), undo.values()
            undo()
            compare(given, written, (self._repeat(given, tensors, generator), undo.values()), undo.before())
        except ExecutionError as error:
            raise ExecutionError(f"call {self._calls} of {self._function.__qualname__}: {error}") from error
        finally:
            undo()


class _OnCPU(_Recorded[R]):
    """A list of calls of NumPy and torch. Random numbers are drawn beforehand, as many as the function asked for."""

    def _make(self, owned: Owned, given: list[Any], generator: Any) -> None:
        own = mapped(Tensor.clone, given, _HostOnly.instead_of)
        inputs = tensors_of(own)
        device = torch.device("cpu") if generator is None else generator.device
        other = torch.Generator(device)  # the run's own stream must not move
        recorder = Recorder(other)

        def finding_draws(notes: Notes) -> R:
            recorder.around = notes.paused
            return self._function(*own, recorder)

        first = self._run(finding_draws, inputs, owned)
        self._undo()
        self._draws = recorder.draws
        numbers = [draw.take(other) for draw in self._draws]
        second = self._run(lambda notes: self._function(*own, Tape(numbers)), inputs, owned, numbers)
        if not first.same_as(second):
            raise NotRecordable("numbers that differ from run to run, although nothing that it may read has changed")
        seeded = any(torch.Tag.nondeterministic_seeded in operation.function.tags for operation in second.operations)
        if generator is None and self._draws and seeded:
            raise NotRecordable("numbers drawn in two ways from torch's global generator, whose order would change")
        written = mapped(Tensor.clone, second.output), self._undo.values()
        self._undo()
        try:
            self._program = HostProgram(second, inputs, numbers)
        except (TypeError, ValueError, RuntimeError, OverflowError, IndexError) as error:
            raise NotRecordable(f"an operation that NumPy cannot repeat ({error})") from error
        if self._program.large and torch.get_num_threads() > 1 and self._executor.execution == "auto":
            raise NotRecordable("tensors so large that torch's several threads are faster")
        self.watch = owned.watch(self._program.read)
        self._numbers = numbers
        try:
            output = self._program(tensors_of(given))
        except (TypeError, ValueError, RuntimeError, IndexError, OverflowError) as error:
            raise NotRecordable(f"an operation that cannot be repeated ({error})") from error
        compare(given, written, (output, self._undo.values()), self._undo.before())

    def _repeat(self, given: list[Any], tensors: list[Tensor], generator: Any) -> R:
        for draw, numbers in zip(self._draws, self._numbers):
            draw.fill(numbers, generator)
        return self._program(tensors)


class _OnGPU(_Recorded[R]):
    """A CUDA graph, which draws from the generator itself."""

    def _make(self, owned: Owned, given: list[Any], generator: Any) -> None:
        self._generator = generator
        inputs = on_device(mapped(Tensor.clone, given, _HostOnly.instead_of), self._executor.device)
        runs = []
        for _ in range(2):
            arguments = tensors_of(inputs)
            runs.append(self._run(lambda notes: self._function(*inputs, generator), arguments, owned, None, generator))
            self._undo()
        first, second = runs
        if not first.same_as(second):
            raise NotRecordable("numbers that differ from run to run, although nothing that it may read has changed")
        results = {id(tensor) for tensor in (*second.results(), *tensors_of(inputs))}
        read = {id(tensor): tensor for tensor in second.read() if id(tensor) not in results}
        del runs, first, second  # and with them the memory of all that they made
        self.watch = owned.watch(list(read.values()))
        try:
            self._program = GraphProgram(self._function, inputs, generator)
        except RuntimeError as error:
            raise NotRecordable(f"something that a CUDA graph cannot hold ({str(error).splitlines()[0]})") from error
        self._undo()
        written = mapped(Tensor.clone, self._as_written(inputs, generator)), self._undo.values()
        self._undo()
        compare(given, written, (self._program(tensors_of(given)), self._undo.values()), self._undo.before())

    def holds(self, generator: Any) -> bool:
        return generator is self._generator and super().holds(generator)

    def _as_written(self, given: list[Any], generator: Any) -> R:
        return self._function(*on_device(given, self._executor.device), generator)

    def _repeat(self, given: list[Any], tensors: list[Tensor], generator: Any) -> R:
        return self._program(tensors)


def _class_of(owner: Any) -> Any:
    return owner.__class__


@cache
def _recordable_names(kind: Any) -> tuple[str, ...]:
    found = {name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, recordable)}
    return tuple(sorted(found))


def _ambient(device: torch.device) -> tuple[Hashable, ...]:
    """What decides, besides the arguments, what an operation does."""
    autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), *autocast


def _check_leaves(given: list[Any]) -> None:
    def check(value: Any) -> Any:
        if not isinstance(value, (*PLAIN, np.ndarray)):
            raise NotRecordable(f"an argument of the type {type(value).__name__}, which nobody can see change")

    mapped(lambda tensor: tensor, given, check)


class _HostOnly:
    """Stands for an array in a batch, which stays on the host: a step that uses it runs as written."""

    @staticmethod
    def instead_of(value: Any) -> Any:
        return _HostOnly() if isinstance(value, np.ndarray) else value

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return np.ndarray  # what `isinstance` asks for

    def _refuse(self, *_: Any) -> Any:
        raise NotRecordable("an array in its arguments, which a recording would not see change")

    __getattr__ = __getitem__ = __len__ = __iter__ = __bool__ = __float__ = __int__ = __array__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __hash__ = _refuse


def compare(
    given: Any, written: tuple[Any, list[Tensor]], repeated: tuple[Any, list[Tensor]], before: list[Tensor]
) -> None:
    """Compares what a function returned and left behind; ExecutionError names the first that differs.

    Rounding may differ, and where a gradient is nearly 0 Adam makes a step of either sign of it. So differences are measured
    over each tensor: of a result against its size and that of all numbers involved, of a state against its movement.
    """
    ours, theirs = tensors_of(written[0]), tensors_of(repeated[0])
    if [(a.shape, a.dtype) for a in ours] != [(b.shape, b.dtype) for b in theirs]:
        raise ExecutionError("a recording that gave results of another form than the code as written")
    scale = max([1.0, *(_size(tensor, largest=True) for tensor in (*tensors_of(given), *ours))])
    for index, (a, b) in enumerate(zip(ours, theirs)):
        if not _close(a, b, 1e-3 * _size(a) + 1e-5 * scale * max(a.numel(), 1) ** 0.5):
            raise ExecutionError(f"a recording that gave something else than the code as written (result {index})")
    for a, b, start in zip(written[1], repeated[1], before):
        if not _close(a, b, 1e-6 * _size(a) + 0.1 * _size(a.double() - start.double())):
            raise ExecutionError(
                "a recording that changed the weights or other tensors in another way than the code as written"
            )


def _size(tensor: Tensor, *, largest: bool = False) -> float:
    """The norm of what is finite in a tensor, or its largest number."""
    numbers = torch.where(tensor.isfinite(), tensor, 0).detach().double()
    return float(numbers.abs().amax() if largest and numbers.numel() else numbers.norm())


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if not a.is_floating_point():
        return bool((a != b).sum() <= max(1, a.numel() // 100))  # a choice between equals may fall either way
    finite = a.isfinite()
    special = torch.equal(
        torch.where(finite, 0, a).nan_to_num(nan=0.5), torch.where(b.isfinite(), 0, b).nan_to_num(nan=0.5)
    )
    return (
        special
        and torch.equal(finite, b.isfinite())
        and _size(torch.where(finite, a.double() - b.double(), 0)) <= tolerance
    )
