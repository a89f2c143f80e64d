"""Which versions matter to a run."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import gymnasium as gym
import tyro  # any package that has nothing to do with environments

from rl_training.envs.factory import make_vector_env
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.versions import changed_versions, run_versions


class UsesTyro(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    uses = tyro


def test_the_packages_of_the_environment_count() -> None:
    config = TrainConfig(env_id="UsesTyro", num_envs=1)
    found = run_versions("UsesTyro", make_vector_env(config, custom=UsesTyro))
    assert found["tyro"] == importlib.metadata.version("tyro")
    assert found["torch"] and found["axiomrl"] and "safetensors" not in found
    assert "tyro" not in run_versions("CartPole-v1", None)


def test_what_differs_is_named() -> None:
    now = {"numpy": "2.1", "torch": "2.0"}
    assert changed_versions({"numpy": "2.0", "torch": "2.0", "box2d": "1"}, now) == [
        "box2d is missing, saved with 1",
        "numpy 2.1, saved with 2.0",
    ]
    assert changed_versions(dict(now), now) == changed_versions(None, now) == []
