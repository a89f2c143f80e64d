"""Discrete SAC: expectations over all actions by hand on tables, temperature, target entropy, and a bandit solved."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.exploring import explored
from helpers.gradients import first_gradient_of
from rl_training.algorithms.discrete_sac import DiscreteSACAlgorithm, DiscreteSACConfig, expected_soft_value
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ConfigError, SpaceError

TABLE = PolicyConfig(hidden_sizes=(), orthogonal_init=False)
"""Without hidden layers, two discrete observations make actor and critics tables."""
PROBS = [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]]


def make(**settings: Any) -> DiscreteSACAlgorithm:
    config = DiscreteSACConfig(**settings)
    DiscreteSACAlgorithm.check_config(config, 1)
    algorithm = DiscreteSACAlgorithm(spaces.Discrete(2), spaces.Discrete(3), config, TABLE)
    set_actor(algorithm, PROBS)
    return algorithm


@torch.no_grad()
def set_actor(algorithm: DiscreteSACAlgorithm, probs: list[list[float]]) -> None:
    """Makes probs[s] the policy in state s; the logits are shifted, which must not matter."""
    linear = algorithm.policy.actor.network[0]  # type: ignore[index, union-attr]
    linear.weight.copy_(torch.tensor(probs).log().T)
    linear.bias.fill_(2.0)


@torch.no_grad()
def set_critics(critics: Any, tables: list[list[list[float]]]) -> None:
    """Makes tables[n][s] the values of critic n in state s."""
    critics.output.weight.copy_(torch.tensor(tables))
    critics.output.bias.zero_()


def make_batch(rows: list[tuple[int, int, float, int, float]], weights: list[float] | None = None) -> TransitionBatch:
    """From rows (state, action, reward, next state, discount)."""
    obs, actions, rewards, next_obs, discounts = (torch.tensor(column) for column in zip(*rows))
    ones = torch.ones(len(obs)) if weights is None else torch.tensor(weights)
    return TransitionBatch(obs, actions, rewards, next_obs, discounts, ones, np.arange(len(obs)))


ONLINE = [[[1.0, 2.0, 4.0], [0.0, 3.0, 8.0]], [[2.0, 1.0, 8.0], [4.0, 5.0, 6.0]]]
TARGET = [[[8.0, 0.0, 0.0], [4.0, 8.0, 2.0]], [[0.0, 4.0, 4.0], [8.0, 4.0, 6.0]]]
ALPHA = 0.5
ENTROPY = 1.5 * math.log(2)
"""Of both rows of PROBS."""
ROWS = [(0, 1, 1.0, 1, 0.5), (1, 2, 2.0, 0, 0.0), (0, 0, -1.0, 0, 0.25)]
# Smallest target values: [4, 4, 2] in state 1, 1 + 1 + 1 = 3 under the policy; [0, 0, 0] in state 0.
TARGETS = [1 + 0.5 * (3 + ALPHA * ENTROPY), 2.0, -1 + 0.25 * (0 + ALPHA * ENTROPY)]
TAKEN = [[2.0, 8.0, 1.0], [1.0, 6.0, 2.0]]


def on_tables(**settings: Any) -> DiscreteSACAlgorithm:
    algorithm = make(**{"ent_coef": ALPHA, **settings})
    set_critics(algorithm.policy.critics, ONLINE)
    set_critics(algorithm.target_critics, TARGET)
    return algorithm


def test_soft_value_by_hand() -> None:
    q = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    log_probs = torch.tensor(PROBS).log()
    # ½ · 1 + ¼ · 2 + ¼ · 4 = 2 and ¼ · 1 + ¼ · 2 + ½ · 4 = 2.75, plus α times the entropy.
    expected = torch.tensor([2 + ALPHA * ENTROPY, 2.75 + ALPHA * ENTROPY])
    torch.testing.assert_close(expected_soft_value(q, log_probs, torch.tensor(ALPHA)), expected)


class TestCritics:
    def test_targets_are_expectations_of_the_smallest_target_values(self) -> None:
        algorithm = on_tables()
        metrics = algorithm.update(make_batch(ROWS), 0.0)
        errors = torch.tensor(TAKEN) - torch.tensor(TARGETS)
        torch.testing.assert_close(algorithm.priorities(), errors.abs().mean(dim=0))
        torch.testing.assert_close(metrics["critic_loss"], 0.5 * errors.square().mean(dim=1).sum())
        torch.testing.assert_close(metrics["q"], torch.tensor(20 / 6))

    def test_only_the_actions_taken_learn_each_in_every_critic(self) -> None:
        algorithm = on_tables()
        algorithm.update(make_batch(ROWS), 0.0)
        gradient = first_gradient_of(algorithm.critic_optimizer, algorithm.policy.critics.output.weight)
        expected = torch.zeros(2, 2, 3)
        for index, (state, action, *_) in enumerate(ROWS):
            for critic in range(2):
                expected[critic, state, action] = (TAKEN[critic][index] - TARGETS[index]) / 3
        torch.testing.assert_close(gradient, expected)

    def test_importance_weights(self) -> None:
        algorithm = on_tables()
        metrics = algorithm.update(make_batch(ROWS, [1.0, 0.5, 0.0]), 0.0)
        errors = torch.tensor(TAKEN) - torch.tensor(TARGETS)
        weighted = torch.tensor([1.0, 0.5, 0.0]) * errors.square()
        torch.testing.assert_close(metrics["critic_loss"], 0.5 * weighted.mean(dim=1).sum())
        torch.testing.assert_close(algorithm.priorities(), errors.abs().mean(dim=0))

    def test_a_subset_of_the_critics_makes_the_target(self) -> None:
        algorithm = on_tables(critic_subset=1, ent_coef=0.0)
        seen = set()
        for _ in range(20):
            loss = algorithm._critic_loss(make_batch([(0, 1, 0.0, 1, 1.0)]), torch.eye(2)[:1], algorithm.generator)
            seen.add(round(loss.errors.item(), 4))
        # Under the policy in state 1: 1 + 2 + 1 = 4 by one critic, 2 + 1 + 3 = 6 by the other; values 2 and 1.
        assert seen == {2.5, 4.5}

    def test_target_networks_follow_by_tau(self) -> None:
        algorithm = on_tables(tau=0.25, learning_rate=0.0)
        algorithm.update(make_batch(ROWS), 0.0)
        expected = 0.75 * torch.tensor(TARGET) + 0.25 * torch.tensor(ONLINE)
        torch.testing.assert_close(algorithm.target_critics.output.weight, expected)  # type: ignore[union-attr]


class TestActor:
    def actor_gradient(self, algorithm: DiscreteSACAlgorithm) -> tuple[dict[str, Tensor], Tensor]:
        metrics = algorithm._update_actor(make_batch(ROWS), torch.eye(2), algorithm.generator)
        weight = algorithm.policy.actor.network[0].weight  # type: ignore[index, union-attr]
        return metrics, first_gradient_of(algorithm.actor_optimizer, weight).T

    @pytest.mark.parametrize(
        "actor_value, q",
        [("min", [[1.0, 1.0, 4.0], [0.0, 3.0, 6.0]]), ("mean", [[1.5, 1.5, 6.0], [2.0, 4.0, 7.0]])],
    )
    def test_loss_and_gradient_by_hand(self, actor_value: str, q: list[list[float]]) -> None:
        metrics, gradient = self.actor_gradient(on_tables(actor_value=actor_value))
        probs = torch.tensor(PROBS)
        soft = torch.tensor(q) - ALPHA * probs.log()
        value = (probs * soft).sum(dim=1, keepdim=True)
        torch.testing.assert_close(metrics["actor_loss"], -value.mean())
        # Softmax: ∂V/∂logit_a = π_a (A_a − V); the α of its own derivative cancels. Two states, each with weight ½.
        torch.testing.assert_close(gradient, -0.5 * probs * (soft - value))

    def test_it_climbs_the_online_critics_as_they_are(self) -> None:
        algorithm = on_tables()
        before = {name: value.clone() for name, value in algorithm.policy.critics.named_parameters()}
        set_critics(algorithm.target_critics, [[[100.0, 0.0, 0.0]] * 2] * 2)
        _, gradient = self.actor_gradient(algorithm)
        assert gradient[0].argmin().item() == 2, "action 2 is the best one of the online critics"
        for name, value in algorithm.policy.critics.named_parameters():
            assert torch.equal(value, before[name])

    def test_sampled_and_best_actions(self) -> None:
        algorithm = make()
        states = torch.tensor([0, 1])
        assert algorithm.policy.act(states, deterministic=True)[0].tolist() == [0, 2]
        drawn = explored(algorithm.make_explorer(), states.repeat(20_000), torch.Generator().manual_seed(0))
        for state, probs in enumerate(PROBS):
            frequencies = torch.bincount(drawn[state::2], minlength=3) / 20_000
            torch.testing.assert_close(frequencies, torch.tensor(probs), atol=0.015, rtol=0)


class TestTemperature:
    def test_target_entropy(self) -> None:
        assert make().temperature.target_entropy == pytest.approx(0.5 * math.log(3))
        assert make(target_entropy_scale=0.89).temperature.target_entropy == pytest.approx(0.89 * math.log(3))
        assert make(target_entropy=0.125).temperature.target_entropy == 0.125
        with pytest.raises(ConfigError, match="target_entropy_scale.*means nothing while target_entropy is 0.125"):
            make(target_entropy=0.125, target_entropy_scale=0.89)

    @pytest.mark.parametrize("target", [0.25, 1.09])
    def test_gradient_is_the_surplus_of_entropy(self, target: float) -> None:
        algorithm = make(initial_ent_coef=0.5, target_entropy=target)
        metrics = algorithm._update_actor(make_batch(ROWS), torch.eye(2), algorithm.generator)
        assert metrics["entropy"].item() == pytest.approx(ENTROPY)
        assert metrics["alpha"].item() == pytest.approx(0.5)
        gradient = first_gradient_of(algorithm.temperature.optimizer, algorithm.temperature.log_alpha)
        assert gradient.item() == pytest.approx(ENTROPY - target)
        moved = algorithm.temperature.alpha.item()
        assert moved < 0.5 if target < ENTROPY else moved > 0.5, "more random than asked: less reward for randomness"

    def test_a_fixed_temperature_stays(self) -> None:
        algorithm = make(ent_coef=0.2)
        for _ in range(3):
            algorithm.update(make_batch(ROWS), 0.0)
        assert algorithm.temperature.alpha.item() == pytest.approx(0.2)
        assert set(algorithm.optimizers()) == {"critics", "actor"}


def test_a_bandit_is_solved_by_the_softmax_of_its_rewards() -> None:
    algorithm = make(ent_coef=0.5, learning_rate=0.03)
    batch = make_batch([(0, 0, 1.0, 0, 0.0), (0, 1, 0.0, 0, 0.0), (0, 2, 0.5, 0, 0.0)])
    for _ in range(600):
        algorithm.update(batch, 0.0)
    weights = [math.exp(reward / 0.5) for reward in (1.0, 0.0, 0.5)]
    probs = algorithm.policy.actor(torch.tensor([[1.0, 0.0]])).probs[0]
    torch.testing.assert_close(probs, torch.tensor(weights) / sum(weights), atol=0.01, rtol=0)


def test_a_learned_temperature_reaches_its_entropy() -> None:
    algorithm = make(learning_rate=0.03, target_entropy_scale=0.5)
    batch = make_batch([(0, 0, 1.0, 0, 0.0), (0, 1, 0.0, 0, 0.0), (0, 2, 0.5, 0, 0.0)])
    for _ in range(1000):
        metrics = algorithm.update(batch, 0.0)
    assert metrics["entropy"].item() == pytest.approx(0.5 * math.log(3), abs=0.02)


def test_state_is_restored_exactly() -> None:
    first = make(policy_delay=2, critic_subset=1)
    for _ in range(3):
        first.update(make_batch(ROWS), 0.0)
    second = make(policy_delay=2, critic_subset=1)
    second.policy.load_state_dict(copy.deepcopy(first.policy.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for algorithm in (first, second):
        for _ in range(3):
            algorithm.update(make_batch(ROWS), 0.0)
    for one, other in zip(first.policy.parameters(), second.policy.parameters()):
        assert torch.equal(one, other)
    assert torch.equal(first.temperature.alpha, second.temperature.alpha)


def test_other_spaces_and_bad_settings_are_refused() -> None:
    with pytest.raises(SpaceError, match="DiscreteSAC does not support Box action spaces"):
        DiscreteSACAlgorithm(spaces.Discrete(2), spaces.Box(-1, 1, (1,)), DiscreteSACConfig())
    with pytest.raises(ConfigError, match="target_entropy_scale"):
        DiscreteSACConfig(target_entropy_scale=1.5)
    with pytest.raises(ConfigError, match="noise_correlation"):
        DiscreteSACConfig(noise_correlation=0.5)
