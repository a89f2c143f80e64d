"""A recorded function gives what the function gives, for other inputs and other weights too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import Executor, recordable
from rl_training.execution.numpy_ops import IN_NUMPY, IN_TORCH
from rl_training.execution.owned import Owned, memory_of
from rl_training.execution.program import LARGEST_SHARED, HostProgram
from rl_training.execution.recording import NotRecordable, Recording, record

X, Y = torch.linspace(-2.0, 2.0, 12).view(3, 4), torch.linspace(0.1, 3.0, 12).view(3, 4)
MASK, PLACES, COLUMN = X > 0.3, torch.tensor([[0], [3], [1]]), torch.tensor([1, 2, 3])
CONSTANTS = (MASK, PLACES, COLUMN)

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "arithmetic": lambda x, y: (x + y) * x / y - 2.0 * x + (3 - y) + x / 4,
    "alpha": lambda x, y: torch.add(x, y, alpha=3) - torch.sub(x, y, alpha=2),
    "functions": lambda x, y: (
        x.tanh() + y.log() + x.exp() + y.sqrt() + x.abs() - x.neg() + y.log1p() + x.square() + x**3 + y**1
    ),
    "signs": lambda x, y: x.sign() + y.reciprocal(),
    "in place": lambda x, y: (x * 2).tanh_().mul_(y).add_(1).sub_(x).clamp_(-1, 1).relu_(),
    "an in-place change seen through a view": lambda x, y: _changed_view(x * 1),
    "clamps": lambda x, y: (
        x.clamp(-1, 1) + x.clamp(min=0.5) + x.clamp(max=0.5) + x.clamp(-y, y) + x.clamp_min(0.1) + x.clamp_max(0.1)
    ),
    "comparisons": lambda x, y: ((x < y) & (x > -1) | ~(x >= 0.5) | (x <= y) & (x != y) & (x == x)).float(),
    "truth": lambda x, y: torch.logical_or(torch.logical_and(x > 0, y > 1), torch.logical_not(x > -1)) | (x > 1).any(),
    "choices": lambda x, y: (
        torch.where(x > 0, x, y) + x.masked_fill(MASK, 7.0) + torch.minimum(x, y) + torch.maximum(x, y)
    ),
    "masked in place": lambda x, y: (x + 0).masked_fill_(MASK, -3.0),
    "sums and means": lambda x, y: (
        x.sum(0) + x.sum((0, 1)) + x.mean() + y.mean(0) + y.mean((0, 1), keepdim=True).squeeze()
    ),
    "sums of truth values": lambda x, y: (x > 0).sum(0) + (x > 0).sum() + (x > 0).mean(dtype=torch.float32),
    "other reductions": lambda x, y: (
        x.std(0) + x.min(dim=0).values + x.argmax(0) + x.argmax(dim=0, keepdim=True) + x.norm()
    ),
    "largest and smallest": lambda x, y: (
        x.amax()
        + y.amax(0)
        + x.min(dim=1).values.sum()
        + y.min(dim=1).indices.sum()
        + x.min(dim=1, keepdim=True).values
    ),
    "shapes": lambda x, y: torch.cat([x.t().reshape(3, 4), y.unsqueeze(0).squeeze(0).flip(0)], 1)[:, 2:6].contiguous(),
    "stacks": lambda x, y: torch.stack([x, y], dim=-1).sum(-1) + torch.stack([x.mean(), y.mean()])[0],
    "parts": lambda x, y: sum(part.exp() for part in x.chunk(2, dim=-1)) + sum(row[:2] for row in y.unbind()),  # type: ignore[return-value, misc]
    "new tensors": lambda x, y: torch.zeros(3, 4).scatter_(1, x.argmax(1, keepdim=True), 1.0) + torch.ones_like(x),
    "constants": lambda x, y: (
        x * x.new_zeros(4) + y.new_ones(4) + torch.ones(4) + torch.zeros_like(x) + torch.scalar_tensor(3.0)
    ),
    "softmax": lambda x, y: F.log_softmax(x, -1) + F.softmax(y, -1) + F.softplus(x) + x.sigmoid(),
    "gather": lambda x, y: x.gather(1, PLACES) + y,
    "dtypes": lambda x, y: (x * 3).long().double() + (x > 0).to(torch.uint8) + y.half().float(),
    "products": lambda x, y: (
        x @ y.t() + torch.baddbmm(x[None, :, :3], x[None], y.t()[None])[0] + F.linear(x, y, y[0, :3])
    ),
    "batches of products": lambda x, y: x[None] @ y.t()[None],
    "outer products": lambda x, y: (
        x[:, :1] @ y[:1] + torch.addmm(y, x[:, 1:2], y[2:]) + (x[None, :, :1] @ y[None, :1])[0]
    ),
    "products with vectors": lambda x, y: x @ y[:1].t() + torch.addmm(y[:, :1], x, y[1:2].t()),
    "wide products": lambda x, y: (
        x.repeat(20, 20) @ y.repeat(20, 20).t()
        + torch.addmm(y[0].repeat(15), x.repeat(20, 20), y.t().repeat(20, 20))
        + torch.baddbmm(x.repeat(20, 15)[None], x.repeat(20, 20)[None], y.t().repeat(20, 20)[None])[0]
    ),
    "transposed results": lambda x, y: torch.mm(x, y.t()).t() + y.min(dim=0).values[:3] * x.t()[:3],
    "losses": lambda x, y: F.huber_loss(x, y, reduction="none", delta=0.7) + F.softplus(x, 2.0),
    "several results": lambda x, y: x.sort(dim=1).values + y.topk(4, dim=1).values + F.layer_norm(x, (4,)),
}


def _changed_view(x: Tensor) -> Tensor:
    x[1].mul_(5.0)
    x[:, 2].copy_(COLUMN)
    return x + 1


def noted(
    function: Callable[[], Any],
    given: Sequence[Tensor],
    owned: Sequence[Tensor] = CONSTANTS,
    drawn: Sequence[Tensor] = (),
) -> Recording[Any]:
    return record(lambda notes: function(), given, {memory_of(tensor) for tensor in owned}, drawn)


def program_of(
    function: Callable[[], Any],
    inputs: Sequence[Tensor],
    numbers: Sequence[Tensor] = (),
    owned: Sequence[Tensor] = CONSTANTS,
) -> HostProgram[Any]:
    """What repeats a function of these inputs and random numbers, and of tensors that it may read besides."""
    return HostProgram(noted(function, inputs, owned, numbers), inputs, numbers)


def test_numbers_are_read_where_the_caller_writes_them() -> None:
    x, numbers = X.clone(), torch.empty(3, 4)
    program = program_of(lambda: numbers.mul_(2) + x, [x], [numbers])
    for value in (1.0, 5.0):
        numbers.fill_(value)
        assert torch.equal(program([Y]), Y + 2 * value)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_other_numbers(name: str) -> None:
    inputs = [X.clone(), Y.clone()]
    program = program_of(lambda: OPERATIONS[name](*inputs), inputs)
    for x, y in ((X, Y), (X.flip(0) * 0.7, Y * 2), (X, Y)):
        expected, given = OPERATIONS[name](x, y), program([x, y])
        assert given.dtype == expected.dtype
        torch.testing.assert_close(given, expected)


GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "tanh": lambda x, y: x.tanh() * y,
    "relu": lambda x, y: (x * 1).relu_() * y.relu(),
    "softmax": lambda x, y: F.log_softmax(x, -1) * y,
    "choice": lambda x, y: torch.min(x, y) + x.clamp(-1, 1) + x.max(dim=0).values,
    "parts": lambda x, y: x[:, 1:3].exp() * y.chunk(2, -1)[0] + x[-1, 0],
    "gather": lambda x, y: x.gather(1, PLACES) * y,
    "huber": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_part_of_it(name: str) -> None:
    def gradients(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        return torch.autograd.grad(GRADIENTS[name](x, y).square().sum(), (x, y))

    inputs = [X.clone(), Y.clone()]
    program = program_of(lambda: gradients(*inputs), inputs)
    for x, y in ((X, Y), (X.flip(0) * 0.7, Y * 2)):
        for given, expected in zip(program([x, y]), gradients(x, y)):
            torch.testing.assert_close(given, expected)


def test_weights_may_move_but_not_to_other_memory() -> None:
    layer, x = nn.Linear(4, 2), X.clone()
    owned = Owned(layer)
    with torch.no_grad():
        program = program_of(lambda: layer(x).tanh(), [x], owned=owned.tensors)
        watch = owned.watch(program.read)
        layer.weight.mul_(-3.0)
        torch.testing.assert_close(program([Y]), layer(Y).tanh())
        assert watch.holds()
        layer.weight.data = torch.zeros(2, 4)
    assert not watch.holds()


def test_what_a_call_gave_stays_as_it_is() -> None:
    @dataclass
    class Outcome:
        name: str
        parts: dict[str, Tensor]

    x = X.clone()
    program = program_of(lambda: Outcome("one", {"sum": x.sum(), "row": x[0]}), [x])
    first = program([X])
    second = program([Y])
    assert first.name == second.name == "one"
    torch.testing.assert_close(first.parts, {"sum": X.sum(), "row": X[0]})
    torch.testing.assert_close(second.parts, {"sum": Y.sum(), "row": Y[0]})


def test_random_numbers_of_the_function_are_drawn_anew() -> None:
    x = torch.ones(1000)
    torch.manual_seed(0)
    program = program_of(lambda: F.dropout(x, 0.5), [x])
    first, second = program([x]), program([x])
    assert not torch.equal(first, second) and set(first.unique().tolist()) == {0.0, 2.0}


def test_memory_is_used_again() -> None:
    """A chain needs the memory of a few tensors, not that of all."""
    x = torch.rand(1000)

    def chain() -> Tensor:
        y = x
        for _ in range(50):
            y = (y + 1).tanh()
        return y

    program = program_of(chain, [x])
    arrays = {call.keywords["out"].ctypes.data for call in program._calls}  # type: ignore[attr-defined]
    assert len(program._calls) == 100 and len(arrays) <= 4
    torch.testing.assert_close(program([x]), chain())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x.sum().item() > 0 else x,
        lambda x: x * 2 if x.sum() > 0 else x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: torch.masked_select(x, x > 0),
    ],
    ids=["item", "bool", "mask", "nonzero", "select"],
)
def test_what_depends_on_the_numbers_is_not_repeated(function: Callable[[Tensor], Tensor]) -> None:
    x = X.clone()
    with pytest.raises(NotRecordable):
        noted(lambda: function(x), [x])


class AddingOne:
    def __init__(self, execution: Any):
        self.executor = Executor(self, torch.device("cpu"), execution)

    @recordable
    def step(self, x: Tensor, random: RandomSource) -> Tensor:
        return x + 1


@pytest.mark.parametrize("threads", [1, 2])
def test_large_tensors_are_left_to_torch_if_it_has_several_threads(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for size in (LARGEST_SHARED, LARGEST_SHARED + 1):
            for execution in ("auto", "recorded"):
                adding: Any = AddingOne(execution)
                for number in (0.0, 2.0):
                    assert bool((adding.step(torch.full((size,), number), None) == number + 1).all())
                wanted = threads == 1 or size == LARGEST_SHARED or execution == "recorded"
                assert adding.step.recordings == int(wanted)
    finally:
        torch.set_num_threads(before)


def test_another_number_of_inputs_is_refused() -> None:
    x = X.clone()
    with pytest.raises(ValueError):
        program_of(lambda: x + 1, [x])([])


def test_the_tests_above_meet_every_known_operation() -> None:
    inputs, met = [X.clone(), Y.clone()], set()

    def gradients(function: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, ...]:
        x, y = (tensor.detach().requires_grad_() for tensor in inputs)
        return torch.autograd.grad(function(x, y).square().sum(), (x, y))

    for function in OPERATIONS.values():
        met |= {
            operation.function for operation in noted(lambda function=function: function(*inputs), inputs).operations
        }
    for function in GRADIENTS.values():
        met |= {
            operation.function for operation in noted(lambda function=function: gradients(function), inputs).operations
        }

    def names(operations: Iterable[Any]) -> set[str]:
        return {func.overloadpacket.__name__.rstrip("_") for func in operations}

    assert {*IN_TORCH} - met == set()
    assert names(IN_NUMPY) - names(met) == set()
