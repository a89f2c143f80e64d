"""Several environments in one worker: the same steps, infos and states as in this process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.config import TrainConfig
from rl_training.envs.async_env import AsyncEnvs
from rl_training.envs.contract import EnvStepper
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.utils.errors import ConfigError


class Talking(gym.Env[Any, Any]):
    """Says things of several kinds in its infos, now and then."""

    observation_space = gym.spaces.Dict({"a": gym.spaces.Box(-9, 9, (2,)), "b": gym.spaces.Discrete(50)})
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = int(self.np_random.integers(5))
        return self._look(), {"begun": True}

    def _look(self) -> Any:
        return {"a": self.np_random.uniform(-1, 1, 2).astype(np.float32), "b": self.steps}

    def step(self, action: Any) -> Any:
        self.steps += 1
        info: dict[str, Any] = {"twice": 2.0 * self.steps, "name": f"step {self.steps}", "deep": {"x": self.steps}}
        if self.steps % 3 == 0:
            info["third"] = np.array([1, self.steps])
        return self._look(), float(action), self.steps > 8, False, info


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple) or (isinstance(a, np.ndarray) and a.dtype == object):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b))
    return bool(np.array_equal(a, b))


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("workers", [1, 2, 5, 9])
def test_shares_of_any_size_are_one_vector(mode: AutoresetMode, workers: int) -> None:
    factories = EnvFactory("talking", custom=Talking).numbered(5)
    one = gym.vector.SyncVectorEnv(factories, autoreset_mode=mode)
    other = AsyncEnvs(factories, mode, workers=workers)
    assert len(other.processes) == min(workers, 5)
    seeds = [3, 1, 4, 1, 5]
    assert same(one.reset(seed=seeds), other.reset(seed=seeds))
    rng = np.random.default_rng(0)
    for _ in range(30):
        actions = rng.integers(3, size=5)
        assert same(one.step(actions), other.step(actions))
    one.close()
    other.close()


def test_a_vector_of_shares_is_saved_and_restored_exactly() -> None:
    config = TrainConfig(env_id="CartPole-v1", num_envs=5, env={"backend": "async", "workers": 2})

    def stepper() -> EnvStepper:
        envs: VectorEnv[Any, Any, Any] = make_vector_env(config)
        return EnvStepper(envs)

    first, second = stepper(), stepper()
    first.reset(0)
    rng = np.random.default_rng(0)
    for _ in range(40):
        first.step(rng.integers(2, size=5))
    second.load_state_dict(first.state_dict(), 9)
    assert second.resume_grade == "exact"
    for _ in range(40):
        actions = rng.integers(2, size=5)
        a, b = first.step(actions), second.step(actions)
        assert np.array_equal(a.next_obs, b.next_obs) and np.array_equal(a.terminated, b.terminated)
    first.close()
    second.close()


def test_workers_without_the_backend_are_refused() -> None:
    with pytest.raises(ConfigError, match="only the async backend has workers"):
        TrainConfig(env={"workers": 2})


def test_more_workers_than_environments_are_refused() -> None:
    with pytest.raises(ConfigError, match="env.workers.*more than num_envs, 4"):
        TrainConfig(num_envs=4, env={"backend": "async", "workers": 5})


def test_a_program_that_does_not_close_them_ends_all_the_same() -> None:
    code = (
        "from rl_training.config import TrainConfig; from rl_training.envs.factory import make_vector_env\n"
        "envs = make_vector_env(TrainConfig(num_envs=2, env={'backend': 'async'})); envs.reset(seed=[1, 2])"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=True).returncode == 0
