"""The one-file DQN and the package compute the same: transitions of a seeded warm-up, targets, loss and weights after updates."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.config.loader import resolve
from rl_training.experiment.run.build import complete_config
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.schedules import Schedule

PATH = Path(__file__).parents[2] / "examples" / "dqn_cartpole_reference.py"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dqn_cartpole_reference", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _both_replays(reference: ModuleType, steps: int) -> tuple[Any, ReplayBuffer]:
    """The same random episodes, some cut by a time limit, in the reference's replay and in the package's."""
    rng = np.random.default_rng(0)
    env = gym.make("CartPole-v1", max_episode_steps=12)
    plain = reference.Replay(1000, 4, rng)
    ours = ReplayBuffer(1000, 1, (4,), (), action_dtype=torch.int64, gamma=reference.Config().gamma)
    obs, _ = env.reset(seed=3)
    for _ in range(steps):
        action = int(rng.integers(2))
        next_obs, reward, terminated, truncated, _ = env.step(action)
        plain.add(obs, action, reward, next_obs, terminated)
        ours.add(
            obs=torch.as_tensor(obs)[None],
            actions=torch.tensor([action]),
            rewards=torch.tensor([reward]),
            next_obs=torch.as_tensor(next_obs)[None],
            terminated=torch.tensor([terminated]),
            truncated=torch.tensor([truncated and not terminated]),
            valid=torch.tensor([True]),
        )
        obs = env.reset()[0] if terminated or truncated else next_obs
    return plain, ours


def test_transitions_targets_and_weights_are_the_same(reference: ModuleType) -> None:
    plain, ours = _both_replays(reference, 300)
    assert plain.terminated.any() and len(ours) == 300
    config = reference.Config()
    algorithm = DQNAlgorithm(
        gym.spaces.Box(-10.0, 10.0, (4,)),
        gym.spaces.Discrete(2),
        DQNConfig(
            learning_rate=config.learning_rate,
            max_grad_norm=config.max_grad_norm,
            target_update_interval=0,
            tau=config.tau,
        ),
        PolicyConfig(hidden_sizes=(256, 256), activation="relu"),
    )
    network, target = (reference.make_network(4, 2, 256) for _ in range(2))
    for copy in (network, target):
        for parameter, source in zip(copy.parameters(), algorithm.policy.parameters(), strict=True):
            parameter.data.copy_(source.data)
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    for _ in range(5):
        batch = ours.sample(64)
        rows = batch.indices  # one environment: the index is the number of the step
        same = reference.Batch(
            *(
                torch.from_numpy(column[rows])
                for column in (plain.obs, plain.actions, plain.rewards, plain.next_obs, plain.terminated)
            )
        )
        assert torch.equal(same.obs, batch.obs) and torch.equal(same.actions, batch.actions)
        assert torch.equal(same.next_obs, batch.next_obs) and torch.equal(same.rewards, batch.rewards)
        assert torch.allclose(config.gamma * (~same.terminated).float(), batch.discounts)
        loss = reference.update(network, target, optimizer, same, config)
        metrics = algorithm.update(batch, 0.0)
        torch.testing.assert_close(metrics["loss"], loss, atol=1e-6, rtol=0)
        for ours_weight, weight in zip(algorithm.policy.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours_weight, weight, atol=1e-6, rtol=0)
    for ours_weight, weight in zip(algorithm.target.parameters(), target.parameters(), strict=True):
        torch.testing.assert_close(ours_weight, weight, atol=1e-6, rtol=0)


def test_defaults_are_those_of_the_preset(reference: ModuleType) -> None:
    preset, hyperparams = complete_config(resolve("dqn/cartpole").config)
    config = reference.Config()
    for name in (
        "batch_size",
        "buffer_size",
        "learning_starts",
        "train_frequency",
        "gradient_steps",
        "gamma",
        "reward_scale",
        "tau",
    ):
        assert getattr(config, name) == getattr(hyperparams, name), name
    assert hyperparams.target_update_interval == 0, "the reference follows after every update"
    assert hyperparams.epsilon == Schedule(config.epsilon_start, config.epsilon_end, config.epsilon_fraction)
    assert hyperparams.learning_rate == Schedule(config.learning_rate, 0.0)
    assert (preset.env_id, preset.total_timesteps) == (config.env_id, config.total_timesteps)
    assert preset.policy.hidden_sizes == (config.hidden_size, config.hidden_size)


def test_it_is_short_and_needs_only_three_packages() -> None:
    source = PATH.read_text()
    assert len(source.splitlines()) < 250
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "gymnasium"}


def test_it_runs() -> None:
    command = [sys.executable, str(PATH), "--total-timesteps", "1600"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "evaluation return" in result.stdout
