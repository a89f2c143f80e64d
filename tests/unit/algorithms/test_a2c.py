"""A2C: its loss by hand, and one step per rollout."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from helpers.rollouts import copied_weights, make_algorithm, make_rollout
from rl_training.algorithms.a2c import DEFAULT_CRITIC_LEARNING_RATE, A2CAlgorithm, A2CConfig, a2c_loss
from rl_training.algorithms.on_policy import normalized
from rl_training.execution.optimizers import Adam, RMSprop
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ConfigError, NonFiniteError
from rl_training.utils.trees import differing_paths


def test_loss_by_hand() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    entropy = torch.tensor([0.5, 1.5], requires_grad=True)
    new_values = torch.tensor([1.0, 0.0], requires_grad=True)
    advantages, returns = torch.tensor([2.0, 1.0]), torch.tensor([2.0, 2.0])
    result = a2c_loss(logprobs, entropy, new_values, advantages, returns, ent_coef=0.1, vf_coef=0.5)
    assert result["policy_loss"].item() == 2.0  # −(2·(−1) + 1·(−2)) / 2
    assert result["value_loss"].item() == 1.25  # ½ (1 + 4) / 2
    assert result["entropy_loss"].item() == 1.0
    assert result["loss"].item() == pytest.approx(2.0 - 0.1 + 0.5 * 1.25)
    result["loss"].backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-1.0, -0.5], "up, in proportion to the advantage"
    assert new_values.grad is not None and new_values.grad.tolist() == [-0.25, -0.5], "towards the returns"
    assert entropy.grad is not None and entropy.grad.tolist() == pytest.approx([-0.05, -0.05]), "a bonus"


def _manual_gradients(algorithm: A2CAlgorithm, seed: int, normalize: bool) -> list[torch.Tensor]:
    """Gradients of the loss on a whole rollout, without the update's own code."""
    rollout = make_rollout(algorithm, seed=seed)
    algorithm._preprocess_batch(rollout)
    advantages = rollout.advantages.flatten()
    advantages = normalized(advantages) if normalize else advantages
    distribution, values = algorithm.policy(rollout.flat_obs())
    loss = -(advantages * distribution.log_prob(rollout.actions.flatten())).mean()
    loss = (
        loss - 0.01 * distribution.entropy().mean() + 0.5 * 0.5 * (values - rollout.returns.flatten()).square().mean()
    )
    return list(torch.autograd.grad(loss, list(algorithm.policy.parameters())))


@pytest.mark.parametrize("normalize", [False, True])
def test_an_update_is_one_rmsprop_step_on_the_whole_rollout(normalize: bool) -> None:
    algorithm = make_algorithm(
        A2CAlgorithm,
        optimizer="rmsprop",
        learning_rate=1.0,
        ent_coef=0.01,
        max_grad_norm=1e9,
        normalize_advantages=normalize,
    )
    gradients = _manual_gradients(algorithm, 3, normalize)
    before = [parameter.detach().clone() for parameter in algorithm.policy.parameters()]
    algorithm.update(make_rollout(algorithm, seed=3), 0.0)
    for old, parameter, gradient in zip(before, algorithm.policy.parameters(), gradients):
        step = gradient / (0.99 + 0.01 * gradient.square() + 1e-5).sqrt()
        torch.testing.assert_close(parameter.detach(), old - step, atol=1e-6, rtol=0.0)
        assert step.abs().max() > 1e-4, "something was compared"


def test_the_papers_optimizer_is_a_setting() -> None:
    algorithm = make_algorithm(A2CAlgorithm, optimizer="rmsprop", learning_rate=7e-4)
    optimizer = algorithm.optimizer
    assert isinstance(optimizer, RMSprop)
    assert (optimizer.learning_rate.item(), optimizer.alpha, optimizer.eps) == (pytest.approx(7e-4), 0.99, 1e-5)
    assert isinstance(make_algorithm(A2CAlgorithm).optimizer, Adam)
    config = algorithm.config
    assert (config.num_steps, config.gae_lambda, config.normalize_advantages) == (8, 0.9, False)


def test_schedules_at_a_given_progress() -> None:
    algorithm = make_algorithm(
        A2CAlgorithm, learning_rate={"start": 1e-3, "end": 0.0}, ent_coef={"start": 0.1, "end": 0.0, "fraction": 0.5}
    )
    metrics = algorithm.update(make_rollout(algorithm), 0.25)
    assert metrics["learning_rate"].item() == pytest.approx(7.5e-4)
    assert metrics["ent_coef"].item() == pytest.approx(0.05)
    before = copied_weights(algorithm)
    algorithm.update(make_rollout(algorithm, seed=1), 1.0)
    assert differing_paths(before, algorithm.policy.state_dict()) == [], "the learning rate has reached 0"


def test_gradients_are_clipped_and_the_norm_before_is_reported() -> None:
    algorithm = make_algorithm(A2CAlgorithm, optimizer="rmsprop", max_grad_norm=0.01, learning_rate=1.0)
    before = algorithm.optimizer.weights.clone()
    metrics = algorithm.update(make_rollout(algorithm), 0.0)
    left = (
        algorithm.optimizer.weights - before
    ).norm() * 0.99**0.5  # v starts at 1 and g² is small: the step is g / √0.99
    assert metrics["grad_norm"] > 0.01 and left.item() == pytest.approx(0.01, rel=1e-3)


def test_metrics_are_detached_finite_scalars() -> None:
    algorithm = make_algorithm(A2CAlgorithm)
    metrics = algorithm.update(make_rollout(algorithm), 0.0)
    assert {"loss", "policy_loss", "value_loss", "entropy_loss", "grad_norm", "explained_variance"} <= set(metrics)
    for name, value in metrics.items():
        assert value.shape == () and torch.isfinite(value) and not value.requires_grad, name


def test_a_bad_reward_stops_before_the_weights_change() -> None:
    algorithm = make_algorithm(A2CAlgorithm)
    weights = copied_weights(algorithm)
    rollout = make_rollout(algorithm)
    rollout.rewards[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match="policy_loss, value_loss"):
        algorithm.update(rollout, 0.0)
    assert differing_paths(weights, algorithm.policy.state_dict()) == []
    algorithm.update(make_rollout(algorithm, seed=1), 0.0)
    assert differing_paths(weights, algorithm.policy.state_dict()) != [], "and the next rollout is learned from"


def test_the_critic_has_its_own_default_rate_unless_a_rate_is_given() -> None:
    def rate(**given: Any) -> Any:
        return A2CAlgorithm.with_derived_defaults(A2CConfig(**given), given, 8).critic_learning_rate

    assert rate() == DEFAULT_CRITIC_LEARNING_RATE
    assert rate(learning_rate=1e-3) is None and rate(critic_learning_rate=None) is None
    assert rate(critic_learning_rate=1e-4) == 1e-4


def test_with_a_shared_body_the_default_critic_rate_is_left_out_and_a_given_one_refused() -> None:
    shared = {"policy_config": PolicyConfig(shared=True)}
    default = make_algorithm(A2CAlgorithm, env=shared, critic_learning_rate=DEFAULT_CRITIC_LEARNING_RATE)
    assert len(default.optimizer.learning_rates) == 1
    with pytest.raises(ConfigError, match="policy.shared"):
        make_algorithm(A2CAlgorithm, env=shared, critic_learning_rate=1e-4)
