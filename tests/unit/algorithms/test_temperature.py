"""The entropy temperature: its loss by hand, which way it moves, and its state."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.tools import through_codec
from rl_training.algorithms.temperature import Temperature, temperature_loss
from rl_training.utils.errors import NonFiniteError
from rl_training.utils.schedules import Schedule

CPU = torch.device("cpu")


def learned(initial: float = 2.0, target: float = 1.0, learning_rate: float | Schedule = 0.1) -> Temperature:
    return Temperature(initial, target, learning_rate, 1e-8, CPU)


def test_loss_and_gradients_by_hand() -> None:
    log_alpha = torch.tensor(math.log(2.0), requires_grad=True)
    log_probs = torch.tensor([-1.0, -3.0], requires_grad=True)
    loss = temperature_loss(log_alpha, log_probs, target_entropy=0.5)
    # The entropy is 2; −log 2 · (−2 + ½).
    assert loss.item() == pytest.approx(1.5 * math.log(2.0))
    loss.backward()
    assert log_alpha.grad is not None and log_alpha.grad.item() == pytest.approx(2 - 0.5), "the surplus of entropy"
    assert log_probs.grad is None, "the policy does not learn from it"


@pytest.mark.parametrize(("entropy", "direction"), [(3.0, -1), (-1.0, 1), (1.5, -1)])
def test_it_falls_with_too_much_entropy_and_rises_with_too_little(entropy: float, direction: int) -> None:
    temperature = learned(initial=2.0, target=1.0)
    metrics = temperature.update(torch.full((4,), -entropy))
    # The first step of Adam has the length of the learning rate, whatever the gradient.
    assert temperature.log_alpha.item() == pytest.approx(math.log(2.0) + 0.1 * direction, abs=1e-5)
    assert temperature.alpha.item() == pytest.approx(2 * math.exp(0.1 * direction), rel=1e-5)
    assert metrics["alpha"].item() == pytest.approx(2.0), "the one the actor has just been updated with"
    assert metrics["entropy"].item() == pytest.approx(entropy)


def test_at_the_target_it_rests() -> None:
    temperature = learned(target=1.5)
    temperature.update(torch.tensor([-1.0, -2.0]))
    assert temperature.log_alpha.item() == pytest.approx(math.log(2.0), abs=1e-7)


def test_the_learning_rate_of_the_moment_counts() -> None:
    temperature = learned(learning_rate=Schedule(0.1, 0.0))
    temperature.optimizers()["temperature"].advance(0.8)
    temperature.update(torch.full((4,), -3.0))
    assert temperature.log_alpha.item() == pytest.approx(math.log(2.0) - 0.02, abs=1e-5)


def test_alpha_carries_no_gradient() -> None:
    assert not learned().alpha.requires_grad and learned().log_alpha.requires_grad


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_a_fixed_one_stays(alpha: float) -> None:
    temperature = Temperature(alpha, None, 0.1, 1e-8, CPU)
    metrics = temperature.update(torch.tensor([-5.0, 1.0]))
    assert temperature.alpha.item() == pytest.approx(alpha) and metrics["alpha"].item() == pytest.approx(alpha)
    assert metrics["entropy"].item() == 2.0
    assert temperature.optimizers() == {} and not temperature.log_alpha.requires_grad
    other = Temperature(0.5, None, 0.1, 1e-8, CPU)
    other.load_state_dict(through_codec(temperature.state_dict()))
    assert torch.equal(other.alpha, temperature.alpha)


def test_a_loss_that_is_not_finite_leaves_it_alone() -> None:
    temperature = learned()
    temperature.update(torch.tensor([math.nan, -1.0]))
    assert temperature.alpha.item() == pytest.approx(2.0)
    with pytest.raises(NonFiniteError, match="alpha_loss"):
        temperature.optimizers()["temperature"].raise_if_nonfinite()


def test_the_state_comes_back_and_goes_on_learning() -> None:
    first, second = learned(), learned(initial=0.3)
    for entropy in (3.0, 2.5, -1.0):
        first.update(torch.full((4,), -entropy))
    state = through_codec(first.state_dict())
    kept = state["log_alpha"].clone()
    optimizer = through_codec(first.optimizers()["temperature"].state_dict())
    second.load_state_dict(state)
    second.optimizers()["temperature"].load_state_dict(optimizer)
    for temperature in (first, second):
        temperature.update(torch.tensor([-0.5, 0.25]))
    assert torch.equal(first.log_alpha, second.log_alpha) and not torch.equal(first.log_alpha, kept)
    assert torch.equal(state["log_alpha"], kept), "a state that was handed out does not move"


def test_a_state_does_not_move_with_it() -> None:
    temperature = learned()
    state = temperature.state_dict()
    temperature.update(torch.full((4,), -3.0))
    assert state["log_alpha"].item() == pytest.approx(math.log(2.0))
