"""A function of small tensors on the CPU, recorded once and repeated with as little in between as possible.

At the batch sizes of acting (a few rows) an operation of torch costs several times its work. The function is run once as it is
written, and every operation is noted with the memory that it read and wrote. From then on the inputs are copied to where they
were, and the operations are repeated on that memory: simple ones and narrow matrix products by NumPy, which takes a fraction of
the time, everything else by torch. Views cost nothing, because their memory is that of what they are a view of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.utils.spaces import Array

OutputT = TypeVar("OutputT")
Call = Callable[[], Any]
Operation = tuple[Any, tuple[Any, ...], dict[str, Any], Any]
"""What was called, its arguments, and its result."""

LARGEST_SHARED = 2**18
"""Numbers in a tensor above which several threads are left to torch: NumPy works with one."""

NARROW, ONE_THREAD = 32, 2**18
"""Rows or columns of a matrix product for which NumPy is faster, and multiplications up to which NumPy keeps to one thread."""

aten = torch.ops.aten


class HostProgram(Generic[OutputT]):
    """What a function did once, to be repeated with other inputs of the same shapes.

    As with a CUDA graph, the function must do the same operations on every call. `repeatable` is false if one of them told it
    what a tensor holds, or gave a tensor whose shape depends on that; such a program must not be called.
    """

    def __init__(self, function: Callable[[], OutputT], inputs: Sequence[Tensor], numbers: Sequence[Tensor] = ()):
        """`function` computes from `inputs`, which from now on belong to the program, and `numbers`.

        Whoever calls the program writes the numbers where they lie, anew before each call.
        """
        with _Recording() as recording:
            output = function()
        self._copied_output = _copier(output)
        operations = recording.operations
        results = [result for func, *_, results in operations for result in tensors_in(results) if not in_place(func)]
        read = [tensor for _, args, kwargs, _ in operations for tensor in tensors_in((args, kwargs))]
        inside = {id(tensor) for tensor in (*inputs, *numbers, *results)}
        outside = {id(tensor): tensor for tensor in read if id(tensor) not in inside}
        self._outside = list(outside.values())
        self._pointers = [tensor.data_ptr() for tensor in self._outside]
        self._inputs = [tensor.detach().numpy() for tensor in inputs]
        fits = torch.get_num_threads() == 1 or all(result.numel() <= LARGEST_SHARED for result in results)
        self.repeatable = fits and not any(_tells(func, args) for func, args, *_ in operations)
        if self.repeatable:
            kept = {_memory(tensor) for tensor in (*inputs, *numbers, *outside.values(), *tensors_in(output))}
            operations = _with_shared_memory(operations, kept)
        self._calls = [call for operation in operations for call in _calls(*operation)] if self.repeatable else []

    def outdated(self) -> bool:
        """Whether a tensor that the function read besides its inputs (a weight) lies elsewhere now."""
        return [tensor.data_ptr() for tensor in self._outside] != self._pointers

    def __call__(self, inputs: Sequence[Tensor]) -> OutputT:
        """What the function would return."""
        for own, tensor in zip(self._inputs, inputs, strict=True):
            own[...] = tensor.numpy()
        with np.errstate(all="ignore"):  # torch says nothing of infinities either; the optimisers look for them
            for call in self._calls:
                call()
        output: OutputT = self._copied_output()
        return output


class _Recording(TorchDispatchMode):
    """Notes each operation: what was called, with what, and what came out."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled inside; keeping the compiler out would import it, which takes a second

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result


def _tells(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether Python learns from this operation what a tensor holds, or it gives a tensor other memory."""
    if func is aten.index.Tensor:
        return any(index.dtype == torch.bool for index in tensors_in(args[1]))
    return func.overloadpacket in (
        aten._local_scalar_dense,
        aten.equal,
        aten.nonzero,
        aten.masked_select,
        aten.resize_,
        aten.set_,
    )


def tensors_in(values: Any) -> list[Tensor]:
    """All tensors in nested tuples, lists, dicts and dataclasses."""
    if isinstance(values, Tensor):
        return [values]
    if is_dataclass(values):
        values = [getattr(values, field.name) for field in fields(values)]
    elif isinstance(values, dict):
        values = list(values.values())
    return [tensor for value in values for tensor in tensors_in(value)] if isinstance(values, tuple | list) else []


def in_place(func: Any) -> bool:
    """Whether an operation changes its arguments, and its result is one of them or nothing."""
    return bool(func._schema.is_mutable)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _with_shared_memory(operations: Sequence[Operation], kept: set[int]) -> list[Operation]:
    """The same operations with results in memory that an earlier one no longer needs, which a cache may still hold.

    Memory in `kept` is left to whom it belongs.
    """
    used = [{_memory(tensor) for tensor in tensors_in(operation[1:])} for operation in operations]
    last = {memory: index for index, memories in enumerate(used) for memory in memories}
    homes: dict[int, torch.UntypedStorage] = {}
    free: dict[int, list[torch.UntypedStorage]] = {}
    for index, (*_, results) in enumerate(operations):
        for result in tensors_in(results):
            memory, storage = _memory(result), result.untyped_storage()
            if memory not in homes and memory not in kept:
                unused = free.get(storage.nbytes())
                homes[memory] = unused.pop() if unused else storage
        for memory in used[index]:
            if memory in homes and last[memory] == index:
                free.setdefault(homes[memory].nbytes(), []).append(homes[memory])

    def moved(tensor: Tensor) -> Tensor:
        home = homes.get(_memory(tensor))
        if home is None or home.data_ptr() == _memory(tensor):
            return tensor
        offset, shape, strides = tensor.storage_offset(), tensor.shape, tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(home, offset, shape, strides)

    return [(func, *(_mapped(moved, part) for part in parts)) for func, *parts in operations]


def _calls(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> list[Call]:
    """What repeats one operation on the same memory."""
    returns = func._schema.returns
    if returns and all(value.alias_info is not None and not value.alias_info.is_write for value in returns):
        return []  # a view
    known = IN_NUMPY.get(func)
    if known is not None and all(tensor.dtype in NUMBERS for tensor in tensors_in((args, kwargs, result))):
        calls = known(_arrays(result), *_arrays(args), **_arrays(kwargs))
        if calls is not None:
            return calls
    if func in IN_TORCH:
        return [partial(IN_TORCH[func], *_detached(args), out=_detached(result), **kwargs)]
    args, kwargs = _detached(args), _detached(kwargs)
    if in_place(func):
        return [partial(func._op, *args, **kwargs)]
    results = _detached(list(result) if isinstance(result, tuple | list) else [result])
    variant, names = _with_given_memory(func)
    if variant is None or not all(isinstance(part, Tensor) for part in results):
        return [partial(_repeat, func, args, kwargs, results)]
    return [partial(variant._op, *args, **kwargs, **dict(zip(names, results)))]


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
    for old, new in zip(tensors_in(result), tensors_in(again)):
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
    if is_dataclass(values) and not isinstance(values, type):
        make: Callable[..., Any] = type(values)
        parts = {field.name: _copier(getattr(values, field.name)) for field in fields(values)}
        return lambda: make(**{name: copied() for name, copied in parts.items()})
    if isinstance(values, tuple | list):
        kind, items = type(values), [_copier(value) for value in values]
        return lambda: kind(copied() for copied in items)
    return lambda: values


_arrays = partial(_mapped, lambda tensor: tensor.detach().numpy())
_detached = partial(_mapped, lambda tensor: tensor.detach())

NUMBERS = {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}
"""What NumPy knows as torch does."""

Repeat = Callable[..., list[Call] | None]
"""(out, *arguments) of an operation → what does it again; None if not with these arguments."""


def _ufunc(function: np.ufunc) -> Repeat:
    def repeat(out: Array, *args: Any, **kwargs: Any) -> list[Call] | None:
        if kwargs or len(args) != function.nin:  # e.g. `alpha`, which scales what is added
            return None
        first = args[0]
        return [partial(function, first, *(_like(first, other) for other in args[1:]), out=out)]

    return repeat


def _like(array: Any, value: Any) -> Any:
    """A number beside an array of floats in that array's precision, so that NumPy need not convert it on every call."""
    known = isinstance(array, np.ndarray) and array.dtype.kind == "f" and isinstance(value, int | float)
    return np.array(value, array.dtype) if known else value


def _copy(out: Array, source: Any, *args: Any, **kwargs: Any) -> list[Call]:
    return [partial(np.copyto, out, source, casting="unsafe")]


def _copy_into(out: Array, target: Array, source: Any, *args: Any) -> list[Call]:
    return _copy(target, source)


def _fill(value: float) -> Repeat:
    return lambda out, *args, **kwargs: [partial(out.fill, value)]


def _clamp(out: Array, x: Array, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> list[Call]:
    low, high = min if low is None else low, max if high is None else high
    calls: list[Call] = []
    if low is not None:
        calls.append(partial(np.maximum, x, low, out=out))
        x = out
    if high is not None:
        calls.append(partial(np.minimum, x, high, out=out))
    return calls


def _log_softmax_backward(out: Array, gradient: Array, log_probs: Array, dim: int, dtype: Any) -> list[Call]:
    probs, total = np.empty_like(log_probs), np.empty_like(log_probs.take([0], axis=dim))
    return [
        partial(np.exp, log_probs, out=probs),
        partial(np.add.reduce, gradient, axis=dim, out=total, keepdims=True),
        partial(np.multiply, probs, total, out=probs),
        partial(np.subtract, gradient, probs, out=out),
    ]


def _slice_backward(
    out: Array, gradient: Array, sizes: Sequence[int], dim: int, start: int, end: int, step: int
) -> list[Call]:
    part = out[(slice(None),) * (dim % out.ndim) + (slice(start, end, step),)]
    return [partial(out.fill, 0), partial(np.copyto, part, gradient)]


def _argmax(out: Array, x: Array, dim: int | None = None, keepdim: bool = False) -> list[Call] | None:
    return None if keepdim else [partial(x.argmax, dim, out)]


def _mean(
    out: Array, x: Array, dims: Sequence[int] | None = None, keepdim: bool = False, dtype: Any = None
) -> list[Call] | None:
    if dtype is not None or not x.size:
        return None
    axes = tuple(dims) if dims else None
    return [
        partial(np.add.reduce, x, axis=axes, out=out, keepdims=keepdim),
        partial(np.true_divide, out, _like(out, x.size // out.size), out=out),
    ]


def _reduced(function: np.ufunc) -> Repeat:
    """Over all numbers of an array."""

    def repeat(out: Array, x: Array, dims: Sequence[int] = (), *args: Any, **kwargs: Any) -> list[Call] | None:
        return None if dims or args or kwargs or not x.size else [partial(function.reduce, x, axis=None, out=out)]

    return repeat


def _min_dim(out: Sequence[Array], x: Array, dim: int, keepdim: bool = False) -> list[Call] | None:
    return None if keepdim else [partial(np.minimum.reduce, x, axis=dim, out=out[0]), partial(x.argmin, dim, out[1])]


def _product(out: Array, a: Array, b: Array) -> list[Call] | None:
    """NumPy's for small products with a narrow result, for which torch's takes up to ten times as long."""
    inner, rows, columns = a.shape[-1], out.shape[-2], out.shape[-1]
    if inner == 1:
        return [partial(np.multiply, a, b, out=out)]
    # With a side of 1 NumPy would use several threads already for vectors of a few thousand numbers.
    narrow = 1 < min(rows, columns) <= NARROW and inner * rows * columns <= ONE_THREAD
    return [partial(np.matmul, a, b, out=out)] if narrow and out.flags.c_contiguous else None


def _sum_with_product(out: Array, x: Array, a: Array, b: Array, **kwargs: Any) -> list[Call] | None:
    product = None if kwargs else _product(out, a, b)
    return None if product is None else [*product, partial(np.add, out, x, out=out)]


def _cat(out: Array, parts: Sequence[Array], dim: int = 0) -> list[Call]:
    return [partial(np.concatenate, parts, axis=dim, out=out)]


def _stack(out: Array, parts: Sequence[Array], dim: int = 0) -> list[Call]:
    return _cat(out, [np.expand_dims(part, dim) for part in parts], dim)


def _power(out: Array, x: Array, exponent: Any) -> list[Call] | None:
    if exponent == 1:  # what the gradient of a square asks for
        return _copy(out, x)
    return [partial(np.square, x, out=out)] if exponent == 2 else None


UFUNCS = {
    "abs": np.abs,
    "add": np.add,
    "bitwise_and": np.bitwise_and,
    "bitwise_not": np.bitwise_not,
    "bitwise_or": np.bitwise_or,
    "clamp_max": np.minimum,
    "clamp_min": np.maximum,
    "div": np.true_divide,
    "eq": np.equal,
    "exp": np.exp,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logical_and": np.logical_and,
    "logical_not": np.logical_not,
    "logical_or": np.logical_or,
    "lt": np.less,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "sign": np.sign,
    "sqrt": np.sqrt,
    "sub": np.subtract,
    "tanh": np.tanh,
}


def _overloads(name: str) -> list[Any]:
    """An operation on tensors or on a tensor and a number, and its form in place."""
    packets = [getattr(aten, form) for form in (name, f"{name}_") if hasattr(aten, form)]
    return [getattr(packet, kind) for packet in packets for kind in packet.overloads() if kind in KINDS]


KINDS = ("default", "Tensor", "Scalar")

IN_NUMPY: dict[Any, Repeat] = {
    **{overload: _ufunc(function) for name, function in UFUNCS.items() for overload in _overloads(name)},
    **dict.fromkeys(_overloads("clamp"), _clamp),
    **{getattr(aten, name).default: _fill(0) for name in ("zeros", "zeros_like", "new_zeros")},
    **{getattr(aten, name).default: _fill(1) for name in ("ones", "ones_like", "new_ones")},
    **{getattr(aten, name).default: _copy for name in ("clone", "_to_copy", "scalar_tensor")},
    aten.rsub.Scalar: lambda out, x, number: [partial(np.subtract, _like(x, number), x, out=out)],
    aten._log_softmax_backward_data.default: _log_softmax_backward,
    aten.slice_backward.default: _slice_backward,
    aten.argmax.default: _argmax,
    aten.mean.default: _mean,
    aten.mean.dim: _mean,
    aten.any.default: _reduced(np.logical_or),
    aten.amax.default: _reduced(np.maximum),
    aten.sum.default: _reduced(np.add),
    aten.min.dim: _min_dim,
    aten.mm.default: _product,
    aten.bmm.default: _product,
    aten.addmm.default: _sum_with_product,
    aten.baddbmm.default: _sum_with_product,
    aten.pow.Tensor_Scalar: _power,
    aten.cat.default: _cat,
    aten.stack.default: _stack,
    aten.copy_.default: _copy_into,
}

IN_TORCH: dict[Any, Callable[..., Any]] = {
    aten.addmm.default: torch.addmm,
    aten.mm.default: torch.mm,
    aten.bmm.default: torch.bmm,
    aten.baddbmm.default: torch.baddbmm,
    aten.relu.default: lambda x, out: torch.clamp_min(x, 0, out=out),
    aten.relu_.default: lambda x, out: torch.relu_(x),
    aten._log_softmax.default: lambda x, dim, _, out: torch.log_softmax(x, dim, out=out),
    aten.where.self: torch.where,
    aten.masked_fill_.Scalar: lambda x, mask, value, out: x.masked_fill_(mask, value),
    aten.gather.default: torch.gather,
    aten.scatter_add.default: torch.scatter_add,
    aten.sum.dim_IntList: torch.sum,
    aten.linalg_vector_norm.default: torch.linalg.vector_norm,
    aten.std.correction: torch.std,
}
"""What NumPy does no faster, by the way into torch that costs least."""
