"""Short runs that must learn, with negative controls that must not. The full measurements are in results/."""

import pytest

from rl_training import A2C, DQN, PPO


@pytest.mark.parametrize("backend", ["sync", "native"])
def test_ppo_learns_cartpole(backend, tmp_path):
    agent = PPO.from_preset("ppo/cartpole", env={"backend": backend}, **_quiet(tmp_path))
    before = agent.evaluate(10).mean
    agent.learn(total_timesteps=60_000)
    assert before < 100
    assert agent.evaluate(20).mean >= 400


def test_a2c_learns_cartpole():
    agent = A2C("CartPole-v1", seed=0)
    agent.learn(total_timesteps=100_000)
    assert agent.evaluate(20).mean >= 400


def test_ppo_learns_a_continuous_task(tmp_path):
    agent = PPO.from_preset("ppo/pendulum", **_quiet(tmp_path))
    agent.learn(total_timesteps=100_000)
    assert agent.evaluate(20).mean >= -500  # a random policy gets about -1200


def test_dqn_learns_cartpole(tmp_path):
    agent = DQN.from_preset("dqn/cartpole", seed=1, hyperparams={"learning_rate": 1e-3}, **_quiet(tmp_path))
    result = agent.learn(total_timesteps=16_000)
    assert result.metrics["episode_return"] >= 60  # of the last 100 training episodes; random actions get about 22


def test_without_a_learning_rate_nothing_is_learned():
    agent = PPO("CartPole-v1", seed=0, learning_rate=0.0)
    agent.learn(total_timesteps=10_000)
    assert agent.evaluate(20).mean < 150


def _quiet(folder):
    return {
        "output_dir": folder,
        "evaluation": {"every": 0},
        "logging": {"console": "off", "tensorboard": False},
        "checkpoint": {"every": 0},
    }
