"""The optimisers by hand, and what they do with steps that are not finite."""

import copy
import math
from typing import Any

import pytest
import torch

from rl_training.execution.optimizers import Adam, AdamW, FlatOptimizer, FlatParameters, Group, RMSprop, StepReport
from rl_training.utils.errors import ExecutionError, NonFiniteError
from rl_training.utils.schedules import Schedule
from rl_training.utils.trees import differing_paths

OPTIMIZERS: dict[str, type[FlatOptimizer]] = {"adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}
NAN, INF = float("nan"), float("inf")


class Problem:
    """Minimises scale · Σ w²/2 from w = (3, 4)."""

    def __init__(self, kind: str, max_grad_norm: float | None = None):
        self.weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        self.max_grad_norm = max_grad_norm
        self.guarded = OPTIMIZERS[kind]([self.weights], Schedule(0.1, 0.0))

    def step(self, scale: float = 1.0, **terms: float) -> StepReport:
        loss = scale * 0.5 * self.weights.square().sum()
        named = {"loss": loss, **{name: torch.tensor(value) for name, value in terms.items()}}
        return self.guarded.step(self.guarded.gradient(loss), named, self.max_grad_norm)

    def state(self) -> dict[str, Any]:
        return copy.deepcopy({"weights": self.weights.detach(), "optimizer": self.guarded.state_dict()})


@pytest.mark.parametrize("kind", OPTIMIZERS)
class TestFlatOptimizer:
    def test_a_bad_step_and_all_later_ones_of_the_update_change_nothing(self, kind: str) -> None:
        problem = Problem(kind)
        problem.step()
        before = problem.state()
        problem.step(scale=NAN)
        assert differing_paths(problem.state(), before) == []
        problem.step()
        problem.step()
        assert differing_paths(problem.state(), before) == [], "finite steps after a bad one are skipped too"
        with pytest.raises(
            NonFiniteError, match="^loss, grad_norm became NaN or infinite; the weights are those before"
        ):
            problem.guarded.raise_if_nonfinite()

    def test_after_the_error_it_goes_on_as_if_the_bad_step_had_not_been(self, kind: str) -> None:
        disturbed, calm = Problem(kind), Problem(kind)
        for problem in (disturbed, calm):
            problem.step()
        disturbed.step(scale=INF)
        with pytest.raises(NonFiniteError):
            disturbed.guarded.raise_if_nonfinite()
        for problem in (disturbed, calm):
            problem.step()
            problem.guarded.raise_if_nonfinite()
        assert differing_paths(disturbed.state(), calm.state()) == []
        assert disturbed.weights.tolist() != [3.0, 4.0]

    def test_only_what_is_not_finite_is_named(self, kind: str) -> None:
        problem = Problem(kind)
        problem.step(value_loss=NAN, entropy=1.0)
        with pytest.raises(NonFiniteError, match="^value_loss became"):
            problem.guarded.raise_if_nonfinite()
        assert problem.weights.tolist() == [3.0, 4.0]

    def test_a_gradient_that_overflows_is_caught_although_the_loss_is_finite(self, kind: str) -> None:
        problem = Problem(kind)
        with torch.no_grad():
            problem.weights.zero_()
        loss = (problem.weights + 1e-30).sqrt().mul(0.0).sum() + problem.weights.abs().sqrt().sum()
        assert torch.isfinite(loss)
        problem.guarded.step(problem.guarded.gradient(loss), {"loss": loss})
        with pytest.raises(NonFiniteError, match="^grad_norm became"):
            problem.guarded.raise_if_nonfinite()
        assert problem.weights.tolist() == [0.0, 0.0]

    def test_finite_steps_raise_nothing_and_learn(self, kind: str) -> None:
        problem = Problem(kind)
        for _ in range(3):
            problem.step()
        problem.guarded.raise_if_nonfinite()
        assert problem.weights.norm() < 5.0

    def test_without_the_guard_the_same_step_destroys_the_weights(self, kind: str) -> None:
        """Negative control: the move itself does not look."""
        problem = Problem(kind)
        problem.guarded._move(torch.tensor([NAN, 1.0]), torch.tensor(1.0), torch.tensor(0.0))
        assert problem.weights[0].isnan()

    def test_clipping_scales_the_gradient_and_reports_the_norm_before(self, kind: str) -> None:
        # The gradient is (3, 4), clipped (0.3, 0.4). From zero a mean moves by a tenth of it; from one a square by a hundredth.
        for max_grad_norm, gradient in ((0.5, torch.tensor([0.3, 0.4])), (None, torch.tensor([3.0, 4.0]))):
            problem = Problem(kind, max_grad_norm)
            assert problem.step().metrics()["grad_norm"].item() == pytest.approx(5.0)
            moments = problem.guarded.moments
            if kind != "rmsprop":
                torch.testing.assert_close(moments["mean"], 0.1 * gradient)
                torch.testing.assert_close(moments["square"], 0.001 * gradient.square())
            else:
                torch.testing.assert_close(moments["square"], 0.99 + 0.01 * gradient.square())

    def test_learning_rate_zero_moves_nothing(self, kind: str) -> None:
        problem = Problem(kind)
        problem.guarded.advance(1.0)
        problem.step()
        assert problem.weights.tolist() == [3.0, 4.0]
        problem.guarded.advance(0.0)
        problem.step()
        assert problem.weights.tolist() != [3.0, 4.0]


def test_adam_first_step_by_hand() -> None:
    # Bias correction makes the first step lr · g / (|g| + ε), here with g = 2 and ε = 0.5.
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = Adam([weight], 0.1, eps=0.5)
    optimizer.step(optimizer.gradient(2 * weight.sum()), {})
    assert weight.item() == pytest.approx(1 - 0.1 * 2 / 2.5)


@pytest.mark.parametrize("decay", [None, 0.1])
def test_adam_is_torchs_adam(decay: float | None) -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((3, 2), (), (4,))]
    theirs = [torch.nn.Parameter(parameter.detach().clone()) for parameter in ours]
    flat: Adam
    peer: torch.optim.Optimizer
    if decay is None:
        flat, peer = Adam(ours, 0.01, eps=1e-5, beta1=0.8), torch.optim.Adam(theirs, 0.01, betas=(0.8, 0.999), eps=1e-5)
    else:
        flat = AdamW([Group(ours, 0.01, decay)], eps=1e-5, beta1=0.8)
        peer = torch.optim.AdamW(theirs, 0.01, betas=(0.8, 0.999), eps=1e-5, weight_decay=decay)
    for scale in (1.0, -3.0, 0.1, 20.0):
        flat.step(flat.gradient(sum((scale * parameter).sin().sum() for parameter in ours)), {})
        peer.zero_grad()
        sum((scale * parameter).sin().sum() for parameter in theirs).backward()
        peer.step()
        for mine, other in zip(ours, theirs):
            torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-6)


def test_parameters_are_views_of_one_vector_and_stay_so_when_weights_are_loaded() -> None:
    module = torch.nn.Linear(2, 3)
    before = module.weight.detach().clone()
    optimizer = Adam(module.parameters(), 0.1)
    assert torch.equal(module.weight, before) and module.weight.is_leaf and module.weight.requires_grad
    module.load_state_dict({"weight": torch.full((3, 2), 7.0), "bias": torch.zeros(3)})
    assert optimizer.weights.tolist() == [7.0] * 6 + [0.0] * 3
    optimizer.step(optimizer.gradient(module.weight.sum()), {})
    assert (module.weight < 7.0).all() and module.bias.tolist() == [0.0] * 3, "a parameter without gradient stays"


def test_flat_parameters_follow_others() -> None:
    own, other = torch.nn.Linear(1, 2), torch.nn.Linear(1, 2)
    flat, followed = FlatParameters(own.parameters()), FlatParameters(other.parameters())
    flat.vector.copy_(torch.tensor([1.0, -2.0, -2.0, 6.0]))
    followed.vector.zero_()
    assert own.weight.tolist() == [[1.0], [-2.0]] and own.bias.tolist() == [-2.0, 6.0]
    flat.follow(followed, 0.5)
    assert flat.vector.tolist() == [0.5, -1.0, -1.0, 3.0] and followed.vector.tolist() == [0.0] * 4
    assert own.weight.tolist() == [[0.5], [-1.0]] and own.bias.tolist() == [-1.0, 3.0]


def test_replaced_weights_are_taken_over() -> None:
    module = torch.nn.Linear(2, 1)
    optimizer = Adam(module, 0.1)
    module.load_state_dict({"weight": torch.full((1, 2), 7.0), "bias": torch.ones(1)}, assign=True)
    optimizer.flat.relink()
    assert optimizer.weights.tolist() == [7.0, 7.0, 1.0]
    optimizer.step(optimizer.gradient(module(torch.ones(1, 2)).sum()), {})
    assert module.weight.tolist() == [[pytest.approx(6.9)] * 2] and module.bias.item() == pytest.approx(0.9)


@pytest.mark.parametrize("change", [lambda module: module.double(), lambda module: setattr(module, "bias", None)])
def test_weights_that_no_longer_fit_are_refused(change: Any) -> None:
    module = torch.nn.Linear(2, 1)
    optimizer = Adam(module, 0.1)
    change(module)
    with pytest.raises(ExecutionError, match="its optimiser was made for torch.float32"):
        optimizer.flat.relink()


def test_groups_have_step_sizes_of_their_own() -> None:
    weights = [torch.nn.Parameter(torch.ones(size)) for size in (1, 2)]
    optimizer = Adam([Group(weights[:1], Schedule(0.1, 0.0)), Group(weights[1:], 0.2)])
    optimizer.advance(0.5)
    assert [rate.number for rate in optimizer.learning_rates] == [0.05, 0.2]
    optimizer.step(optimizer.gradient(sum(weight.sum() for weight in weights)), {})
    assert weights[0].tolist() == pytest.approx([0.95]) and weights[1].tolist() == pytest.approx([0.8, 0.8])


def test_a_loss_that_depends_on_no_weight_is_refused() -> None:
    optimizer = Adam([torch.nn.Parameter(torch.ones(2))], 0.1)
    with pytest.raises(ExecutionError, match="it would learn nothing"):
        optimizer.gradient(torch.nn.Parameter(torch.ones(2)).sum())


def rmsprop_steps(optimizer: RMSprop, *gradients: list[float]) -> None:
    for gradient in gradients:
        optimizer.step(optimizer.gradient((optimizer.parameters[0] * torch.tensor(gradient)).sum()), {})


def test_two_steps_of_rmsprop_by_hand() -> None:
    # v = 0.9·1 + 0.1·4 = 1.3, θ = 1 − 0.1·2/√(1.3 + 0.5); then v = 0.9·1.3 + 0.1·1 = 1.27, θ += 0.1/√(1.27 + 0.5).
    first = 1 - 0.2 / math.sqrt(1.8)
    second = first + 0.1 / math.sqrt(1.77)
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = RMSprop([parameter], 0.1, alpha=0.9, eps=0.5)
    rmsprop_steps(optimizer, [2.0])
    assert parameter.item() == pytest.approx(first, abs=1e-7)
    rmsprop_steps(optimizer, [-1.0])
    assert parameter.item() == pytest.approx(second, abs=1e-7)
    # torch's own has ε outside the root and starts at 0: the first step would be 0.2/(√0.4 + 0.5).
    other = torch.nn.Parameter(torch.tensor([1.0]))
    theirs = torch.optim.RMSprop([other], lr=0.1, alpha=0.9, eps=0.5)
    other.grad = torch.tensor([2.0])
    theirs.step()
    assert other.item() == pytest.approx(1 - 0.2 / (math.sqrt(0.4) + 0.5))


def test_the_accumulator_of_rmsprop_starts_at_one_and_is_the_whole_state() -> None:
    optimizer = RMSprop([torch.nn.Parameter(torch.zeros(2))], 0.1, alpha=0.9)
    rmsprop_steps(optimizer, [0.0, 10.0])
    assert {name: value.tolist() for name, value in optimizer.state_dict()["moments"].items()} == {
        "square": pytest.approx([0.9, 10.9])
    }


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_travels_through_state_dict(kind: str) -> None:
    first, second = Problem(kind), Problem(kind)
    for _ in range(3):
        first.step()
    second.guarded.load_state_dict(copy.deepcopy(first.guarded.state_dict()))
    with torch.no_grad():
        second.weights.copy_(first.weights)
    for problem in (first, second):
        problem.step()
        problem.step(scale=0.3)
    assert differing_paths(first.state(), second.state()) == []
