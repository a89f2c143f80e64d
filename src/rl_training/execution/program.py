"""A recorded function on the CPU, repeated with as little in between as possible.

At the batch sizes of acting (a few rows) an operation of torch costs several times its work. The inputs are copied to where they
were when the function was recorded, and its operations are repeated on that memory: simple ones and narrow matrix products by
NumPy, everything else by torch. Views cost nothing, because their memory is that of what they are a view of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.execution.batches import tensors_of
from rl_training.execution.numpy_ops import CONVERTING, IN_NUMPY, IN_TORCH, NUMBERS, Call
from rl_training.execution.owned import PLAIN, memory_of
from rl_training.execution.recording import Operation, Recording

OutputT = TypeVar("OutputT")

LARGEST_SHARED = 2**18
"""Numbers in a tensor above which several threads are left to torch: NumPy works with one."""


class HostProgram(Generic[OutputT]):
    """What a function did once, to be repeated with other inputs of the same shapes."""

    def __init__(self, recording: Recording[OutputT], inputs: Sequence[Tensor], numbers: Sequence[Tensor]):
        """`inputs` and `numbers` are what the recorded run read; from now on they belong to the program.

        Whoever calls the program writes the random numbers where they lie, anew before each call.
        """
        operations = recording.operations
        own = {id(tensor) for tensor in (*inputs, *numbers, *_made(operations))}
        outside = {id(tensor): tensor for tensor in recording.read() if id(tensor) not in own}
        self.read = list(outside.values())
        """Tensors that it reads besides its inputs, such as weights."""
        self.large = any(tensor.numel() > LARGEST_SHARED for tensor in _made(operations))
        self._inputs = [tensor.detach().numpy() for tensor in inputs]
        self._output = _copier(recording.output)
        given = {memory_of(tensor) for tensor in (*inputs, *numbers, *self.read)}
        kept = given | {memory_of(tensor) for tensor in tensors_of(recording.output)}
        operations = _with_shared_memory(operations, kept)
        self._calls = [call for operation in operations for call in _calls(operation)]
        # What the recorded run has left there must not pass for a result: a call that writes nothing would go unnoticed.
        for tensor in _made(operations):
            if memory_of(tensor) not in given:
                tensor.detach().fill_(math.nan if tensor.is_floating_point() else 1)

    def __call__(self, inputs: Sequence[Tensor]) -> OutputT:
        """What the function would return."""
        for own, tensor in zip(self._inputs, inputs, strict=True):
            own[...] = tensor.numpy()
        with np.errstate(all="ignore"):  # torch says nothing of infinities either; the optimisers look for them
            for call in self._calls:
                call()
        output: OutputT = self._output()
        return output


def _made(operations: Sequence[Operation]) -> list[Tensor]:
    """New tensors and views that the operations gave; not what they changed in place."""
    found: list[Tensor] = []
    for operation in operations:
        results = operation.result if isinstance(operation.result, tuple | list) else [operation.result]
        if len(operation.function._schema.returns) == len(results):
            returns = operation.function._schema.returns
            results = [
                result for result, how in zip(results, returns) if not (how.alias_info and how.alias_info.is_write)
            ]
        found += tensors_of(results)
    return found


def _with_shared_memory(operations: Sequence[Operation], kept: set[int]) -> list[Operation]:
    """The same operations with results in memory that an earlier one no longer needs, which a cache may still hold.

    Memory in `kept` is left to whom it belongs.
    """
    used = [{memory_of(tensor) for tensor in tensors_of((op.args, op.kwargs, op.result))} for op in operations]
    last = {memory: index for index, memories in enumerate(used) for memory in memories}
    homes: dict[int, torch.UntypedStorage] = {}
    free: dict[int, list[torch.UntypedStorage]] = {}
    for index, operation in enumerate(operations):
        for result in tensors_of(operation.result):
            memory, storage = memory_of(result), result.untyped_storage()
            if memory not in homes and memory not in kept:
                unused = free.get(storage.nbytes())
                homes[memory] = unused.pop() if unused else storage
        for memory in used[index]:
            if memory in homes and last[memory] == index:
                free.setdefault(homes[memory].nbytes(), []).append(homes[memory])

    def moved(tensor: Tensor) -> Tensor:
        home = homes.get(memory_of(tensor))
        if home is None or home.data_ptr() == memory_of(tensor):
            return tensor
        offset, shape, strides = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(home, offset, shape, strides)

    return [
        Operation(op.function, *(_mapped(moved, part) for part in (op.args, op.kwargs, op.result))) for op in operations
    ]


def _calls(operation: Operation) -> list[Call]:
    """What repeats one operation on the same memory."""
    func, args, kwargs, result = operation.function, operation.args, operation.kwargs, operation.result
    returns = func._schema.returns
    if returns and all(value.alias_info is not None and not value.alias_info.is_write for value in returns):
        return []  # a view
    known = IN_NUMPY.get(func)
    if known is not None and _one_kind(func, args, kwargs, result):
        calls = known(_arrays(result), *_arrays(args), **_arrays(kwargs))
        if calls is not None:
            return calls
    if func in IN_TORCH:
        return [partial(IN_TORCH[func], *_detached(args), out=_detached(result), **kwargs)]
    args, kwargs = _detached(args), _detached(kwargs)
    in_place = all(value.alias_info is not None for value in returns)
    if func._schema.is_mutable and in_place:
        return [partial(func._op, *args, **kwargs)]
    results = _detached(list(result) if isinstance(result, tuple | list) else [result])
    variant, names = _with_given_memory(func)
    if func._schema.is_mutable or variant is None or not all(isinstance(part, Tensor) for part in results):
        return [partial(_repeat, func, args, kwargs, results)]
    return [partial(variant._op, *args, **kwargs, **dict(zip(names, results)))]


def _one_kind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
    """Whether NumPy computes in the same type as torch: all numbers are of one kind, so that neither has a choice."""
    given = {tensor.dtype for tensor in tensors_of((args, kwargs))}
    made = {tensor.dtype for tensor in tensors_of(result)}
    if not given | made <= NUMBERS:
        return False
    if func in CONVERTING:
        return True
    plain = [value for value in (*args, *kwargs.values()) if isinstance(value, bool | int | float)]
    floats = given <= {torch.float32, torch.float64}
    whole = given == {torch.int64} and all(type(value) is int and abs(value) < 2**31 for value in plain)
    return len(given) <= 1 and made <= given | {torch.bool} and (floats or whole or not plain)


@cache
def _with_given_memory(func: Any) -> tuple[Any, tuple[str, ...]]:
    """(the form of an operation that writes its results where it is told, the names under which it is told); None if none."""
    arguments = [(argument.name, str(argument.type)) for argument in func._schema.arguments]
    for form in map(partial(getattr, func.overloadpacket), func.overloadpacket.overloads()):
        given = tuple(argument.name for argument in form._schema.arguments if argument.is_out)
        others = [(argument.name, str(argument.type)) for argument in form._schema.arguments if not argument.is_out]
        if given and len(given) == len(func._schema.returns) and others == arguments:
            return form, given
    return None, ()


def _repeat(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
    again = func(*args, **kwargs)
    for old, new in zip(tensors_of(result), tensors_of(again), strict=True):
        if old is not new:
            old.copy_(new)


def _mapped(function: Callable[[Tensor], Any], values: Any) -> Any:
    """The same nesting of tuples, lists and dicts with other tensors."""
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, dict):
        return {key: _mapped(function, value) for key, value in values.items()}
    return type(values)(_mapped(function, value) for value in values) if isinstance(values, tuple | list) else values


def _copier(values: Any) -> Call:
    """What makes copies of the tensors in nested tuples, lists, dicts and dataclasses, in the same nesting."""
    if isinstance(values, Tensor):
        return values.detach().clone
    if isinstance(values, dict):
        copiers = {key: _copier(value) for key, value in values.items()}
        return lambda: {key: copied() for key, copied in copiers.items()}
    if is_dataclass(values) and not isinstance(values, type) and not hasattr(values, "__post_init__"):
        make: Callable[..., Any] = type(values)
        parts = {field.name: _copier(getattr(values, field.name)) for field in fields(values)}
        return lambda: make(**{name: copied() for name, copied in parts.items()})
    if isinstance(values, tuple | list):
        kind, items = type(values), [_copier(value) for value in values]
        if hasattr(values, "_fields"):  # a named tuple
            return lambda: kind(*(copied() for copied in items))
        return lambda: kind(copied() for copied in items)
    if not isinstance(values, PLAIN):
        raise TypeError(f"a result of the type {type(values).__name__}")
    return lambda: values


_arrays = partial(_mapped, lambda tensor: tensor.detach().numpy())
_detached = partial(_mapped, lambda tensor: tensor.detach())
