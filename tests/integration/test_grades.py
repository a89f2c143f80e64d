"""Killed for real: runs in environments with a secret end as if they had never been stopped, or their grade says otherwise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from helpers import hiding_envs
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.proof.resume import verify_resume
from rl_training.experiment.run.build import complete_config

MODULE = """
import sys
sys.path.insert(0, {tests!r})
import gymnasium as gym
from helpers import hiding_envs

gym.register("{id}", entry_point=hiding_envs.{name}, max_episode_steps=40)
"""


@pytest.mark.parametrize(
    ("name", "env", "grade"),
    [
        ("GlobalDraws", {"backend": "async"}, "exact"),
        ("OldWorld", {"renew": True}, "exact"),
        ("Crowd", {}, "episode-boundary"),
    ],
)
def test_no_false_grade(name: str, env: dict[str, Any], grade: str, tmp_path: Path) -> None:
    env_id = f"Hiding{name}-v0"
    module = tmp_path / "registers.py"
    module.write_text(MODULE.format(tests=str(Path(__file__).parents[1]), id=env_id, name=name), encoding="utf-8")
    if env_id not in gym.registry:
        gym.register(env_id, entry_point=getattr(hiding_envs, name), max_episode_steps=40)
    config = TrainConfig(
        algo="ppo",
        env_id=env_id,
        num_envs=2,
        total_timesteps=1_500,
        hyperparams={"num_steps": 25, "num_minibatches": 1, "update_epochs": 1},
        env=env,
        evaluation={"every": 500, "episodes": 2},
        checkpoint={"every": 100},
        logging={"tensorboard": False},
    )
    report = verify_resume(
        complete_config(config)[0], tmp_path / "proof", kills=1, rng=random.Random(1), modules=(str(module),)
    )
    assert set(report.grades) == {grade}
    assert report.identical or grade != "exact", report.differences
