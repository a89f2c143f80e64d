"""Held actions: rewards add up, ends come through, and a run with them is restored exactly."""

from __future__ import annotations

import gymnasium as gym
import pytest

from rl_training.config import TrainConfig
from rl_training.envs.action_repeat import ActionRepeat
from rl_training.envs.factory import EnvFactory
from rl_training.utils.errors import EnvCreationError


def test_rewards_add_up_and_the_last_observation_is_seen() -> None:
    plain, held = gym.make("Pendulum-v1"), ActionRepeat(gym.make("Pendulum-v1"), 3)
    plain.reset(seed=0)
    held.reset(seed=0)
    for _ in range(66):
        singles = [plain.step([0.5]) for _ in range(3)]
        obs, reward, terminated, truncated, _ = held.step([0.5])
        assert obs.tolist() == singles[-1][0].tolist() and reward == pytest.approx(sum(step[1] for step in singles))
        assert not (terminated or truncated)
    assert held.step([0.5])[3], "200 steps are over after the second of three"


def test_it_is_a_wrapper_of_configs_and_restored_exactly() -> None:
    config = TrainConfig(env_id="CartPole-v1", env={"wrappers": [{"name": "ActionRepeat", "repeats": 2}]})
    one, other = EnvFactory.of(config)(), EnvFactory.of(config)()
    one.reset(seed=3)
    for action in (0, 1, 1):
        one.step(action)
    assert other.restore_state(one.export_state(), 0)[1] is None
    assert one.step(0)[0].tolist() == other.step(0)[0].tolist()
    with pytest.raises(EnvCreationError, match="whole number from 1 up"):
        EnvFactory.of(TrainConfig(env={"wrappers": [{"name": "ActionRepeat", "repeats": 0}]}))()
