"""What a function of tensors does, noted operation by operation, and whether it can be repeated from those notes.

It fails closed: only operations known to repeat are accepted. Whatever tells Python what a tensor holds, gives a tensor whose shape
depends on that, or writes where nothing could be undone, is an obstacle with a name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.execution.batches import tensors_of
from rl_training.execution.owned import memory_of

OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of torch: what was called, with what, and what came out."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def signature(self) -> tuple[Any, ...]:
        """Which operation it is, without the tensors."""
        return self.function, _without_tensors(self.args), _without_tensors(self.kwargs)


class NotRecordable(Exception):
    """A function cannot be repeated from notes; the message says because of what."""


@dataclass(frozen=True)
class Recording(Generic[OutputT]):
    """A function's one run."""

    operations: list[Operation]
    output: OutputT

    def same_as(self, other: Recording[OutputT]) -> bool:
        """Whether both runs did the same operations with the same numbers beside the tensors."""
        return [own.signature for own in self.operations] == [its.signature for its in other.operations]

    def results(self) -> list[Tensor]:
        """Tensors that were made on the way."""
        return [tensor for operation in self.operations for tensor in tensors_of(operation.result)]

    def read(self) -> list[Tensor]:
        return [tensor for operation in self.operations for tensor in tensors_of((operation.args, operation.kwargs))]


def record(
    function: Callable[[Notes], OutputT],
    arguments: Iterable[Tensor],
    owned: set[int],
    drawn: Iterable[Tensor] = (),
    generator: torch.Generator | None = None,
) -> Recording[OutputT]:
    """Runs a function of tensors, of those in the memories `owned` and of random numbers; NotRecordable at the first obstacle."""
    theirs = {memory_of(tensor) for tensor in arguments} - {0}
    notes = Notes({*owned, *theirs, *(memory_of(tensor) for tensor in drawn)}, theirs, generator)
    try:
        with _Reads(notes), _reads_in_backward(notes), notes:
            output = function(notes)
    except NotRecordable:
        raise
    except Exception as error:
        if notes.obstacle is not None:  # somebody caught it on the way
            raise NotRecordable(notes.obstacle) from error
        raise
    if notes.obstacle is not None:
        raise NotRecordable(notes.obstacle)
    if any(tensor.requires_grad for tensor in tensors_of(output)):
        raise NotRecordable("a result that carries a gradient (`detach` it if nobody needs that)")
    return Recording(notes.operations, output)


class Notes(TorchDispatchMode):
    """Notes each operation, and refuses those that could not be repeated before they do anything."""

    def __init__(self, known: set[int], arguments: set[int], generator: torch.Generator | None) -> None:
        super().__init__()
        self._arguments, self._generator = arguments, generator
        self.operations: list[Operation] = []
        self.obstacle: str | None = None
        self._pausing = False
        self._kept: list[Any] = []  # so that its memory is not given to another tensor
        self._known = {*known, 0}  # a tensor without elements lies nowhere

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled inside; keeping the compiler out would import it, which takes a second

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Notes nothing; what is made meanwhile may be used."""
        self._pausing = True
        try:
            yield
        finally:
            self._pausing = False

    def refuse(self, obstacle: str) -> None:
        self.obstacle = self.obstacle or obstacle
        raise NotRecordable(self.obstacle)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._pausing:
            result = func(*args, **kwargs)
            self._known.update(memory_of(tensor) for tensor in tensors_of(result))
            self._kept.append(result)
            return result
        name = func.overloadpacket.__name__
        if name not in REPEATABLE or (func.namespace != "aten"):
            self.refuse(f"the operation {func}")
        if name == "index" and any(index.dtype in (torch.bool, torch.uint8) for index in tensors_of(args[1])):
            self.refuse("an index of flags, whose result depends on how many are set (torch.where keeps the shape)")
        if torch.Tag.inplace_view in func.tags:
            self.refuse(f"the operation {func}, which gives a tensor another shape in place")
        source = kwargs.get("generator")
        if source is not None and source is not self._generator:
            self.refuse(f"the operation {func}, which draws from a generator of its own")
        if func._schema.is_mutable and any(
            memory_of(tensor) in self._arguments for tensor in _written(func, args, kwargs)
        ):
            self.refuse(f"the operation {func}, which changes an argument")
        for tensor in tensors_of((args, kwargs)):
            if memory_of(tensor) not in self._known:
                self.refuse(
                    f"a tensor given to {func} that is neither an argument nor an attribute, or was made from Python numbers"
                )
        result = func(*args, **kwargs)
        made = tensors_of(result)
        if result is not None and (not made or not isinstance(result, Tensor | tuple | list)):
            self.refuse(f"the operation {func}, which gives Python a value")
        self._known.update(memory_of(tensor) for tensor in made)
        self.operations.append(Operation(func, args, kwargs, result))
        return result


class _Reads(TorchFunctionMode):
    """Sees the ways by which Python gets at a tensor's numbers or memory without an operation."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self._notes = notes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS:
            self._notes.refuse(f"Tensor.{name}, by which Python reads or replaces what a tensor holds")
        return func(*args, **(kwargs or {}))


@contextmanager
def _reads_in_backward(notes: Notes) -> Iterator[None]:
    """Refuses the ways to a tensor's numbers also where a gradient is computed, which torch's mode does not reach."""

    def refusing(name: str) -> Any:
        return lambda *_, **__: notes.refuse(f"Tensor.{name}, by which Python reads what a tensor holds")

    before = {name: torch.Tensor.__dict__.get(name) for name in ("tolist", "numpy", "__array__")}
    for name in before:
        setattr(torch.Tensor, name, refusing(name))
    try:
        yield
    finally:
        for name, method in before.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """What an operation changes."""
    found = []
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found.append(args[index] if index < len(args) else kwargs.get(argument.name))
    return tensors_of(found)


def _without_tensors(values: Any) -> Any:
    if isinstance(values, Tensor):
        return (values.shape, values.dtype)
    if isinstance(values, tuple | list):
        return tuple(_without_tensors(value) for value in values)
    if isinstance(values, dict):
        return tuple((key, _without_tensors(value)) for key, value in values.items())
    return None if isinstance(values, torch.Generator) else values


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


READS = _words(
    """
    tolist numpy item __array__ __bool__ __float__ __int__ __index__ __complex__ __contains__ __repr__ __format__ __str__
    __dlpack__ __set__ __delete__ __reduce_ex__ __deepcopy__ data_ptr storage untyped_storage backward set_ resize_
    share_memory_ apply_ map_
    """
)
"""Functions of Python that no recording may contain. `backward` leaves gradients behind where nobody would clear them."""

_KNOWN = _words(
    """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _foreach_add _foreach_copy_ _foreach_div _foreach_lerp_ _foreach_mul
    _foreach_norm _foreach_sqrt _foreach_sub _fused_adam_ _fused_adamw_ _fused_dropout _index_put_impl_ _log_softmax
    _log_softmax_backward_data _native_batch_norm_legit _native_batch_norm_legit_functional _reshape_alias _softmax
    _softmax_backward_data _thnn_fused_gru_cell _thnn_fused_lstm_cell _to_copy _unsafe_view abs acos add addbmm addcdiv
    addcmul addmm addmv alias all amax amin any arange argmax argmin argsort as_strided as_strided_scatter asin atan atan2
    atanh avg_pool2d avg_pool2d_backward baddbmm bernoulli binary_cross_entropy_with_logits bitwise_and bitwise_not
    bitwise_or bitwise_xor bmm cat ceil clamp clamp_max clamp_min clone constant_pad_nd contiguous convolution
    convolution_backward copy cos cosh cummax cumprod cumsum detach diagonal diagonal_backward div dot elu elu_backward
    embedding embedding_dense_backward empty empty_like empty_strided eq erf erfinv exp expand expand_as expm1 exponential_
    fill flip floor fmod full full_like gather ge gelu gelu_backward glu glu_backward grid_sampler_2d
    grid_sampler_2d_backward gt hardtanh hardtanh_backward huber_loss huber_loss_backward index index_add index_copy
    index_fill index_put index_select index_select_backward isfinite isinf isnan kthvalue le leaky_relu leaky_relu_backward
    lerp lgamma linalg_vector_norm linspace log log10 log1p log2 log_sigmoid_backward log_sigmoid_forward logaddexp
    logical_and logical_not logical_or logical_xor logsumexp lt masked_fill max max_pool2d_with_indices
    max_pool2d_with_indices_backward maximum mean min minimum mish mish_backward mkldnn_convolution mm mse_loss
    mse_loss_backward mul mv nan_to_num native_batch_norm native_batch_norm_backward native_dropout native_dropout_backward
    native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward ne neg new_empty
    new_empty_strided new_full new_ones new_zeros norm normal ones ones_like permute pixel_shuffle pow prod rand rand_like
    randint randn randn_like randperm reciprocal reflection_pad2d relu remainder repeat replication_pad2d
    replication_pad2d_backward roll round rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce select
    select_backward select_scatter selu sgn sigmoid sigmoid_backward sign silu silu_backward sin sinh slice slice_backward
    slice_scatter smooth_l1_loss smooth_l1_loss_backward softplus softplus_backward sort split split_with_sizes sqrt square
    squeeze stack std std_mean sub sum t tan tanh tanh_backward threshold threshold_backward topk trace transpose tril triu
    unbind uniform_ unsafe_split unsqueeze upsample_bilinear2d upsample_nearest2d upsample_nearest2d_backward
    value_selecting_reduction_backward var var_mean view where xlogy zero_ zeros zeros_like
    """
)
REPEATABLE = _KNOWN | {f"{name}_" for name in _KNOWN}
"""Operations of torch, and their forms in place, that do the same when they are called again with the same numbers: no shape
depends on what a tensor holds, Python learns nothing, and random ones draw from their generator as the function itself would."""
