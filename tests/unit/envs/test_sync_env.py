"""Our SyncVectorEnv steps as Gymnasium's does, and refuses observations that do not fit their space."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.envs.factory import EnvFactory
from rl_training.envs.sync_env import SyncEnvs
from rl_training.utils.errors import EnvFailure

ENVS = [
    ("CartPole-v1", {"max_episode_steps": 20}),
    ("Pendulum-v1", {"max_episode_steps": 7}),
    ("Taxi-v4", {"max_episode_steps": 5}),  # Discrete observations, and infos in every step
    ("Blackjack-v1", {}),  # Tuple observations: Gymnasium's own way
]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (tuple, list)) or (isinstance(a, np.ndarray) and a.dtype == object):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and np.array_equal(x, y)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize(("env_id", "kwargs"), ENVS, ids=[name for name, _ in ENVS])
def test_every_step_is_gymnasiums(env_id: str, kwargs: dict[str, Any], mode: AutoresetMode) -> None:
    makers = [lambda: gym.make(env_id, **kwargs)] * 3
    ours, theirs = SyncEnvs(makers, autoreset_mode=mode), SyncVectorEnv(makers, autoreset_mode=mode)
    assert same(ours.reset(seed=[1, 2, 3]), theirs.reset(seed=[1, 2, 3]))
    ours.action_space.seed(0)
    ends = 0
    for _ in range(60):
        actions = ours.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        assert same(mine, other)
        ended = mine[2] | mine[3]
        ends += ended.sum()
        if mode is AutoresetMode.DISABLED and ended.any():
            options = {"reset_mask": ended}
            assert same(ours.reset(options=dict(options)), theirs.reset(options=dict(options)))
    assert ends >= 3
    assert same(ours.reset(seed=[4, 5, 6]), theirs.reset(seed=[4, 5, 6]))


def test_observations_are_copies_unless_told_otherwise() -> None:
    for copy in (True, False):
        envs = SyncEnvs([lambda: gym.make("CartPole-v1")], copy=copy, autoreset_mode=AutoresetMode.SAME_STEP)
        envs.reset(seed=0)
        first = envs.step(np.array([0]))[0]
        assert np.shares_memory(first, envs.step(np.array([0]))[0]) is not copy


class Grows(gym.Env[Any, Any]):
    """Returns an observation of another shape after a while."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3, dtype=np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, dtype=np.float32), 0.0, False, False, {}


def test_an_observation_of_another_shape_is_an_error() -> None:
    envs = SyncEnvs([EnvFactory("Grows", custom=Grows)], autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    with pytest.raises(EnvFailure, match=r"shape \(1,\), its space has \(3,\)"):
        envs.step(np.array([0]))
