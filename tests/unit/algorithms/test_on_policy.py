"""What on-policy algorithms do around their gradient steps: values, bootstrapping, reward scaling, observation statistics."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from helpers.rollouts import make_algorithm, make_rollout
from rl_training.algorithms.a2c import A2CAlgorithm
from rl_training.algorithms.on_policy import as_metrics, explained_variance, masked_mean, normalized
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.utils.trees import differing_paths

NORMALIZED = {"normalize_observations": True, "normalize_rewards": True}


def test_truncated_episodes_bootstrap_from_their_final_observation() -> None:
    algorithm = make_algorithm(PPOAlgorithm, gamma=0.5, gae_lambda=0.0)
    rollout = make_rollout(
        algorithm,
        3,
        2,
        truncated=[[0, 0], [0, 1], [0, 0]],
        terminated=[[0, 0], [1, 0], [0, 0]],
        rewards=[[1.0, 1.0]] * 3,
    )
    final = rollout.final_obs()
    assert final is not None
    with torch.no_grad():
        values = algorithm.policy.value(rollout.flat_obs()).view(3, 2)
        final_value = algorithm.policy.value(final[0])
        last_values = algorithm.policy.value(rollout.last_obs)
    algorithm._preprocess_batch(rollout)
    # With λ = 0 the return of a step is r + γ V(next).
    expected = 1 + 0.5 * torch.stack([values[1], torch.cat([torch.zeros(1), final_value]), last_values])
    expected[1, 0] = 1.0
    torch.testing.assert_close(rollout.returns, expected)
    assert abs(final_value.item() - values[2, 1].item()) > 1e-3, "the next episode's value would have been another one"


def test_values_and_log_probs_are_those_of_the_acting_policy() -> None:
    algorithm = make_algorithm(A2CAlgorithm)
    rollout = make_rollout(algorithm)
    with torch.no_grad():
        distribution, values = algorithm.policy(rollout.flat_obs())
        logprobs = distribution.log_prob(rollout.actions.flatten())
    algorithm.update(rollout, 0.0)
    torch.testing.assert_close(rollout.values.flatten(), values, rtol=0, atol=1e-6)
    torch.testing.assert_close(rollout.logprobs.flatten(), logprobs, rtol=0, atol=1e-6)


def test_reward_scaling_by_hand() -> None:
    algorithm = make_algorithm(A2CAlgorithm, gamma=0.5, env={"normalize_rewards": True})
    rollout = make_rollout(
        algorithm, 3, 2, rewards=[[4.0, 0.0], [2.0, 8.0], [2.0, 0.0]], terminated=[[0, 0], [0, 1], [0, 0]]
    )
    algorithm.update(rollout, 0.0)
    # Running returns 4, 4, 4 and 0, 8, 0 (the episode ended): mean 20/6, mean square 112/6, variance 18.67 − 11.11.
    std = (112 / 6 - (20 / 6) ** 2) ** 0.5
    torch.testing.assert_close(rollout.rewards, torch.tensor([[4.0, 0.0], [2.0, 8.0], [2.0, 0.0]]) / std)
    # The next rollout goes on from 4 and 0, and the variance is that of all six and the two new ones: ½·4 + 1 = 3 and 1.
    rollout = make_rollout(algorithm, 1, 2, rewards=[[1.0, 1.0]])
    algorithm.update(rollout, 0.0)
    std = ((112 + 9 + 1) / 8 - (24 / 8) ** 2) ** 0.5
    torch.testing.assert_close(rollout.rewards, torch.full((1, 2), 1 / std))


def test_without_reward_scaling_rewards_stay_as_they_are() -> None:
    algorithm = make_algorithm(A2CAlgorithm)
    rollout = make_rollout(algorithm, rewards=[[100.0, -3.0]] * 8)
    algorithm.update(rollout, 0.0)
    assert rollout.rewards.tolist() == [[100.0, -3.0]] * 8


def test_invalid_steps_count_neither_for_rewards_nor_for_observations() -> None:
    algorithm = make_algorithm(A2CAlgorithm, gamma=0.0, env=NORMALIZED)
    rollout = make_rollout(algorithm, 2, 2, rewards=[[1.0, 3.0], [50.0, 5.0]], valid=[[1, 1], [0, 1]])
    rollout.obs[1, 0] = 1e6
    valid_obs = rollout.obs.flatten(0, 1)[[0, 1, 3]].double()
    algorithm.update(rollout, 0.0)
    scaler, normalizer = algorithm.policy.reward_scaler, algorithm.policy.encoder.normalizer
    assert scaler is not None and normalizer is not None
    assert scaler.moments.count.item() == 3 and scaler.moments.mean.item() == pytest.approx(3.0)
    moments: Any = normalizer.moments[0]
    assert moments.count.item() == 3
    torch.testing.assert_close(moments.mean, valid_obs.mean(0))
    torch.testing.assert_close(moments.var, valid_obs.var(0, correction=0))


class Watching(PPOAlgorithm):
    """Notes the observation statistics at every step."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seen: list[dict[str, torch.Tensor]] = []

    def _train_minibatch(self, *args: Any) -> Any:
        assert self.policy.encoder.normalizer is not None
        self.seen.append(copy.deepcopy(self.policy.encoder.normalizer.state_dict()))
        return super()._train_minibatch(*args)


def test_observation_statistics_stand_still_during_an_update_and_move_after_it() -> None:
    algorithm = make_algorithm(Watching, env={"normalize_observations": True, "execution": "eager"})
    normalizer = algorithm.policy.encoder.normalizer
    assert normalizer is not None
    for seed in range(2):
        before = copy.deepcopy(normalizer.state_dict())
        rollout = make_rollout(algorithm, seed=seed)
        algorithm.seen.clear()
        algorithm.update(rollout, 0.0)
        assert len(algorithm.seen) == 16
        for during in algorithm.seen:
            assert differing_paths(before, during) == []
        assert normalizer.state_dict()["moments.0.count"].item() == 16 * (seed + 1)
        if seed == 0:
            torch.testing.assert_close(normalizer.state_dict()["moments.0.mean"], rollout.flat_obs().double().mean(0))


def test_running_returns_are_part_of_the_state() -> None:
    whole = make_algorithm(A2CAlgorithm, env=NORMALIZED)
    whole.update(make_rollout(whole, seed=1), 0.0)
    resumed = make_algorithm(A2CAlgorithm, env=NORMALIZED)
    resumed.policy.load_state_dict(whole.policy.state_dict())
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    forgetful = make_algorithm(A2CAlgorithm, env=NORMALIZED)
    forgetful.policy.load_state_dict(whole.policy.state_dict())
    forgetful.load_state_dict({**copy.deepcopy(whole.state_dict()), "running_returns": None})
    for algorithm in (whole, resumed, forgetful):
        algorithm.update(make_rollout(algorithm, seed=2), 0.0)
    assert differing_paths(whole.policy.state_dict(), resumed.policy.state_dict()) == []
    assert "reward_scaler.moments.var" in differing_paths(whole.policy.state_dict(), forgetful.policy.state_dict())


def test_first_weights_do_not_depend_on_threads_or_on_the_global_generator() -> None:
    threads, made = torch.get_num_threads(), []
    try:
        for count, global_seed in ((1, 0), (2, 1)):
            torch.set_num_threads(count)
            torch.manual_seed(global_seed)
            expected = torch.rand(1)
            torch.manual_seed(global_seed)
            made.append(make_algorithm(PPOAlgorithm, seed=4).policy.state_dict())
            assert torch.get_num_threads() == count and torch.equal(torch.rand(1), expected), "both are put back"
    finally:
        torch.set_num_threads(threads)
    assert differing_paths(*made) == []


def test_an_update_needs_the_observations_after_the_last_step() -> None:
    algorithm = make_algorithm(A2CAlgorithm)
    rollout: RolloutBuffer = make_rollout(algorithm)
    rollout.last_obs = None
    with pytest.raises(AssertionError, match="last_obs"):
        algorithm.update(rollout, 0.0)


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert explained_variance(returns, returns).item() == 1.0
    assert explained_variance(returns + 5.0, returns).item() == pytest.approx(1.0), "an offset is not variance"
    assert explained_variance(torch.zeros(4), returns).item() == 0.0
    # Errors 1, 0, 0, −1: variance ½ of 1¼.
    assert explained_variance(torch.tensor([0.0, 2.0, 3.0, 5.0]), returns).item() == pytest.approx(1 - 0.5 / 1.25)
    assert explained_variance(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 3.0])).item() == 0.0, "not NaN"


def test_normalized_by_hand() -> None:
    assert normalized(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx([-1.0, 0.0, 1.0])
    assert normalized(torch.tensor([7.0])).tolist() == [7.0]
    assert normalized(torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]


def test_means_over_what_counts_by_hand() -> None:
    numbers, valid = torch.tensor([[1.0, 50.0], [3.0, 8.0]]), torch.tensor([[True, False], [True, True]])
    assert masked_mean(numbers, valid).item() == 4.0
    assert masked_mean(numbers, None).item() == 15.5
    assert masked_mean(torch.tensor([1.0, float("nan")]), torch.tensor([True, False])).item() == 1.0
    assert masked_mean(numbers, torch.zeros(2, 2, dtype=torch.bool)).item() == 0.0
    # 1, 3 and 8 have the mean 4 and deviations −3, −1, 4: their variance is (9 + 1 + 16) / 2.
    found = normalized(numbers, valid)
    assert found[valid].tolist() == pytest.approx([-3 / 13**0.5, -1 / 13**0.5, 4 / 13**0.5])
    assert found[valid].tolist() == pytest.approx(normalized(numbers[valid]).tolist())
    assert normalized(numbers, torch.tensor([[False, False], [True, False]]))[1, 0].item() == 3.0, "a single one stays"
    assert normalized(torch.tensor([2.0, 2.0, 9.0]), torch.tensor([True, True, False])).tolist()[:2] == [0.0, 0.0]


def test_settings_become_metrics() -> None:
    assert {name: value.item() for name, value in as_metrics(epochs=4, ratio=0.5).items()} == {
        "epochs": 4,
        "ratio": 0.5,
    }
