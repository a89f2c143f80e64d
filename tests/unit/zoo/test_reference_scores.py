"""The fixed points of normalised scores are what they are said to be."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rl_training.zoo.leaderboard import REFERENCE_SCORES


def test_targets_are_gymnasiums_own() -> None:
    thresholds = {env_id: gym.spec(env_id).reward_threshold for env_id in REFERENCE_SCORES}
    assert thresholds.pop("Pendulum-v1") is None
    assert thresholds == {env_id: REFERENCE_SCORES[env_id].target for env_id in thresholds}


@pytest.mark.parametrize(("env_id", "episodes"), [("CartPole-v1", 300), ("Pendulum-v1", 60), ("LunarLander-v3", 100)])
def test_random_scores_can_be_measured_again(env_id: str, episodes: int) -> None:
    env = gym.make(env_id)
    env.action_space.seed(1)
    env.reset(seed=1)
    returns = []
    for _ in range(episodes):
        env.reset()
        total, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    error = np.std(returns) / episodes**0.5
    assert np.mean(returns) == pytest.approx(REFERENCE_SCORES[env_id].random, abs=4 * error)


def test_normalised_scores() -> None:
    scores = REFERENCE_SCORES["CartPole-v1"].normalise(np.array([22.6, 475.0, 500.0]))
    assert scores == pytest.approx([0.0, 1.0, 477.4 / 452.4])
