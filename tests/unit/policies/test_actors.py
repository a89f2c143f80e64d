"""Actors of continuous actions: bounds, modes and initial weights, by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from helpers.acting import acted
from rl_training.policies.actors import MAX_LOG_STD, MIN_LOG_STD, DeterministicActor, GaussianActor
from rl_training.policies.critics import CriticEnsemble
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.spec import PolicySpec

LINEAR = PolicyConfig(hidden_sizes=())
DEEP = PolicyConfig(hidden_sizes=(8, 8), activation="relu", orthogonal_init=False)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def set_linear(layer: Any, weight: list[list[float]], bias: list[float]) -> None:
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))


def gaussian(bias: list[float], weight: float = 0.0) -> GaussianActor:
    """One feature, two actions, no hidden layer: the bias is two means and two log standard deviations."""
    actor = GaussianActor(1, 2, LINEAR)
    set_linear(actor.head, [[weight]] * 4, bias)
    return actor


class TestGaussianActor:
    def test_means_come_first_then_log_standard_deviations(self) -> None:
        distribution = gaussian([0.5, -0.25, -1.0, 0.0], weight=2.0)(torch.tensor([[0.0], [0.1]])).gaussian
        torch.testing.assert_close(distribution.mean, torch.tensor([[0.5, -0.25], [0.7, -0.05]]))
        torch.testing.assert_close(distribution.log_std, torch.tensor([[-1.0, 0.0], [-0.8, 0.2]]))

    def test_the_standard_deviation_is_bounded(self) -> None:
        assert (MIN_LOG_STD, MAX_LOG_STD) == (-20.0, 2.0)
        actor = gaussian([0.0, 0.0, -50.0, 50.0])
        distribution = actor(torch.zeros(1, 1)).gaussian
        assert distribution.log_std.tolist() == [[-20.0, 2.0]]
        actions, log_probs = actor(torch.zeros(100, 1)).rsample_with_log_prob(seeded())
        assert torch.isfinite(log_probs).all()
        assert actions[:, 0].abs().max() < 5 * math.exp(-20) and actions[:, 1].abs().median() > 0.99
        # Beyond a bound nothing pulls further out.
        log_probs.sum().backward()
        assert actor.head.bias.grad is not None and actor.head.bias.grad[2:].tolist() == [0.0, 0.0]

    def test_the_deterministic_action_is_tanh_of_the_mean_and_draws_nothing(self) -> None:
        actor, generator = gaussian([0.5, -2.0, 0.0, 1.0]), seeded()
        before = generator.get_state()
        action = actor.act(torch.zeros(1, 1), generator=generator, deterministic=True)
        torch.testing.assert_close(action, torch.tensor([[math.tanh(0.5), math.tanh(-2.0)]]))
        assert torch.equal(generator.get_state(), before)

    def test_a_sampled_action_by_hand(self) -> None:
        noise = torch.randn(3, 2, generator=seeded(4))
        actions = gaussian([0.5, -0.5, 0.0, math.log(2.0)]).act(
            torch.zeros(3, 1), generator=seeded(4), deterministic=False
        )
        expected = torch.stack([(0.5 + noise[:, 0]).tanh(), (-0.5 + 2 * noise[:, 1]).tanh()], dim=1)
        torch.testing.assert_close(actions, expected)

    def test_the_samples_follow_the_generator(self) -> None:
        actor = gaussian([0.0, 0.0, 0.0, 0.0])
        one, same, other = (
            actor.act(torch.zeros(5, 1), generator=seeded(seed), deterministic=False) for seed in (0, 0, 1)
        )
        assert torch.equal(one, same) and not torch.equal(one, other)

    @pytest.mark.parametrize("mean", [0.0, 3.0, -1000.0])
    def test_actions_stay_inside_the_range(self, mean: float) -> None:
        actor = gaussian([mean, mean, 2.0, 2.0])
        for deterministic in (False, True):
            actions = actor.act(torch.zeros(1000, 1), generator=seeded(), deterministic=deterministic)
            assert actions.abs().max() <= 1
        _, log_probs = actor(torch.zeros(1000, 1)).rsample_with_log_prob(seeded())
        assert torch.isfinite(log_probs).all()

    def test_orthogonal_initialisation_starts_near_a_standard_normal(self) -> None:
        torch.manual_seed(0)
        actor = GaussianActor(4, 2, PolicyConfig(hidden_sizes=(16, 16), activation="relu", orthogonal_init=True))
        assert_orthogonal(actor.body, actor.head)
        distribution = actor(torch.randn(50, 4, generator=seeded())).gaussian
        assert distribution.mean.abs().max() < 0.1 and distribution.log_std.abs().max() < 0.1


class TestDeterministicActor:
    def test_values_by_hand_and_inside_the_range(self) -> None:
        actor = DeterministicActor(1, 2, LINEAR)
        set_linear(actor.network[0], [[1.0], [-2.0]], [0.0, 0.5])
        actions = actor(torch.tensor([[0.5], [1000.0]]))
        torch.testing.assert_close(actions, torch.tensor([[math.tanh(0.5), math.tanh(-0.5)], [1.0, -1.0]]))

    def test_it_draws_nothing(self) -> None:
        actor, generator, features = DeterministicActor(3, 2, DEEP), seeded(), torch.randn(5, 3, generator=seeded(1))
        before = generator.get_state()
        actions = [actor.act(features, generator=generator, deterministic=flag) for flag in (False, True)]
        assert torch.equal(actions[0], actions[1]) and torch.equal(generator.get_state(), before)

    def test_orthogonal_initialisation_starts_near_zero(self) -> None:
        torch.manual_seed(0)
        actor = DeterministicActor(4, 2, PolicyConfig(hidden_sizes=(16, 16), activation="relu", orthogonal_init=True))
        assert_orthogonal(actor.network[:-1], actor.network[-1])
        assert actor(torch.randn(50, 4, generator=seeded())).abs().max() < 0.1


def assert_orthogonal(body: nn.Module, head: Any) -> None:
    """Hidden layers times √2, the last one times 0.01."""
    linears = [layer for layer in body.modules() if isinstance(layer, nn.Linear)]
    assert len(linears) == 2
    for layer, gain in (*((linear, math.sqrt(2)) for linear in linears), (head, 0.01)):
        weight: Tensor = layer.weight.detach()
        small = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
        torch.testing.assert_close(small, gain**2 * torch.eye(len(small)), atol=1e-5, rtol=1e-4)
        assert layer.bias.abs().max() == 0


class TestPolicy:
    def policy(self, space: spaces.Space[Any], normalize: bool = False) -> OffPolicyActorCritic:
        torch.manual_seed(0)
        actions = spaces.Box(-1, 1, (2,), np.float32)
        return OffPolicyActorCritic(
            PolicySpec(space, actions, DEEP, normalize_observations=normalize),
            lambda features: GaussianActor(features, 2, DEEP),
            lambda features: CriticEnsemble(2, features + 2, (8,), 1, activation="relu"),
        )

    def test_observations_are_encoded_for_actor_and_critics(self) -> None:
        space = spaces.Dict({"a": spaces.Box(-1, 1, (2, 2), np.float32), "b": spaces.Discrete(3)})
        policy = self.policy(space)
        obs = {"a": torch.ones(4, 2, 2), "b": torch.tensor([0, 1, 2, 0])}
        features = policy.encoder(obs)
        assert features.shape == (4, 7) and features[1].tolist() == [1, 1, 1, 1, 0, 1, 0]
        assert torch.equal(acted(policy, obs, deterministic=True), policy.actor(features).mode())

    def test_acting_keeps_no_gradient(self) -> None:
        policy = self.policy(spaces.Box(-1, 1, (3,), np.float32))
        obs = torch.randn(4, 3, generator=seeded())
        assert not acted(policy, obs, generator=seeded()).requires_grad
        assert not acted(policy, obs, deterministic=True).requires_grad
        assert policy.actor(policy.encoder(obs)).mode().requires_grad

    def test_the_normaliser_belongs_to_the_policy(self) -> None:
        space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        policy, plain = self.policy(space, normalize=True), self.policy(space)
        data = 5 + 2 * torch.randn(1000, 3, generator=seeded())
        assert policy.encoder.normalizer is not None and plain.encoder.normalizer is None
        policy.encoder.normalizer.update(data)
        features = policy.encoder(data)
        torch.testing.assert_close(features.mean(dim=0), torch.zeros(3), atol=0.05, rtol=0)
        torch.testing.assert_close(features.std(dim=0), torch.ones(3), atol=0.05, rtol=0)
        assert torch.equal(plain.encoder(data), data)
        assert any(name.startswith("encoder.normalizer") for name in policy.state_dict())
