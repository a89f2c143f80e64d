"""Operations of torch as NumPy does them, in a fraction of the time where tensors are small, and shorter ways into torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rl_training.utils.spaces import Array

Call = Callable[[], Any]

NARROW, ONE_THREAD = 32, 2**18
"""Rows or columns of a matrix product for which NumPy is faster, and multiplications up to which NumPy keeps to one thread."""

aten = torch.ops.aten

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


def _clamp(
    out: Array, x: Array, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None
) -> list[Call] | None:
    low, high = min if low is None else low, max if high is None else high
    if any(isinstance(bound, np.ndarray) and np.may_share_memory(bound, out) for bound in (low, high)):
        return None
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

CONVERTING = {
    *(overload for name in ("logical_and", "logical_not", "logical_or") for overload in _overloads(name)),
    *(
        getattr(aten, name).default
        for name in ("clone", "_to_copy", "scalar_tensor", "copy_", "argmax", "slice_backward")
    ),
    *(getattr(aten, name).default for name in ("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones")),
    aten.min.dim,
    aten._log_softmax_backward_data.default,
}
"""Operations whose numbers may be of several types, because NumPy has no choice what to compute in."""

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
