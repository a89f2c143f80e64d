"""Targets and losses of value-based learning, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rl_training.algorithms.value_losses import (
    bellman_target,
    categorical_cross_entropy,
    categorical_projection,
    greedy_outputs,
    huber_loss,
    log_sum_exp_value,
    munchausen_bonus,
    munchausen_target,
    quantile_huber_loss,
    spread_by_scatter,
    spread_by_triangle,
    take_actions,
)

LOG_3, LOG_4 = math.log(3.0), math.log(4.0)


def t(*values: object) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else list(values))


def project(probs: list[float], reward: float, discount: float, support: Tensor) -> Tensor:
    return categorical_projection(t([probs]), t([reward]), t([discount]), support)[0]


def test_take_actions() -> None:
    assert take_actions(t([[1.0, 2.0], [3.0, 4.0]]), t([1, 0])).tolist() == [2.0, 3.0]
    outputs = torch.arange(12.0).view(2, 3, 2)
    assert take_actions(outputs, torch.tensor([2, 1], dtype=torch.int32)).tolist() == [[4.0, 5.0], [8.0, 9.0]]


def test_bellman_target_of_values_and_of_distributions() -> None:
    rewards, discounts = t([1.0, 2.0]), t([0.5, 0.0])  # the second transition is terminal
    assert bellman_target(rewards, discounts, t([4.0, 100.0])).tolist() == [3.0, 2.0]
    assert bellman_target(rewards, discounts, t([[4.0, 6.0], [9.0, 9.0]])).tolist() == [[3.0, 4.0], [2.0, 2.0]]


def test_double_targets_value_the_online_networks_choice() -> None:
    target, online = t([[10.0, 2.0], [1.0, 7.0]]), t([[1.0, 5.0], [0.0, 3.0]])
    assert greedy_outputs(target, target).tolist() == [10.0, 7.0]
    assert greedy_outputs(target, online).tolist() == [2.0, 7.0]
    assert greedy_outputs(t([[[1.0, 2.0], [3.0, 4.0]]]), t([[0.0, 1.0]])).tolist() == [[3.0, 4.0]]


def test_huber_loss() -> None:
    assert huber_loss(t([0.5, -3.0, 1.0])).tolist() == [0.125, 2.5, 0.5]
    assert huber_loss(t([3.0, -1.0]), kappa=2.0).tolist() == [4.0, 0.5]


class TestProjection:
    support = torch.linspace(0.0, 4.0, 5)
    probs = [0.1, 0.2, 0.3, 0.2, 0.2]

    def test_integer_positions_keep_their_mass(self) -> None:
        # Everything moves up by one atom; the last one is clipped into itself.
        torch.testing.assert_close(project(self.probs, 1.0, 1.0, self.support), t([0.0, 0.1, 0.2, 0.3, 0.4]))

    def test_nothing_changes_without_reward_and_discount(self) -> None:
        torch.testing.assert_close(project(self.probs, 0.0, 1.0, self.support), t(self.probs))
        support = torch.linspace(-10.0, 10.0, 51)  # a spacing that float32 cannot hold exactly
        probs = torch.rand(51, generator=torch.Generator().manual_seed(0)).softmax(0)
        torch.testing.assert_close(project(probs.tolist(), 0.0, 1.0, support), probs, atol=1e-6, rtol=1e-5)

    def test_positions_between_atoms_are_shared_out(self) -> None:
        # 0.25 + 0.5 z = 0.25, 0.75, 1.25, 1.75, 2.25, each with 0.2.
        expected = t([0.2 * (0.75 + 0.25), 0.2 * (0.25 + 0.75 + 0.75 + 0.25), 0.2 * (0.25 + 0.75 + 0.75), 0.05, 0.0])
        torch.testing.assert_close(project([0.2] * 5, 0.25, 0.5, self.support), expected)

    def test_returns_outside_are_clipped_to_the_edges(self) -> None:
        torch.testing.assert_close(project(self.probs, -50.0, 1.0, self.support), t([1.0, 0.0, 0.0, 0.0, 0.0]))
        torch.testing.assert_close(project(self.probs, 50.0, 1.0, self.support), t([0.0, 0.0, 0.0, 0.0, 1.0]))

    def test_a_terminal_step_puts_all_on_the_reward(self) -> None:
        torch.testing.assert_close(project(self.probs, 2.5, 0.0, self.support), t([0.0, 0.0, 0.5, 0.5, 0.0]))
        torch.testing.assert_close(project(self.probs, 3.0, 0.0, self.support), t([0.0, 0.0, 0.0, 1.0, 0.0]))

    def test_mass_and_mean_are_kept_inside_the_support(self) -> None:
        generator = torch.Generator().manual_seed(1)
        support = torch.linspace(-10.0, 10.0, 51)
        probs = torch.randn(64, 51, generator=generator).softmax(-1)
        rewards = torch.rand(64, generator=generator) * 2 - 1
        discounts = torch.rand(64, generator=generator) * 0.9
        projected = categorical_projection(probs, rewards, discounts, support)
        torch.testing.assert_close(projected.sum(-1), torch.ones(64))
        torch.testing.assert_close(projected @ support, rewards + discounts * (probs @ support), atol=1e-5, rtol=1e-5)

    def test_both_ways_of_spreading_agree(self) -> None:
        generator = torch.Generator().manual_seed(2)
        probs = torch.randn(64, 11, generator=generator).softmax(-1)
        positions = torch.rand(64, 11, generator=generator) * 10
        positions[:32] = positions[:32].round()  # integers, both ends among them
        assert positions[:32].min() == 0 and positions[:32].max() == 10
        torch.testing.assert_close(spread_by_scatter(probs, positions), spread_by_triangle(probs, positions))

    def test_the_triangle_by_hand(self) -> None:
        spread = spread_by_triangle(t([[0.5, 0.25, 0.25]]), t([[0.25, 1.0, 2.0]]))
        torch.testing.assert_close(spread, t([[0.375, 0.375, 0.25]]))


def test_categorical_cross_entropy() -> None:
    log_probs = t([[0.5, 0.5], [0.25, 0.75]]).log()
    losses = categorical_cross_entropy(t([[0.25, 0.75], [1.0, 0.0]]), log_probs)
    torch.testing.assert_close(losses, t([math.log(2.0), LOG_4]))


class TestQuantiles:
    taus = torch.tensor([0.25, 0.75])
    predictions = torch.tensor([[0.0, 1.0]])

    def test_pairs_by_hand(self) -> None:
        # u = 3, −1 | 2, −2; losses 2.5, 0.5 | 1.5, 1.5; weights 0.25, 0.75 | 0.75, 0.25.
        # Means over targets (0.625 + 0.375) / 2 and (1.125 + 0.375) / 2; their sum.
        loss = quantile_huber_loss(self.predictions, t([[3.0, -1.0]]), self.taus)
        torch.testing.assert_close(loss, t([1.25]))

    def test_another_number_of_targets(self) -> None:
        # One more target at 1: u = 1 | 0 adds 0.25 · 0.5 | 0. Sum over predictions of the means over three targets.
        loss = quantile_huber_loss(self.predictions, t([[3.0, -1.0, 1.0]]), self.taus)
        torch.testing.assert_close(loss, t([1.125 / 3 + 1.5 / 3]))

    def test_kappa(self) -> None:
        # L₂: 4, 0.5 | 2, 2, divided by 2.
        loss = quantile_huber_loss(self.predictions, t([[3.0, -1.0]]), self.taus, kappa=2.0)
        torch.testing.assert_close(loss, t([(0.5 + 0.1875) / 2 + (0.75 + 0.25) / 2]))

    def test_fractions_of_each_row(self) -> None:
        taus = t([[0.25, 0.75], [0.75, 0.25]])
        loss = quantile_huber_loss(self.predictions.repeat(2, 1), t([[3.0, -1.0]] * 2), taus)
        # Second row: (0.75 · 2.5 + 0.25 · 0.5) / 2 + (0.25 · 1.5 + 0.75 · 1.5) / 2.
        torch.testing.assert_close(loss, t([1.25, 1.0 + 0.75]))

    def test_the_minimum_is_at_the_quantiles(self) -> None:
        targets = torch.arange(1000.0).unsqueeze(0)
        prediction = torch.tensor([[249.5, 749.5]], requires_grad=True)
        quantile_huber_loss(prediction, targets, self.taus).sum().backward()
        assert prediction.grad is not None
        torch.testing.assert_close(prediction.grad, torch.zeros(1, 2), atol=5e-4, rtol=0)
        wrong = torch.tensor([[300.0, 700.0]], requires_grad=True)
        quantile_huber_loss(wrong, targets, self.taus).sum().backward()
        assert wrong.grad is not None and wrong.grad[0, 0] > 0.04 and wrong.grad[0, 1] < -0.04


class TestMunchausen:
    q = torch.tensor([[0.0, LOG_3]])  # π = (1/4, 3/4) at τ = 1

    def test_soft_value_is_the_expectation_with_entropy(self) -> None:
        # ¼ (0 + log 4) + ¾ (log 3 − log ¾) = log 4
        torch.testing.assert_close(log_sum_exp_value(self.q, 1.0), t([LOG_4]))
        torch.testing.assert_close(log_sum_exp_value(self.q / 2, 0.5), t([LOG_4 / 2]))

    def test_bonus_is_clipped_below(self) -> None:
        settings = {"tau": 1.0, "alpha": 0.9, "clip": -1.0}
        q = self.q.repeat(2, 1)
        # log ¼ = −1.386 is clipped to −1; log ¾ is not.
        torch.testing.assert_close(munchausen_bonus(q, t([0, 1]), **settings), t([-0.9, 0.9 * math.log(0.75)]))
        loose = munchausen_bonus(q, t([0, 1]), tau=1.0, alpha=0.5, clip=-2.0)
        torch.testing.assert_close(loose, t([-0.5 * LOG_4, 0.5 * math.log(0.75)]))

    def test_target_by_hand(self) -> None:
        target = munchausen_target(
            t([1.0, 1.0]),
            t([0.5, 0.0]),
            self.q.repeat(2, 1),
            t([1, 0]),
            t([[0.0, LOG_3], [50.0, 50.0]]),
            tau=1.0,
            alpha=0.9,
            clip=-1.0,
        )
        torch.testing.assert_close(target, t([1 + 0.9 * math.log(0.75) + 0.5 * LOG_4, 1 - 0.9]))

    def test_a_low_temperature_is_dqn_and_stays_finite(self) -> None:
        q, next_q = t([[900.0, 1000.0]]), t([[-1000.0, 500.0]])
        settings = {"tau": 0.03, "alpha": 0.9, "clip": -1.0}
        best = munchausen_target(t([1.0]), t([0.5]), q, t([1]), next_q, **settings)
        torch.testing.assert_close(best, t([251.0]))
        torch.testing.assert_close(munchausen_target(t([1.0]), t([0.5]), q, t([0]), next_q, **settings), t([250.1]))


@pytest.mark.parametrize(
    "call",
    [
        lambda: bellman_target(torch.zeros(2), torch.zeros(2), torch.zeros(3)),
        lambda: take_actions(torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.int64)),
        lambda: greedy_outputs(torch.zeros(2, 3), torch.zeros(2, 4)),
        lambda: categorical_projection(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2), torch.zeros(4)),
        lambda: categorical_cross_entropy(torch.zeros(2, 3), torch.zeros(2, 1)),
        lambda: quantile_huber_loss(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2)),
    ],
)
def test_shapes_that_would_broadcast_are_refused(call: object) -> None:
    with pytest.raises(AssertionError):
        call()  # type: ignore[operator]
