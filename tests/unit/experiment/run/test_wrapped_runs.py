"""Runs in wrapped environments: config, training, evaluation, resume."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from helpers.registered import forgetting
from rl_training import DQN, PPO, register_wrapper
from rl_training.config import load_config
from rl_training.experiment.checkpoint.snapshot import RESUME_IGNORES
from rl_training.utils.errors import ConfigError
from rl_training.utils.trees import differing_paths

STACK = {"name": "FrameStackObservation", "stack_size": 2}
SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 32, "seed": 0}


class Tenfold(gym.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> Any:
        return 10 * reward


@pytest.fixture(autouse=True)
def _tenfold() -> Iterator[None]:
    with forgetting():
        register_wrapper("Tenfold", Tenfold)
        yield


def agent(*wrappers: Any, **settings: Any) -> Any:
    return PPO("CartPole-v1", env={"wrappers": list(wrappers)}, **{**SMALL, **settings})


def state_of(trained: Any) -> Any:
    return trained._session.snapshot()[0]


@pytest.mark.parametrize(
    ("wrappers", "grade"),
    [
        ([STACK], "exact"),
        (["TimeAwareObservation", STACK], "exact"),
        (["NormalizeObservation"], "episode-boundary"),
        ([STACK, "NormalizeReward"], "episode-boundary"),
    ],
)
def test_a_resume_is_as_exact_as_it_says(wrappers: list[Any], grade: str, tmp_path: Path) -> None:
    whole, half = agent(*wrappers), agent(*wrappers)
    whole.learn(total_timesteps=384)
    half.learn(total_timesteps=192)
    half.save(tmp_path / "half")
    loaded = PPO.load(tmp_path / "half")
    assert loaded.learn(total_timesteps=384).resume_grade == grade
    differences = differing_paths(state_of(loaded), state_of(whole), RESUME_IGNORES)
    assert (differences == []) is (grade == "exact"), differences


def test_the_policy_sees_what_the_wrappers_make(tmp_path: Path) -> None:
    trained = agent(STACK, output_dir=str(tmp_path), logging={"console": "off"}, evaluation={"every": 0})
    run_dir = trained.learn(total_timesteps=64).run_dir
    assert trained.algorithm.policy.actor_body[0].in_features == 8
    assert load_config(run_dir / "config.yaml").env.wrappers == [STACK]


def test_evaluations_take_the_same_wrappers_or_their_own() -> None:
    plain = agent().evaluate(3).mean
    assert agent("Tenfold").evaluate(3).mean == 10 * plain
    assert agent("Tenfold", evaluation={"wrappers": []}).evaluate(3).mean == plain
    assert agent(evaluation={"wrappers": ["Tenfold"]}).evaluate(3).mean == 10 * plain


def test_evaluations_during_training_do_too(tmp_path: Path) -> None:
    settings = {"output_dir": str(tmp_path), "logging": {"console": "off"}}
    every = {"every": 64, "episodes": 2}
    tenfold = agent("Tenfold", evaluation=every, **settings).learn(total_timesteps=64)
    own = agent("Tenfold", evaluation={**every, "wrappers": []}, **settings).learn(total_timesteps=64)
    assert tenfold.evaluation.mean == 10 * own.evaluation.mean


def test_an_evaluation_of_another_shape_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is Box of shape \(2, 4\).* with env.wrappers, but Box of shape \(4,\)"):
        agent(STACK, evaluation={"wrappers": []}, output_dir=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="one with other bounds with evaluation.wrappers"):
        rescaled = {"name": "RescaleAction", "min_action": -1.0, "max_action": 1.0}
        PPO("Pendulum-v1", env={"wrappers": [rescaled]}, evaluation={"wrappers": []})


def test_what_cannot_be_wrapped_is_refused() -> None:
    with pytest.raises(ConfigError, match="env.wrappers is .*vector environment object that was given is made already"):
        PPO(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync"), env={"wrappers": ["Tenfold"]})
    with pytest.raises(ConfigError, match="hindsight asks the environment itself .*: leave out env.wrappers"):
        DQN("BitFlip-v0", hindsight=0.8, env={"wrappers": ["Tenfold"]})
