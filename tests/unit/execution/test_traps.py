"""Each way in which a recorded function could be silently wrong: it gives the eager result, or an error, never something else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.execution import numpy_ops
from rl_training.execution.draws import RandomSource, normal
from rl_training.execution.executor import Executor, RecordedFunction, recordable
from rl_training.execution.optimizers import Adam
from rl_training.execution.scalar import Scalar
from rl_training.utils.errors import ExecutionError

CPU = torch.device("cpu")
Body = Callable[["Owner", Tensor], Any]


class Owner:
    """A small network with an optimiser, whose step is given by the test."""

    unwatched = frozenset({"seen"})

    def __init__(self, body: Body, execution: Any = "auto", check_every: int = 0):
        torch.manual_seed(0)
        self.body = body
        self.network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 2)).eval()
        self.coef, self.flag, self.scale = 0.5, True, Scalar(1.0, CPU)
        self.average = torch.zeros(2)
        self.seen = 0
        self.optimizer = Adam(self.network, 1e-2)
        self.generator = torch.Generator().manual_seed(1)
        self.executor = Executor(self, CPU, execution, check_every=check_every)

    @recordable
    def step(self, x: Any, random: RandomSource) -> Any:
        return self.body(self, x)

    @property
    def recorded(self) -> bool:
        step: Any = self.step
        return isinstance(step, RecordedFunction) and step.recordings > 0


def inputs(count: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(6, 3, generator=generator) for _ in range(count)]


def train(owner: Owner, x: Tensor) -> Tensor:
    """An ordinary step."""
    loss = (owner.network(x) * owner.coef).square().mean()
    owner.optimizer.step(owner.optimizer.gradient(loss), {"loss": loss})
    return loss.detach()


def outcome(body: Body, execution: str, between: Callable[[Owner, int], None] | None = None) -> tuple[Owner, list[Any]]:
    owner, results = Owner(body, execution), []
    torch.manual_seed(3)
    for index, x in enumerate(inputs()):
        if between is not None:
            between(owner, index)
        owner.optimizer.flat.relink()
        results.append(owner.step(x, owner.generator).clone())  # the next call may overwrite it
    return owner, results


def assert_eager(body: Body, between: Callable[[Owner, int], None] | None = None, *, recorded: bool) -> Owner:
    """The same results and the same weights as without recording; `recorded` says which way they must come about."""
    eager, expected = outcome(body, "eager", between)
    owner, results = outcome(body, "auto", between)
    assert owner.recorded == recorded, owner.executor.eager_because
    for found, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    for found, wanted in zip(owner.network.parameters(), eager.network.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(owner.average, eager.average)
    return owner


def test_an_ordinary_step_is_recorded() -> None:
    owner = assert_eager(train, recorded=True)
    before = [weight.clone() for weight in owner.network.parameters()]
    owner.step(inputs()[0], owner.generator)
    assert all(not torch.equal(a, b) for a, b in zip(before, owner.network.parameters()))


READS: dict[str, Body] = {
    "tolist": lambda owner, x: torch.zeros(1) + sum(x.tolist()[0]),
    "numpy": lambda owner, x: x + float(np.sum(x.numpy())),
    "asarray": lambda owner, x: x + float(np.asarray(x).sum()),
    "item": lambda owner, x: x * x.sum().item(),
    "float": lambda owner, x: x * float(x.sum()),
    "if": lambda owner, x: x if x.sum() > 0 else -x,
    "allclose": lambda owner, x: x * (2.0 if torch.allclose(x, x.abs()) else 3.0),
    "equal": lambda owner, x: x * (2.0 if torch.equal(x, x.abs()) else 3.0),
    "unique": lambda owner, x: torch.unique((x * 2).long()).float().sum(),
    "nonzero": lambda owner, x: x.gt(0).nonzero().float().sum(),
    "mask": lambda owner, x: x[x > 0].sum(),
    "masked_select": lambda owner, x: torch.masked_select(x, x > 0).sum(),
    "repeat_interleave": lambda owner, x: x.sum(1).repeat_interleave((x[:, 0] > 0).long() + 1).sum(),
    "print": lambda owner, x: x + len(str(x.sum())),
    "format": lambda owner, x: x + len(f"{x.sum():.3f}"),
    "in": lambda owner, x: x + (1.0 if 0.0 in x else 2.0),
    "from Python": lambda owner, x: x + torch.tensor([1.0, 2.0, 3.0]),
    "from NumPy": lambda owner, x: x + torch.from_numpy(np.ones(3, dtype=np.float32)),
    "backward": lambda owner, x: owner.network(x).sum().backward() or x,
    "other tensor": lambda owner, x: x + ELSEWHERE,
    "data": lambda owner, x: setattr(owner.average, "data", x.mean(0)[:2].clone()) or x,
}
ELSEWHERE = torch.ones(3)


@pytest.mark.parametrize("name", READS)
def test_what_python_reads_is_not_recorded(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        owner = assert_eager(READS[name], recorded=False)
    (reason,) = owner.executor.eager_because.values()
    assert sum("runs as written" in record.message for record in caplog.records) == 1, "said once"
    assert reason in caplog.text


@pytest.mark.parametrize("name", ["tolist", "unique", "allclose", "from Python"])
def test_recorded_without_exception_is_an_error(name: str) -> None:
    with pytest.raises(ExecutionError, match="execution: auto or eager"):
        outcome(READS[name], "recorded")


def test_the_operation_is_named() -> None:
    owner = assert_eager(READS["unique"], recorded=False)
    assert "unique" in owner.executor.eager_because["Owner.step"]


def test_an_operation_that_changes_its_argument_and_gives_a_result() -> None:
    def rrelu(owner: Owner, x: Tensor) -> Tensor:
        return F.rrelu(x, training=True).sum() + x.sum()

    def batch_norm(owner: Owner, x: Tensor) -> Tensor:
        return F.batch_norm(x[:, :2], owner.average, torch.ones_like(owner.average), training=True).sum(0)

    _, expected = outcome(rrelu, "eager")
    owner, found = outcome(rrelu, "auto")
    torch.testing.assert_close(found, expected)
    assert "rrelu" in next(iter(owner.executor.eager_because.values()))
    assert_eager(batch_norm, recorded=False)  # torch's own form with given memory adds to what lies there


def test_a_number_changed_after_recording_counts() -> None:
    def change(owner: Owner, index: int) -> None:
        owner.coef = 0.5 if index < 2 else 3.0

    owner = assert_eager(train, change, recorded=True)
    assert owner.step.recordings == 2  # type: ignore[attr-defined]


def test_a_flag_changed_after_recording_counts() -> None:
    def body(owner: Owner, x: Tensor) -> Tensor:
        return x.mean() if owner.flag else x.sum()

    assert_eager(body, lambda owner, index: setattr(owner, "flag", index % 2 == 0), recorded=True)


def test_the_mode_of_a_module_counts() -> None:
    def body(owner: Owner, x: Tensor) -> Tensor:
        return owner.network(x).detach()

    owner = assert_eager(body, lambda owner, index: owner.network.train(index % 2 == 0) and None, recorded=True)
    assert owner.step.recordings == 2, "kept, one for each mode"  # type: ignore[attr-defined]


def test_dropout_draws_anew_in_every_call() -> None:
    owner = Owner(lambda owner, x: owner.network(x).detach(), "recorded")
    owner.network.train()
    first, second = (owner.step(inputs()[0], owner.generator).clone() for _ in range(2))
    assert not torch.equal(first, second)


def test_an_object_that_was_replaced_counts() -> None:
    def change(owner: Owner, index: int) -> None:
        if index == 2:
            torch.manual_seed(8)
            owner.network[1] = nn.ReLU()

    assert_eager(train, change, recorded=True)


def test_weights_that_were_assigned_are_taken_over() -> None:
    def change(owner: Owner, index: int) -> None:
        if index == 2:
            other = {name: weight * 2 for name, weight in owner.network.state_dict().items()}
            owner.network.load_state_dict(other, assign=True)

    owner = assert_eager(train, change, recorded=True)
    before = [weight.clone() for weight in owner.network.parameters()]
    owner.optimizer.flat.relink()
    owner.step(inputs()[0], owner.generator)
    assert all(not torch.equal(a, b) for a, b in zip(before, owner.network.parameters())), "they move"


def test_weights_that_were_converted_and_back_still_move() -> None:
    owner = assert_eager(train, lambda owner, index: owner.network.double().float() and None, recorded=True)
    owner.network.double().float()
    before = [weight.clone() for weight in owner.network.parameters()]
    owner.optimizer.flat.relink()
    owner.step(inputs()[0], owner.generator)
    assert all(not torch.equal(a, b) for a, b in zip(before, owner.network.parameters()))


def test_weights_that_no_longer_fit_are_an_error() -> None:
    owner = Owner(train)
    owner.network.double()
    with pytest.raises(ExecutionError, match=r"float64.*float32"):
        owner.optimizer.flat.relink()


def test_a_loss_without_these_weights_is_an_error() -> None:
    def body(owner: Owner, x: Tensor) -> Tensor:
        loss = owner.average.requires_grad_().sum()
        owner.optimizer.gradient(loss)
        return loss

    for execution in ("eager", "auto"):
        with pytest.raises(ExecutionError, match="none of the weights"):
            outcome(body, execution)


def test_a_batch_may_hold_nothing_numbers_and_arrays() -> None:
    def body(owner: Owner, x: dict[str, Any]) -> Tensor:
        return x["rows"].sum() * x["times"] + (0.0 if x["none"] is None else 1.0)

    for execution in ("eager", "recorded"):
        owner = Owner(body, execution)
        for times, wanted in ((2, 36.0), (3, 54.0), (2, 36.0)):
            batch = {"rows": torch.ones(6, 3), "none": None, "times": times, "array": np.ones(2)}
            assert float(owner.step(batch, owner.generator)) == wanted


def test_an_array_that_a_step_uses_is_seen_to_change() -> None:
    def body(owner: Owner, x: dict[str, Any]) -> Tensor:
        return x["rows"].sum() + float(x["array"].sum())

    owner = Owner(body)
    for value in (1.0, 2.0):
        assert float(owner.step({"rows": torch.zeros(2), "array": np.full(2, value)}, owner.generator)) == 2 * value


def test_other_shapes_and_dtypes_are_other_recordings() -> None:
    def body(owner: Owner, x: Tensor) -> Tensor:
        return (x * 2).sum()

    owner = Owner(body, "recorded")
    for x in (torch.ones(3), torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int64)):
        for _ in range(2):
            result = owner.step(x, owner.generator)
            assert result.dtype == body(owner, x).dtype
            torch.testing.assert_close(result, body(owner, x))


def test_an_attribute_that_a_step_assigns_is_assigned_every_time() -> None:
    def counts(owner: Owner, x: Tensor) -> Tensor:
        owner.seen_in_step = getattr(owner, "seen_in_step", 0) + 1  # type: ignore[attr-defined]
        return x.sum()

    owner, _ = outcome(counts, "auto")
    assert owner.seen_in_step == 4  # type: ignore[attr-defined]
    assert "assignment to Owner.seen_in_step" in owner.executor.eager_because["Owner.step"]

    def averages(owner: Owner, x: Tensor) -> Tensor:
        owner.average = 0.9 * owner.average + 0.1 * x.mean(0)[:2]
        return x.sum()

    assert_eager(averages, recorded=False)
    assert_eager(lambda owner, x: owner.average.mul_(0.9).add_(0.1 * x.mean(0)[:2]).sum().clone(), recorded=True)


def test_numbers_from_elsewhere_that_change_are_noticed() -> None:
    drawn = iter(np.linspace(1.0, 2.0, 20))
    owner = Owner(lambda owner, x: x * float(next(drawn)))
    owner.step(inputs()[0], owner.generator)
    assert "differ from run to run" in owner.executor.eager_because["Owner.step"]


def test_a_hook_is_called_every_time() -> None:
    called = []

    def body(owner: Owner, x: Tensor) -> Tensor:
        return owner.network(x).detach()

    def change(owner: Owner, index: int) -> None:
        if index == 2:
            owner.network[0].register_forward_hook(lambda *_: called.append(index))

    owner = assert_eager(body, change, recorded=True)
    assert len(called) == 4, "twice eagerly, and twice where it was recorded before"
    assert "a hook of Linear" in owner.executor.eager_because["Owner.step"]


def test_eager_runs_the_code_every_time_and_calls_hooks() -> None:
    reached = []
    owner = Owner(lambda owner, x: reached.append(1) or owner.network(x).detach(), "eager")
    owner.network[0].register_forward_hook(lambda *_: reached.append(2))
    for x in inputs():
        owner.step(x, owner.generator)
    assert reached == [1, 2] * 4
    assert not owner.recorded


def test_a_recording_that_fails_leaves_everything_as_it_was() -> None:
    def body(owner: Owner, x: Tensor) -> Tensor:
        owner.average.add_(1.0)
        torch.rand(1)
        raise KeyError("mine")

    owner = Owner(body)
    torch.manual_seed(4)
    stream, numbers = owner.generator.get_state(), torch.get_rng_state()
    weights = [weight.clone() for weight in owner.network.parameters()]
    with pytest.raises(KeyError, match="mine"):
        owner.step(inputs()[0], owner.generator)
    assert torch.equal(owner.average, torch.zeros(2))
    assert torch.equal(owner.generator.get_state(), stream) and torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(a, b) for a, b in zip(weights, owner.network.parameters()))
    assert not owner.executor.recording


@pytest.mark.parametrize("wrong_tanh", [numpy_ops._ufunc(np.sin), lambda *_: []], ids=["other", "nothing"])
def test_a_recording_is_compared_before_it_is_used(wrong_tanh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**numpy_ops.IN_NUMPY, torch.ops.aten.tanh.default: wrong_tanh}
    monkeypatch.setattr("rl_training.execution.program.IN_NUMPY", wrong)
    owner = assert_eager(train, recorded=False)
    assert "something else than the code as written" in owner.executor.eager_because["Owner.step"]


def test_every_so_many_calls_are_compared() -> None:
    box = [1.0]

    def body(owner: Owner, x: Tensor) -> Tensor:
        return x * box[0]  # a list in a closure: nobody can see it change

    owner = Owner(body, check_every=3)
    for x in inputs(4):
        owner.step(x, owner.generator)
    box[0] = 2.0
    with pytest.raises(ExecutionError, match=r"call \d of .*step"):
        for x in inputs(4):
            owner.step(x, owner.generator)


def test_checking_changes_nothing() -> None:
    checked, unchecked = Owner(train, "recorded", check_every=1), Owner(train, "recorded")
    for x in inputs():
        torch.testing.assert_close(
            checked.step(x, checked.generator), unchecked.step(x, unchecked.generator), rtol=0, atol=0
        )
    for a, b in zip(checked.network.parameters(), unchecked.network.parameters()):
        assert torch.equal(a, b)
    assert torch.equal(checked.generator.get_state(), unchecked.generator.get_state())


def test_a_count_that_changes_all_the_time_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def change(owner: Owner, index: int) -> None:
        owner.coef = float(index)

    owner = Owner(lambda owner, x: (x * owner.coef).sum())
    with caplog.at_level(logging.WARNING):
        for index in range(20):
            change(owner, index)
            assert float(owner.step(torch.ones(2), owner.generator)) == 2.0 * index
    assert "Owner.coef changed" in caplog.text and "unwatched" in caplog.text


def test_what_is_unwatched_may_change() -> None:
    owner = Owner(lambda owner, x: x.sum(), "recorded")
    for _ in range(5):
        owner.seen += 1
        owner.step(torch.ones(2), owner.generator)
    assert owner.step.recordings == 1  # type: ignore[attr-defined]


def test_random_numbers_come_from_the_given_generator() -> None:
    class Drawing(Owner):
        @recordable
        def step(self, x: Any, random: RandomSource) -> Any:
            return x + normal(x.shape, random, CPU)

    eager, recorded = Drawing(train, "eager"), Drawing(train, "recorded")
    for x in inputs():
        assert torch.equal(eager.step(x, eager.generator), recorded.step(x, recorded.generator))
    assert torch.equal(eager.generator.get_state(), recorded.generator.get_state())


def test_a_recorded_method_may_call_another_and_be_extended() -> None:
    class Longer(Owner):
        @recordable
        def step(self, x: Any, random: RandomSource) -> Any:
            return super().step(x, random) * 2 + self.other(x, random)

        @recordable
        def other(self, x: Any, random: RandomSource) -> Any:
            return x.sum()

    body: Body = lambda owner, x: x.mean()  # noqa: E731
    eager, recorded = Longer(body, "eager"), Longer(body, "recorded")
    for x in inputs():
        torch.testing.assert_close(recorded.step(x, recorded.generator), eager.step(x, eager.generator))
