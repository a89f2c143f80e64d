"""CrossQ: joint batch statistics and the stop-gradient by hand on linear networks, and which statistics serve where."""

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
from rl_training.algorithms.crossq import CrossQAlgorithm, CrossQConfig
from rl_training.algorithms.off_policy_actor_critic import CriticLoss
from rl_training.algorithms.sac import SACAlgorithm
from rl_training.algorithms.td3 import TD3Algorithm
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.policies.batch_renorm import BatchRenorm
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ConfigError, SpaceError

LINEAR = PolicyConfig(hidden_sizes=(), orthogonal_init=False)
BOX = spaces.Box(-10, 10, (1,))
NEXT_ACTION = 0.5


def make(policy: PolicyConfig = LINEAR, seed: int = 0, **settings: Any) -> CrossQAlgorithm:
    config = CrossQConfig(**{"ent_coef": 0.0, **settings})
    CrossQAlgorithm.check_config(config, 1)
    return CrossQAlgorithm(BOX, spaces.Box(-1, 1, (1,)), config, policy, seed=seed)


@torch.no_grad()
def set_linear(
    algorithm: CrossQAlgorithm, critics: list[list[float]], biases: list[float], slope: float = 0.0
) -> CrossQAlgorithm:
    """Critic n becomes critics[n] · (ŝ, â) + biases[n], the actor tanh(slope · ŝ + atanh ½) without noise."""
    output: Any = algorithm.policy.critics.output
    output.weight.copy_(torch.tensor(critics).unsqueeze(-1))
    output.bias.copy_(torch.tensor(biases).view(-1, 1, 1))
    head: Any = algorithm.policy.actor.head
    head.weight.copy_(torch.tensor([[slope], [0.0]]))
    head.bias.copy_(torch.tensor([math.atanh(NEXT_ACTION), -20.0]))
    return algorithm


def renorms(network: torch.nn.Module) -> list[BatchRenorm]:
    return [module for module in network.modules() if isinstance(module, BatchRenorm)]


def column(values: list[float]) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def make_batch(weights: tuple[float, float] = (1.0, 1.0)) -> TransitionBatch:
    return TransitionBatch(
        obs=column([0.0, 2.0]),
        actions=column([-0.5, 0.5]),
        rewards=torch.tensor([1.0, -1.0]),
        next_obs=column([4.0, 6.0]),
        discounts=torch.tensor([0.5, 0.25]),
        weights=torch.tensor(weights),
        indices=np.arange(2),
    )


def joint(values: list[float]) -> tuple[list[float], list[float]]:
    """Both halves of four values, normalised by the statistics of all of them."""
    mean = sum(values) / 4
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / 4 + 0.001)
    normal = [(value - mean) / std for value in values]
    return normal[:2], normal[2:]


CRITICS, BIASES = [[2.0, 1.0], [-1.0, 3.0]], [1.0, 2.0]
S, NEXT_S = joint([0.0, 2.0, 4.0, 6.0])
A, NEXT_A = joint([-0.5, 0.5, NEXT_ACTION, NEXT_ACTION])
Q = [[w[0] * s + w[1] * a + b for s, a in zip(S, A)] for w, b in zip(CRITICS, BIASES)]
NEXT_Q = [[w[0] * s + w[1] * a + b for s, a in zip(NEXT_S, NEXT_A)] for w, b in zip(CRITICS, BIASES)]
TARGETS = [1 + 0.5 * min(NEXT_Q[0][0], NEXT_Q[1][0]), -1 + 0.25 * min(NEXT_Q[0][1], NEXT_Q[1][1])]
ERRORS = torch.tensor(Q) - torch.tensor(TARGETS)


def critic_loss(algorithm: CrossQAlgorithm) -> CriticLoss:
    batch = make_batch()
    return algorithm._critic_loss(batch, batch.obs, algorithm.generator)


class TestCritics:
    def test_both_ends_share_their_statistics(self) -> None:
        algorithm = set_linear(make(), CRITICS, BIASES)
        metrics = algorithm.update(make_batch(), 0.0)
        torch.testing.assert_close(algorithm.priorities(), ERRORS.abs().mean(dim=0))
        torch.testing.assert_close(metrics["critic_loss"], 0.5 * ERRORS.square().mean(dim=1).sum())

    def test_no_gradient_through_the_next_half(self) -> None:
        algorithm = set_linear(make(), CRITICS, BIASES)
        algorithm.update(make_batch(), 0.0)
        output: Any = algorithm.policy.critics.output
        bias, weight = (first_gradient_of(algorithm.critic_optimizer, part) for part in (output.bias, output.weight))
        torch.testing.assert_close(bias.flatten(), ERRORS.mean(dim=1))
        inputs = torch.tensor([S, A])
        torch.testing.assert_close(weight.squeeze(-1), ERRORS @ inputs.T / 2)

    def test_importance_weights(self) -> None:
        algorithm = set_linear(make(), CRITICS, BIASES)
        metrics = algorithm.update(make_batch((1.0, 0.25)), 0.0)
        weighted = torch.tensor([1.0, 0.25]) * ERRORS.square()
        torch.testing.assert_close(metrics["critic_loss"], 0.5 * weighted.mean(dim=1).sum())

    def test_entropy_of_the_next_action_counts(self) -> None:
        losses = []
        for alpha in (0.0, 0.5):
            algorithm = set_linear(make(ent_coef=alpha), CRITICS, BIASES)
            state = algorithm.generator.get_state()
            losses.append(critic_loss(algorithm))
        algorithm.generator.set_state(state)
        _, log_probs = algorithm.policy.actor(column([4.0, 6.0])).rsample_with_log_prob(algorithm.generator)
        # The targets move by −γ α log π, so the errors of every critic do by its opposite.
        shift = torch.tensor([0.5, 0.25]) * 0.5 * log_probs
        expected = 0.5 * (ERRORS + shift).square().mean(dim=1).sum()
        torch.testing.assert_close(losses[1].loss, expected)
        assert not torch.allclose(losses[0].loss, expected)

    def test_statistics_move_once_per_update_towards_the_joint_batch(self) -> None:
        algorithm = set_linear(make(renorm_momentum=0.75), CRITICS, BIASES)
        algorithm.update(make_batch(), 0.0)
        (renorm,) = renorms(algorithm.policy.critics)
        # States 0, 2, 4, 6; actions −½, ½, ½, ½: means 3 and ¼, variances 5 and 3/16.
        for member in range(2):
            torch.testing.assert_close(renorm.running_mean[member, 0], torch.tensor([0.25 * 3, 0.25 * 0.25]))
            torch.testing.assert_close(renorm.running_var[member, 0], torch.tensor([2.0, 0.75 + 0.25 * 3 / 16]))
        assert renorm.batches.item() == 1

    def test_running_statistics_take_part_after_the_warm_up(self) -> None:
        algorithm = set_linear(make(renorm_warmup=0), [[1.0, 0.0], [1.0, 0.0]], [0.0, 0.0])
        # At first μ = 0 and σ² = 1: r = √5.001 / √1.001 and d = 3 / √1.001 are within their bounds.
        loss = critic_loss(algorithm)
        torch.testing.assert_close(loss.q[0], torch.tensor([0.0, 2.0]) / math.sqrt(1.001), atol=1e-6, rtol=1e-5)

    def test_a_subset_makes_the_target_and_all_learn(self) -> None:
        algorithm = set_linear(make(critic_subset=1), [[0.0, 0.0], [0.0, 0.0]], [8.0, -8.0])
        seen = set()
        for _ in range(20):
            loss = critic_loss(algorithm)
            seen.add(round(loss.loss.item(), 3))
            assert loss.q.shape == (2, 2)
        # Targets 1 ± 4 and −1 ± 2, values ±8: errors 3, 7 and 13, 9, or the other way around.
        assert seen == {round(0.25 * (3**2 + 7**2 + 13**2 + 9**2), 3), round(0.25 * (11**2 + 11**2 + 5**2 + 5**2), 3)}

    def test_there_is_no_target_network(self) -> None:
        algorithm = make()
        assert algorithm.target_networks() == {} and algorithm.state_dict()["targets"] == {}
        with pytest.raises(ConfigError, match="tau.*no target networks"):
            CrossQConfig(tau=0.005)


class TestWhichStatistics:
    def test_next_actions_use_the_running_ones(self) -> None:
        algorithm = set_linear(make(), [[0.0, 1.0], [0.0, 1.0]], [0.0, 0.0], slope=0.1)
        (renorm,) = renorms(algorithm.policy.actor)
        renorm.running_mean.fill_(3.0)
        renorm.running_var.fill_(3.999)
        loss = critic_loss(algorithm)
        next_actions = [math.tanh(0.1 * (s - 3) / 2 + math.atanh(NEXT_ACTION)) for s in (4.0, 6.0)]
        now, after = joint([-0.5, 0.5, *next_actions])
        targets = [1 + 0.5 * after[0], -1 + 0.25 * after[1]]
        torch.testing.assert_close(loss.errors, (torch.tensor(now) - torch.tensor(targets)).abs())
        assert renorm.batches.item() == 0

    def test_the_actor_learns_with_those_of_the_batch_and_climbs_critics_with_running_ones(self) -> None:
        algorithm = set_linear(make(), [[1.0, 2.0], [1.0, 2.0]], [0.5, 9.0], slope=1.0)
        (actor,), (critics,) = renorms(algorithm.policy.actor), renorms(algorithm.policy.critics)
        critics.running_mean.copy_(torch.tensor([1.0, 0.5]).expand(2, 1, 2))
        critics.running_var.copy_(torch.tensor([3.999, 0.249]).expand(2, 1, 2))
        before = {name: value.clone() for name, value in algorithm.policy.critics.state_dict().items()}
        metrics = algorithm._update_actor(make_batch(), column([0.0, 2.0]), algorithm.generator)
        # The batch has mean 1 and variance 1.
        actions = [math.tanh(x / math.sqrt(1.001) + math.atanh(NEXT_ACTION)) for x in (-1.0, 1.0)]
        values = [(s - 1) / 2 + 2 * (a - 0.5) / 0.5 + 0.5 for s, a in zip((0.0, 2.0), actions)]
        assert metrics["actor_loss"].item() == pytest.approx(-sum(values) / 2, rel=1e-5)
        assert actor.batches.item() == 1 and actor.running_mean.item() == pytest.approx(0.01)
        for name, value in algorithm.policy.critics.state_dict().items():
            assert torch.equal(value, before[name]), f"critics.{name} has moved"

    def test_the_actor_moves_every_third_update(self) -> None:
        algorithm = make()
        counts = []
        for _ in range(6):
            algorithm.update(make_batch(), 0.0)
            counts.append(
                [renorms(part)[0].batches.item() for part in (algorithm.policy.critics, algorithm.policy.actor)]
            )
        assert counts == [[1, 0], [2, 0], [3, 1], [4, 1], [5, 1], [6, 2]]

    def test_acting_neither_changes_statistics_nor_depends_on_the_batch(self) -> None:
        algorithm = make(PolicyConfig(hidden_sizes=(8,), activation="relu"))
        for _ in range(3):
            algorithm.update(make_batch(), 0.0)
        before = {name: value.clone() for name, value in algorithm.policy.state_dict().items()}
        obs = column([-3.0, 0.0, 5.0])
        together, _ = algorithm.policy.act(obs, deterministic=True)
        explorer = algorithm.make_explorer()
        for mode in (False, True):  # an evaluation leaves the policy as it found it, in training mode
            algorithm.policy.train(mode)
            explored(explorer, obs, torch.Generator().manual_seed(0))
            alone = torch.cat([algorithm.policy.act(row.unsqueeze(0), deterministic=True)[0] for row in obs])
            torch.testing.assert_close(alone, together)
        for name, value in algorithm.policy.state_dict().items():
            assert torch.equal(value, before[name]), f"{name} has moved"


def test_networks_normalise_the_input_and_after_each_activation() -> None:
    algorithm = make(PolicyConfig(hidden_sizes=(4,), critic_hidden_sizes=(6, 5), activation="relu"))
    generator = torch.Generator().manual_seed(0)
    for renorm in renorms(algorithm.policy):
        renorm.running_mean.copy_(torch.rand(renorm.running_mean.shape, generator=generator))
    critics, actor = algorithm.policy.critics, algorithm.policy.actor
    norms: Any = critics.input_norms
    layers: Any = critics.hidden
    assert [norm.weight.shape for norm in norms] == [(2, 1, 2), (2, 1, 6), (2, 1, 5)]
    x = torch.rand(3, 2, generator=generator)
    hidden = norms[1](layers[0](norms[0](x)).relu())
    torch.testing.assert_close(critics(x), critics.output(norms[2](layers[1](hidden).relu())))  # type: ignore[operator]
    first, linear, activation, last = actor.body  # type: ignore[misc, union-attr]
    assert (first.weight.shape, last.weight.shape) == ((1, 1), (1, 4))
    features = torch.rand(3, 1, generator=generator)
    expected = actor.head(last(activation(linear(first(features)))))[:, :1].tanh()  # type: ignore[operator]
    torch.testing.assert_close(actor(features).mode(), expected)


def test_adam_of_actor_and_critics() -> None:
    betas = {name: optimizer.beta1 for name, optimizer in make(ent_coef="auto").optimizers().items()}
    assert betas == {"critics": 0.5, "actor": 0.5, "temperature": 0.9}
    assert make(adam_beta1=0.75).actor_optimizer.beta1 == 0.75


@pytest.mark.parametrize("algorithm", [SACAlgorithm, TD3Algorithm, CrossQAlgorithm])
def test_critics_may_have_their_own_widths(algorithm: Any) -> None:
    for sizes, expected in (((7, 5), [7, 5]), ((), []), (None, [3])):
        config = PolicyConfig(hidden_sizes=(3,), critic_hidden_sizes=sizes)
        policy = algorithm(BOX, spaces.Box(-1, 1, (1,)), algorithm.config_class(), config).policy
        assert [layer.weight.shape[-1] for layer in policy.critics.hidden] == expected
        assert 3 in {parameter.shape[0] for parameter in policy.actor.parameters()}


def test_state_is_restored_exactly_across_the_warm_up() -> None:
    settings: Any = {"ent_coef": "auto", "renorm_warmup": 4, "policy": PolicyConfig(hidden_sizes=(8,))}
    whole = make(**settings)
    for _ in range(3):
        whole.update(make_batch(), 0.0)
    resumed = make(seed=1, **settings)
    resumed.policy.load_state_dict(copy.deepcopy(whole.policy.state_dict()))
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for algorithm in (whole, resumed):
        for _ in range(6):
            algorithm.update(make_batch(), 0.0)
    mine, theirs = whole.policy.state_dict(), resumed.policy.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert renorms(resumed.policy.critics)[0].batches.item() == 9


def test_discrete_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match="CrossQ does not support Discrete action spaces"):
        CrossQAlgorithm(BOX, spaces.Discrete(2), CrossQConfig())
