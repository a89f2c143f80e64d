"""PPO: its loss by hand, and what its update does with schedules, target KL, recomputed advantages and normalisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import rl_training.algorithms.ppo as ppo_module
from helpers.rollouts import copied_weights, make_algorithm, make_rollout
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig, ppo_loss
from rl_training.utils.errors import ConfigError, NonFiniteError
from rl_training.utils.trees import differing_paths

EAGER: dict[str, Any] = {"execution": "eager"}
"""For tests that look on while a step is computed, which a recorded one does not do again."""


def _minibatch(**columns: list[float]) -> dict[str, Tensor]:
    """Two or more samples; whatever is not given contributes nothing to the loss."""
    size = len(next(iter(columns.values())))
    zeros = dict.fromkeys(
        ("logprobs", "old_logprobs", "advantages", "returns", "values", "new_values", "entropy"), [0.0] * size
    )
    return {name: torch.tensor(column, requires_grad=True) for name, column in {**zeros, **columns}.items()}


def test_policy_loss_clips_on_the_side_that_would_gain() -> None:
    ratios, advantages = [1.5, 1.5, 0.5, 0.5], [1.0, -1.0, 1.0, -1.0]
    batch = _minibatch(logprobs=[math.log(r) - 3 for r in ratios], old_logprobs=[-3.0] * 4, advantages=advantages)
    result = ppo_loss(batch, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5)
    # min(1.5, 1.2), min(−1.5, −1.2), min(0.5, 0.8), min(−0.5, −0.8)
    assert result["policy_loss"].item() == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8) / 4)
    assert result["clip_fraction"].item() == 1.0
    result["loss"].backward()
    # ∂/∂log π = −r A / 4 where the unclipped term is the smaller one, and 0 where the clip holds.
    assert batch["logprobs"].grad is not None
    assert batch["logprobs"].grad.tolist() == pytest.approx([0.0, 1.5 / 4, -0.5 / 4, 0.0])


def test_inside_the_clip_range_nothing_is_clipped() -> None:
    batch = _minibatch(logprobs=[math.log(1.1), math.log(0.9)], advantages=[2.0, -3.0])
    result = ppo_loss(batch, clip_coef=0.2, ent_coef=0.0, vf_coef=0.0)
    assert result["policy_loss"].item() == pytest.approx(-(2.2 - 2.7) / 2)
    assert result["clip_fraction"].item() == 0.0


def test_approx_kl_is_the_low_variance_estimator() -> None:
    batch = _minibatch(logprobs=[math.log(1.5), math.log(0.5)], advantages=[1.0, 1.0])
    result = ppo_loss(batch, clip_coef=0.2, ent_coef=0.0, vf_coef=0.0)
    expected = ((0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 2  # (r − 1) − log r, never negative
    assert result["approx_kl"].item() == pytest.approx(expected)
    assert not result["approx_kl"].requires_grad and not result["clip_fraction"].requires_grad


def test_value_loss_with_and_without_clipping() -> None:
    batch = _minibatch(new_values=[1.0, 2.0, 1.0], returns=[3.0, 1.0, 3.0], values=[0.0, 2.0, 2.9])
    plain = ppo_loss(batch, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5)
    assert plain["value_loss"].item() == pytest.approx(0.5 * (4 + 1 + 4) / 3)
    assert plain["loss"].item() == pytest.approx(0.5 * plain["value_loss"].item())
    # Clipped values 0.2, 2, 2.7 have errors 7.84, 1, 0.09; the larger of both counts: 7.84, 1, 4.
    clipped = ppo_loss(batch, clip_coef=0.2, ent_coef=0.0, vf_coef=0.5, clip_value_loss=True)
    assert clipped["value_loss"].item() == pytest.approx(0.5 * (7.84 + 1 + 4) / 3)


def test_entropy_is_a_bonus() -> None:
    batch = _minibatch(entropy=[0.5, 1.5])
    result = ppo_loss(batch, clip_coef=0.2, ent_coef=0.1, vf_coef=0.5)
    assert result["entropy_loss"].item() == 1.0
    assert result["loss"].item() == pytest.approx(-0.1)
    result["loss"].backward()
    assert batch["entropy"].grad is not None and (batch["entropy"].grad < 0).all(), "descent raises the entropy"


def test_the_loss_is_the_weighted_sum_of_its_terms() -> None:
    batch = _minibatch(advantages=[1.0, 3.0], new_values=[0.0, 2.0], returns=[2.0, 2.0], entropy=[1.0, 1.0])
    result = ppo_loss(batch, clip_coef=0.2, ent_coef=0.25, vf_coef=0.5)
    assert result["loss"].item() == pytest.approx(-2.0 - 0.25 * 1.0 + 0.5 * (0.5 * 2.0))


def test_every_mean_is_over_the_steps_that_count() -> None:
    columns = {
        "logprobs": [math.log(1.5), math.log(0.9), 5.0],
        "advantages": [1.0, 2.0, 1e6],
        "returns": [3.0, 1.0, 1e6],
        "values": [0.0, 2.0, 0.0],
        "new_values": [1.0, 2.0, -1e6],
        "entropy": [0.5, 1.5, 1e6],
    }
    batch = {**_minibatch(**columns), "valid": torch.tensor([True, True, False])}
    result = ppo_loss(batch, clip_coef=0.2, ent_coef=0.1, vf_coef=0.5, clip_value_loss=True)
    # By hand: min(1.5, 1.2) · 1 and 0.9 · 2; clipped value 0.2 with the error 7.84, and an error of 1; entropies 0.5 and 1.5.
    assert result["policy_loss"].item() == pytest.approx(-(1.2 + 1.8) / 2)
    assert result["value_loss"].item() == pytest.approx(0.5 * (7.84 + 1) / 2)
    assert result["entropy_loss"].item() == pytest.approx(1.0)
    kl = ((0.5 - math.log(1.5)) + (-0.1 - math.log(0.9))) / 2
    assert result["approx_kl"].item() == pytest.approx(kl, abs=1e-6)
    assert result["clip_fraction"].item() == pytest.approx(0.5)
    result["loss"].backward()
    for name in ("logprobs", "new_values", "entropy"):
        gradient = batch[name].grad
        assert gradient is not None and gradient[2] == 0 and (gradient[:2] != 0).any(), name
    two = ppo_loss(
        {name: value[:2] for name, value in batch.items() if name != "valid"},
        clip_coef=0.2,
        ent_coef=0.1,
        vf_coef=0.5,
        clip_value_loss=True,
    )
    for name, value in two.items():
        assert result[name].item() == pytest.approx(value.item()), f"{name} as if the third step were not there"


@pytest.mark.parametrize("progress, share", [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0)])
def test_schedules_at_a_given_progress(progress: float, share: float) -> None:
    algorithm = make_algorithm(
        PPOAlgorithm,
        learning_rate={"start": 1e-3, "end": 0.0},
        clip_coef={"start": 0.4, "end": 0.2},
        ent_coef={"start": 0.1, "end": 0.0, "fraction": 0.5},
    )
    before = copied_weights(algorithm)
    metrics = algorithm.update(make_rollout(algorithm), progress)
    assert metrics["learning_rate"].item() == pytest.approx(1e-3 * share)
    assert metrics["clip_coef"].item() == pytest.approx(0.2 + 0.2 * share)
    assert metrics["ent_coef"].item() == pytest.approx(max(0.0, 0.1 * (1 - 2 * progress)))
    assert algorithm.optimizer.learning_rate.item() == pytest.approx(1e-3 * share)
    moved = differing_paths(before, algorithm.policy.state_dict())
    assert bool(moved) == (share > 0), "a learning rate of 0 leaves the weights bit for bit"


def test_scheduled_coefficients_reach_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _record_losses(monkeypatch)
    algorithm = make_algorithm(
        PPOAlgorithm,
        clip_coef={"start": 0.4, "end": 0.2},
        ent_coef={"start": 0.2, "end": 0.0},
        vf_coef=0.7,
        clip_value_loss=True,
        env=EAGER,
    )
    algorithm.update(make_rollout(algorithm), 0.5)
    assert len(calls) == 16, "4 epochs of 4 minibatches"
    for _, clip_coef, ent_coef, vf_coef, clip_value_loss in calls:
        assert (clip_coef, ent_coef, vf_coef, clip_value_loss) == (pytest.approx(0.3), pytest.approx(0.1), 0.7, True)


def test_target_kl_stops_the_epochs() -> None:
    settings: dict[str, Any] = {"learning_rate": 0.05, "num_minibatches": 1, "update_epochs": 8}
    # With one minibatch the first epoch measures the policy that acted (KL 0) and the second what its step did.
    for target, epochs in ((1e-6, 2), (1e6, 8), (None, 8)):
        algorithm = make_algorithm(PPOAlgorithm, target_kl=target, **settings)
        metrics = algorithm.update(make_rollout(algorithm), 0.0)
        assert metrics["epochs"].item() == epochs
        assert algorithm.optimizer.count.item() == epochs, "no gradient step after the stop"


def test_recomputed_advantages_use_new_values_and_old_log_probs() -> None:
    settings: dict[str, Any] = {"learning_rate": 0.01, "num_minibatches": 1}
    one_epoch = make_algorithm(PPOAlgorithm, update_epochs=1, **settings)
    initial = make_algorithm(PPOAlgorithm, update_epochs=1, **settings)
    one_epoch.update(make_rollout(one_epoch), 0.0)

    results = {}
    for recompute in (False, True):
        algorithm = make_algorithm(PPOAlgorithm, update_epochs=2, recompute_advantages=recompute, **settings)
        rollout = make_rollout(algorithm)
        algorithm.update(rollout, 0.0)
        results[recompute] = rollout
    with torch.no_grad():
        obs = results[True].flat_obs()
        distribution, first_values = initial.policy(obs)
        later_values = one_epoch.policy.value(obs)
        old_logprobs = distribution.log_prob(results[True].actions.flatten())
    torch.testing.assert_close(results[False].values.flatten(), first_values, rtol=0, atol=1e-6)
    torch.testing.assert_close(results[True].values.flatten(), later_values, rtol=0, atol=1e-6)
    assert not torch.allclose(first_values, later_values)
    assert not torch.allclose(results[True].advantages, results[False].advantages)
    for rollout in results.values():
        torch.testing.assert_close(rollout.logprobs.flatten(), old_logprobs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
def test_advantages_are_normalised_per_minibatch(monkeypatch: pytest.MonkeyPatch, normalize: bool) -> None:
    calls = _record_losses(monkeypatch)
    algorithm = make_algorithm(
        PPOAlgorithm, normalize_advantages=normalize, update_epochs=1, num_minibatches=2, env=EAGER
    )
    rollout = make_rollout(algorithm, rewards=[[float(t * t), -float(t)] for t in range(8)])
    algorithm.update(rollout, 0.0)
    assert len(calls) == 2
    seen = torch.cat([call[0]["advantages"] for call in calls])
    if normalize:
        for call in calls:
            assert call[0]["advantages"].mean().item() == pytest.approx(0.0, abs=1e-6)
            assert call[0]["advantages"].std().item() == pytest.approx(1.0, abs=1e-5)
    else:
        assert torch.equal(seen.sort().values, rollout.advantages.flatten().sort().values)


def test_before_any_step_the_new_policy_is_the_old_one() -> None:
    """The ratio is exactly 1, also with an observation normaliser: nothing of it moved since the rollout."""
    algorithm = make_algorithm(PPOAlgorithm, update_epochs=1, num_minibatches=1, env={"normalize_observations": True})
    for seed in range(3):
        metrics = algorithm.update(make_rollout(algorithm, seed=seed), 0.0)
        assert metrics["approx_kl"].item() == pytest.approx(0.0, abs=1e-7)
        assert metrics["clip_fraction"].item() == 0.0


def test_invalid_steps_do_not_reach_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _record_losses(monkeypatch)
    valid = [[1, 1], [0, 1], [1, 1], [1, 0]] * 2
    results = []
    for poison in (0.0, 1e6):
        algorithm = make_algorithm(PPOAlgorithm, update_epochs=1, env=EAGER)
        rollout = make_rollout(algorithm, valid=valid)
        rollout.rewards[~rollout.valid] = poison
        algorithm.update(rollout, 0.0)
        results.append(copied_weights(algorithm))
    assert sum(len(call[0]["advantages"]) for call in calls) == 2 * 12
    assert differing_paths(*results) == []


def test_a_bad_reward_stops_before_the_weights_change() -> None:
    algorithm = make_algorithm(PPOAlgorithm)
    algorithm.update(make_rollout(algorithm), 0.0)
    weights, optimizer = copied_weights(algorithm), _copied_moments(algorithm)
    rollout = make_rollout(algorithm, seed=1)
    rollout.rewards[3, 1] = float("nan")
    with pytest.raises(NonFiniteError, match="loss, policy_loss, value_loss, grad_norm became NaN"):
        algorithm.update(rollout, 0.0)
    assert differing_paths(weights, algorithm.policy.state_dict()) == []
    assert differing_paths(optimizer, _copied_moments(algorithm)) == []


def test_more_minibatches_than_steps_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="num_minibatches is 9, but a rollout has only num_steps × num_envs = 8"):
        PPOAlgorithm.check_config(PPOConfig(num_steps=4, num_minibatches=9), num_envs=2)
    PPOAlgorithm.check_config(PPOConfig(num_steps=4, num_minibatches=8), num_envs=2)


def test_it_learns_which_action_pays() -> None:
    algorithm = make_algorithm(PPOAlgorithm, learning_rate=3e-3, ent_coef=0.0, gamma=0.0)
    for seed in range(30):
        rollout = make_rollout(algorithm, num_steps=32, seed=seed)
        rollout.rewards = (rollout.actions == 2).float()
        algorithm.update(rollout, 0.0)
    with torch.no_grad():
        probability = algorithm.policy.distribution(torch.randn(64, 3)).log_prob(torch.full((64,), 2)).exp()
    assert probability.mean() > 0.9


def _copied_moments(algorithm: PPOAlgorithm) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in algorithm.optimizer.moments.items()}


def _record_losses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Lets the real loss run and keeps what it was called with."""
    calls: list[tuple[Any, ...]] = []

    def recording(minibatch: dict[str, Tensor], *args: Any) -> dict[str, Tensor]:
        calls.append(({name: value.detach().clone() for name, value in minibatch.items()}, *args))
        return ppo_loss(minibatch, *args)

    monkeypatch.setattr(ppo_module, "ppo_loss", recording)
    return calls
