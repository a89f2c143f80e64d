"""What all algorithms share: guarded optimiser steps, space checks, optimiser state, metric means."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.rollouts import make_algorithm, make_rollout
from rl_training.algorithms.a2c import A2C
from rl_training.algorithms.base import GuardedOptimizer, MetricMeans, adam
from rl_training.algorithms.optimizers import RMSpropTF
from rl_training.algorithms.ppo import PPO
from rl_training.utils.errors import CheckpointError, NonFiniteError, SpaceError
from rl_training.utils.trees import differing_paths

OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "adam": lambda parameters: adam(parameters, 0.1, 1e-5),
    "rmsprop": lambda parameters: RMSpropTF(parameters, lr=0.1),
}
NAN, INF = float("nan"), float("inf")


class Problem:
    """Minimises scale · Σ w²/2 from w = (3, 4)."""

    def __init__(self, kind: str, max_grad_norm: float | None = None):
        self.weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        self.guarded = GuardedOptimizer(OPTIMIZERS[kind]([self.weights]), max_grad_norm)

    def step(self, scale: float = 1.0, **terms: float) -> Tensor:
        loss = scale * 0.5 * self.weights.square().sum()
        return self.guarded.step(loss, {"loss": loss, **{name: torch.tensor(value) for name, value in terms.items()}})

    def state(self) -> dict[str, Any]:
        return copy.deepcopy({"weights": self.weights.detach(), "optimizer": self.guarded.optimizer.state_dict()})


@pytest.mark.parametrize("kind", OPTIMIZERS)
class TestGuardedOptimizer:
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
        problem.guarded.step(loss, {"loss": loss})
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
        """Negative control: the optimiser itself does not look."""
        weights = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
        optimizer = OPTIMIZERS[kind]([weights])
        (NAN * weights.sum()).backward()
        optimizer.step()
        assert weights.isnan().all()

    def test_clipping_scales_the_gradient_and_reports_the_norm_before(self, kind: str) -> None:
        problem = Problem(kind, max_grad_norm=0.5)
        assert problem.step().item() == pytest.approx(5.0)
        assert problem.weights.grad is not None
        assert problem.weights.grad.tolist() == pytest.approx([0.3, 0.4], abs=1e-5)
        free = Problem(kind)
        free.step()
        assert free.weights.grad is not None and free.weights.grad.tolist() == [3.0, 4.0]

    def test_learning_rate_zero_moves_nothing(self, kind: str) -> None:
        problem = Problem(kind)
        problem.guarded.set_learning_rate(0.0)
        problem.step()
        assert problem.weights.tolist() == [3.0, 4.0]
        problem.guarded.set_learning_rate(0.1)
        problem.step()
        assert problem.weights.tolist() != [3.0, 4.0]


def test_adam_first_step_by_hand() -> None:
    # Bias correction makes the first step lr · g / (|g| + ε), here with g = 2 and ε = 0.5.
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = adam([weight], 0.1, 0.5)
    weight.grad = torch.tensor([2.0])
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 * 2 / 2.5)


@pytest.mark.parametrize(
    "observation, action, message",
    [
        (spaces.Tuple((spaces.Discrete(2),)), spaces.Discrete(2), "PPO does not support Tuple observation spaces"),
        (spaces.Discrete(2), spaces.Dict({"a": spaces.Discrete(2)}), "PPO does not support Dict action spaces"),
    ],
)
def test_undeclared_spaces_are_refused_with_what_would_work(observation: Any, action: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=f"{message}(?s:.*)It supports: .*Discrete"):
        PPO.check_spaces(observation, action)
    with pytest.raises(SpaceError, match=message):
        PPO(observation, action, PPO.config_class())
    PPO.check_spaces(spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2))


@pytest.mark.parametrize("algorithm_class", [PPO, A2C])
def test_state_dict_brings_optimiser_and_random_stream_back(algorithm_class: Any) -> None:
    trained = make_algorithm(algorithm_class, seed=1)
    trained.update(make_rollout(trained), 0.0)
    fresh = make_algorithm(algorithm_class, seed=2)
    fresh.policy.load_state_dict(trained.policy.state_dict())
    assert differing_paths(trained.state_dict(), fresh.state_dict()) != []
    fresh.load_state_dict(copy.deepcopy(trained.state_dict()))
    assert differing_paths(trained.state_dict(), fresh.state_dict()) == []
    for algorithm in (trained, fresh):
        algorithm.update(make_rollout(algorithm, seed=9), 0.0)
    assert differing_paths(trained.policy.state_dict(), fresh.policy.state_dict()) == []


def test_optimiser_state_that_does_not_fit_is_refused() -> None:
    algorithm = make_algorithm(A2C)
    algorithm.update(make_rollout(algorithm), 0.0)
    other_name = copy.deepcopy(algorithm.state_dict())
    other_name["optimizers"] = {"critic": other_name["optimizers"]["policy"]}
    with pytest.raises(CheckpointError, match=r"holds optimisers \['critic'\], expected \['policy'\]"):
        algorithm.load_state_dict(other_name)
    for wrong in (torch.zeros(7), torch.zeros(64, 3, dtype=torch.float64)):
        misfit = copy.deepcopy(algorithm.state_dict())
        misfit["optimizers"]["policy"]["state"][0]["square_avg"] = wrong
        with pytest.raises(CheckpointError, match="square_avg of parameter 0 is"):
            algorithm.load_state_dict(misfit)


def test_the_random_stream_and_first_weights_come_from_the_seed() -> None:
    one, same, other = (make_algorithm(PPO, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.generator.get_state(), same.generator.get_state())
    assert not torch.equal(one.generator.get_state(), other.generator.get_state())
    assert differing_paths(one.policy.state_dict(), same.policy.state_dict()) == []
    assert "actor_body.0.weight" in differing_paths(one.policy.state_dict(), other.policy.state_dict())


def test_metric_means() -> None:
    means = MetricMeans()
    loss = torch.tensor(1.0, requires_grad=True)
    means.add({"a": loss, "b": torch.tensor(4.0)})
    means.add({"a": torch.tensor(2.0), "b": torch.tensor(0.0)})
    result = means.means()
    assert {name: value.item() for name, value in result.items()} == {"a": 1.5, "b": 2.0}
    assert not result["a"].requires_grad
    assert loss.item() == 1.0, "the tensors handed in stay as they are"
