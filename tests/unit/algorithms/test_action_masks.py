"""Targets and losses of masked actions, by hand on tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.a2c import A2CAlgorithm, A2CConfig
from rl_training.algorithms.discrete_sac import DiscreteSACAlgorithm, DiscreteSACConfig
from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.algorithms.trpo import TRPOAlgorithm, TRPOConfig
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.action_masks import ActionMask

TABLE = PolicyConfig(hidden_sizes=(), orthogonal_init=False)
SPACE = spaces.Dict({"observation": spaces.Discrete(2), "action_mask": ActionMask((3,))})
ONLINE = [[1.0, 5.0, 9.0], [3.0, 4.0, 9.0]]
TARGET = [[7.0, 0.0, 99.0], [10.0, 2.0, 99.0]]


def obs_of(states: list[int], masks: list[list[int]]) -> dict[str, Tensor]:
    return {"observation": torch.tensor(states), "action_mask": torch.tensor(masks, dtype=torch.int8)}


# From state 0, where action 2 is not valid, to state 1, where it is not either: 1 + ½ V(1); and an end with reward 2.
BATCH = TransitionBatch(
    obs=obs_of([0, 1], [[1, 1, 0], [1, 1, 0]]),
    actions=torch.tensor([0, 1]),
    rewards=torch.tensor([1.0, 2.0]),
    next_obs=obs_of([1, 0], [[1, 1, 0], [1, 1, 1]]),
    discounts=torch.tensor([0.5, 0.0]),
    weights=torch.ones(2),
    indices=np.arange(2),
)


def dqn(**settings: Any) -> Any:
    config = DQNConfig(**{"target_update_interval": 1_000, "tau": 1.0} | settings)
    DQNAlgorithm.check_config(config, 1)
    return DQNAlgorithm(SPACE, spaces.Discrete(3), config, TABLE)


@torch.no_grad()
def set_table(network: Any, rows: list[list[Any]]) -> None:
    """Makes rows[s][a] the outputs for action a in state s."""
    output = network.head.advantage.output
    output.weight.copy_(torch.tensor(rows).flatten(1).T)
    output.bias.zero_()
    if network.embedding is not None:  # every τ sees the features as they are
        network.embedding.linear.weight.zero_()
        network.embedding.linear.bias.fill_(1.0)


def target_of(algorithm: Any) -> Tensor:
    target: Tensor = algorithm._compute_losses(BATCH, torch.Generator().manual_seed(0)).target
    return target


class TestValueTargets:
    @pytest.mark.parametrize(("double", "best"), [(False, 10.0), (True, 2.0)])
    def test_plain_and_double(self, double: bool, best: float) -> None:
        algorithm = dqn(double=double)
        set_table(algorithm.policy, ONLINE)
        set_table(algorithm.target, TARGET)
        # The largest valid value; or that of action 1, which the online network prefers once action 2 is ruled out.
        torch.testing.assert_close(target_of(algorithm), torch.tensor([1 + 0.5 * best, 2.0]))

    def test_munchausen_means_the_softmax_of_valid_actions(self) -> None:
        algorithm = dqn(munchausen=True, munchausen_tau=2.0, munchausen_alpha=0.5, munchausen_clip=-3.0)
        set_table(algorithm.policy, ONLINE)
        set_table(algorithm.target, TARGET)
        # τ log π(0|0) = −2 log(1 + e^−3.5), τ log π(1|1) = −8 − …, clipped; soft value of state 1: 10 + 2 log(1 + e^−4).
        first = 1 - math.log1p(math.exp(-3.5)) + 0.5 * (10 + 2 * math.log1p(math.exp(-4)))
        torch.testing.assert_close(target_of(algorithm), torch.tensor([first, 2 - 1.5]))

    @pytest.mark.parametrize("double", [False, True])
    def test_categorical(self, double: bool) -> None:
        algorithm = dqn(distribution="categorical", num_atoms=2, v_min=0.0, v_max=8.0, double=double)
        # Means 6 and 4 of valid actions, 7.2 of the other.
        rows = [[[0.0, math.log(3.0)], [0.0, 0.0], [0.0, math.log(9.0)]]] * 2
        online = [[[0.0, 0.0], [0.0, math.log(3.0)], [0.0, math.log(9.0)]]] * 2
        set_table(algorithm.target, rows)
        set_table(algorithm.policy, online)
        # The online network would choose action 1, at 4.
        expected = 1 + 0.5 * (4.0 if double else 6.0)
        torch.testing.assert_close(target_of(algorithm), torch.tensor([expected, 2.0]))

    @pytest.mark.parametrize("double", [False, True])
    def test_quantiles(self, double: bool) -> None:
        algorithm = dqn(distribution="quantile", num_quantiles=2, double=double)
        set_table(algorithm.target, [[[1.0, 3.0], [0.0, 1.0], [9.0, 9.0]]] * 2)
        set_table(algorithm.policy, [[[1.0, 3.0], [4.0, 4.0], [9.0, 9.0]]] * 2)
        expected = 1 + 0.5 * (0.5 if double else 2.0)
        torch.testing.assert_close(target_of(algorithm), torch.tensor([expected, 2.0]))

    @pytest.mark.parametrize("double", [False, True])
    def test_implicit_quantiles(self, double: bool) -> None:
        algorithm = dqn(distribution="implicit", double=double)
        set_table(algorithm.policy, ONLINE)
        set_table(algorithm.target, TARGET)
        expected = 1 + 0.5 * (2.0 if double else 10.0)
        torch.testing.assert_close(target_of(algorithm), torch.tensor([expected, 2.0]))

    @pytest.mark.parametrize("settings", [{}, {"double": True}, {"munchausen": True}, {"noisy": True, "dueling": True}])
    def test_an_update_is_finite(self, settings: dict[str, Any]) -> None:
        metrics = dqn(**settings).update(BATCH, 0.0)
        assert all(value.isfinite().all() for value in metrics.values())


class TestDiscreteSAC:
    def make(self, **settings: Any) -> DiscreteSACAlgorithm:
        config = DiscreteSACConfig(num_critics=1, **settings)
        algorithm = DiscreteSACAlgorithm(SPACE, spaces.Discrete(3), config, TABLE)
        actor: Any = algorithm.policy.actor
        with torch.no_grad():
            actor.network[0].weight.copy_(torch.tensor([[0.25, 0.25, 0.5], [0.125, 0.375, 0.5]]).log().T)
            actor.network[0].bias.zero_()
            for critics in (algorithm.policy.critics, algorithm.target_critics):
                critics.output.weight.copy_(torch.tensor([[[1.0, 2.0, 50.0], [8.0, 4.0, 50.0]]]))
                critics.output.bias.zero_()
        return algorithm

    def test_the_target_is_an_expectation_over_valid_actions(self) -> None:
        algorithm = self.make(ent_coef=0.5)
        loss = algorithm._critic_loss(BATCH, algorithm.policy.encoder(BATCH.obs), torch.Generator())
        # In state 1 the valid actions have ¼ and ¾: ¼ · 8 + ¾ · 4 + ½ H.
        entropy = 2 * math.log(2) - 0.75 * math.log(3)
        target = 1 + 0.5 * (5.0 + 0.5 * entropy)
        torch.testing.assert_close(loss.errors, torch.tensor([target - 1.0, 4.0 - 2.0]))

    def test_the_actor_learns_of_valid_actions_only(self) -> None:
        algorithm = self.make(ent_coef=0.5)
        features = algorithm.policy.encoder(BATCH.obs)
        metrics = algorithm._update_actor(BATCH, features, torch.Generator())
        even, uneven = math.log(2), 2 * math.log(2) - 0.75 * math.log(3)
        expected = -((1.5 + 0.5 * even) + (5.0 + 0.5 * uneven)) / 2
        assert metrics["actor_loss"].item() == pytest.approx(expected)
        assert metrics["entropy"].item() == pytest.approx((even + uneven) / 2)

    def test_the_target_entropy_counts_valid_actions(self) -> None:
        algorithm = self.make(target_entropy_scale=0.5)
        targets = algorithm._target_entropies(BATCH.next_obs)
        assert targets is not None
        torch.testing.assert_close(targets, 0.5 * torch.tensor([math.log(2), math.log(3)]))
        assert self.make(target_entropy=0.3)._target_entropies(BATCH.obs) is None
        before = algorithm.temperature.log_alpha.item()
        algorithm.update(BATCH, 0.0)
        # Entropies log 2 and 0.56 are both above ½ log 2: α falls.
        assert algorithm.temperature.log_alpha.item() < before


@pytest.mark.parametrize(
    ("kind", "config"), [(PPOAlgorithm, PPOConfig()), (A2CAlgorithm, A2CConfig()), (TRPOAlgorithm, TRPOConfig())]
)
def test_log_probabilities_are_of_valid_actions(kind: Any, config: Any) -> None:
    algorithm = kind(SPACE, spaces.Discrete(3), config, TABLE)
    with torch.no_grad():
        algorithm.policy.action_head.linear.weight.copy_(torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0], [9.0, 9.0]]))
        algorithm.policy.action_head.linear.bias.zero_()
    log_probs, values = algorithm.evaluate_actions(BATCH.obs, BATCH.actions, None)
    torch.testing.assert_close(log_probs, torch.tensor([0.25, 0.5]).log())
    assert values.shape == (2,)
