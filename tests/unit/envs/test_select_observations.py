"""`SelectObservations`: what is left to see, by name in a config, what it refuses, and an exact resume."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training import PPO, TrainConfig
from rl_training.config import EnvConfig
from rl_training.envs.factory import EnvFactory
from rl_training.envs.select_observations import SelectObservations
from rl_training.experiment.proof.resume import verify_resume
from rl_training.experiment.run.build import complete_config
from rl_training.utils.errors import EnvCreationError


def make(indices: list[Any], env_id: str = "CartPole-v1") -> Any:
    wrapper = {"name": "SelectObservations", "indices": indices}
    return EnvFactory.of(TrainConfig(env_id=env_id, num_envs=1, env=EnvConfig(wrappers=[wrapper])), None)()


@pytest.mark.parametrize(
    ("env_id", "indices"), [("CartPole-v1", [0, 2]), ("Pendulum-v1", [0, 1]), ("Pendulum-v1", [2, 0])]
)
def test_only_these_numbers_are_seen(env_id: str, indices: list[int]) -> None:
    shown, whole = make(indices, env_id), gym.make(env_id)
    space, all_of_it = shown.observation_space, whole.observation_space
    assert np.array_equal(space.low, all_of_it.low[indices]) and np.array_equal(space.high, all_of_it.high[indices])
    assert space.dtype == all_of_it.dtype
    obs, expected = shown.reset(seed=3)[0], whole.reset(seed=3)[0]
    for _ in range(5):
        assert np.array_equal(obs, expected[indices]) and space.contains(obs)
        action = whole.action_space.sample()
        (obs, reward, *_), (expected, same, *_) = shown.step(action), whole.step(action)
        assert reward == same


@pytest.mark.parametrize("indices", [[], [4], [-1], [0, 0], [1.5], [True]])
def test_other_indices_are_refused(indices: list[Any]) -> None:
    with pytest.raises(EnvCreationError, match="different whole numbers from 0 to 3"):
        make(indices)


def test_other_observations_are_refused() -> None:
    env = gym.make("FrozenLake-v1")
    with pytest.raises(ValueError, match="the observation space is Discrete"):
        SelectObservations(env, [0])


def test_evaluations_see_the_same(tmp_path: Path) -> None:
    env: Any = {"wrappers": [{"name": "SelectObservations", "indices": [0, 2]}]}
    agent = PPO("CartPole-v1", num_envs=2, num_steps=16, env=env)
    agent.learn(total_timesteps=32)
    assert agent.evaluate(num_episodes=2).episodes == 2
    agent.save(tmp_path / "saved")
    assert PPO.load(tmp_path / "saved").predict(np.zeros(2, np.float32))[0] in (0, 1)


def test_killed_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="recurrent_ppo",
        env_id="CartPole-v1",
        total_timesteps=3_000,
        num_envs=2,
        hyperparams={"num_steps": 32, "sequence_length": 8},
        env={"wrappers": [{"name": "SelectObservations", "indices": [0, 2]}]},  # type: ignore[arg-type]
        checkpoint={"every": 500},  # type: ignore[arg-type]
        evaluation={"every": 1_000, "episodes": 2},  # type: ignore[arg-type]
        logging={"tensorboard": False},  # type: ignore[arg-type]
    )
    report = verify_resume(complete_config(config)[0], tmp_path, kills=2, rng=random.Random())
    assert report.differences == () and set(report.grades) == {"exact"}
