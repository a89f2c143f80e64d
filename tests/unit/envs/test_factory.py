"""Environments by id, callable or object; every mistake gets one helpful message."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from helpers.envs import CounterEnv
from rl_training.envs.async_env import AsyncEnvs
from rl_training.envs.env_config import EnvConfig
from rl_training.envs.factory import custom_factory, env_name, make_vector_env
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.errors import EnvCreationError


def make(env_id: str = "CartPole-v1", num_envs: int | None = None, custom: Any = None, **env: Any) -> Any:
    return make_vector_env(TrainConfig(env_id=env_id, num_envs=2, env=EnvConfig(**env)), num_envs, custom=custom)


def episode_length(envs: Any) -> int:
    envs.reset(seed=0)
    for length in range(1, 600):
        _, _, terminated, truncated, _ = envs.step(np.zeros(envs.num_envs, dtype=np.int64))
        if (terminated | truncated)[0]:
            return length
    raise AssertionError("no end")


def test_the_default_is_a_sync_vector_env_with_same_step_autoreset() -> None:
    envs = make(num_envs=4)
    assert isinstance(envs, SyncVectorEnv)
    assert envs.num_envs == 4
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert make().num_envs == 2, "the config's number"


@pytest.mark.parametrize(
    ("setting", "mode"),
    [
        ("same_step", AutoresetMode.SAME_STEP),
        ("next_step", AutoresetMode.NEXT_STEP),
        ("disabled", AutoresetMode.DISABLED),
    ],
)
def test_the_config_chooses_the_autoreset_mode(setting: str, mode: AutoresetMode) -> None:
    assert make(autoreset=setting).metadata["autoreset_mode"] is mode
    envs = make(autoreset=setting, backend="async")
    assert isinstance(envs, AsyncEnvs) and envs.metadata["autoreset_mode"] is mode
    envs.close()


def test_the_native_backend_uses_the_environments_own_vector_version() -> None:
    envs = make("CartPole-v0", backend="native", num_envs=3)
    assert type(envs.unwrapped).__name__ == "CartPoleVectorEnv"
    assert envs.reset(seed=0)[0].shape == (3, 4)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


@pytest.mark.parametrize("backend", ["sync", "async", "native"])
def test_max_episode_steps_replaces_the_environments_limit(backend: str) -> None:
    envs = make(backend=backend, max_episode_steps=4)
    assert episode_length(envs) == 4
    envs.close()


def test_max_episode_steps_for_a_callable() -> None:
    assert episode_length(make("counter", custom=CounterEnv, max_episode_steps=6)) == 6


def test_kwargs_reach_the_environment() -> None:
    envs = make("Pendulum-v1", kwargs={"g": 3.5})
    assert [env.unwrapped.g for env in envs.envs] == [3.5, 3.5]
    native = make(backend="native", kwargs={"sutton_barto_reward": True})
    native.reset(seed=0)
    assert native.step(np.zeros(2, dtype=np.int64))[1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("backend", ["sync", "async", "native"])
def test_wrong_kwargs_are_said_in_a_line_or_two(backend: str) -> None:
    with pytest.raises(EnvCreationError, match="'CartPole-v1' could not be made.*: .*gravitation") as caught:
        make("CartPole-v1", backend=backend, kwargs={"gravitation": 3})
    assert len(str(caught.value).splitlines()) == (2 if backend == "native" else 1)  # a second line names the way out


def test_an_error_of_the_environments_own_checks_is_one_line_too() -> None:
    with pytest.raises(EnvCreationError, match="LunarLander-v3.*AssertionError.*gravity") as caught:
        make("LunarLander-v3", kwargs={"gravity": 5.0})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "suggestion"),
    [
        ("Cartpole-v1", "CartPole-v1"),
        ("CartPole", "CartPole-v"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("HalfCheeta-v5", "HalfCheetah-v5"),
    ],
)
@pytest.mark.parametrize("backend", ["sync", "async", "native"])
def test_an_unknown_id_names_the_nearest(env_id: str, suggestion: str, backend: str) -> None:
    with pytest.raises(EnvCreationError, match=rf"unknown environment '{env_id}': did you mean .*{suggestion}"):
        make(env_id, backend=backend)


def test_an_id_like_no_other_says_where_to_look() -> None:
    with pytest.raises(EnvCreationError, match=r"pprint_registry.*\n.*--import MODULE"):
        make("qqqqqqqq")


@pytest.mark.parametrize(
    ("env_id", "module", "extra"),
    [("Hopper-v5", "mujoco", "mujoco"), ("LunarLander-v3", "Box2D", "box2d"), ("ALE/Pong-v5", "ale_py", "atari")],
)
@pytest.mark.parametrize("backend", ["sync", "native"])
def test_a_missing_extra_comes_with_the_pip_command(
    monkeypatch: pytest.MonkeyPatch, env_id: str, module: str, extra: str, backend: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == module else real(name, *a))
    played = {"atari": {"protocol": "none"}} if extra == "atari" and backend == "native" else {}
    with pytest.raises(EnvCreationError, match=rf'{env_id}.*pip install "axiomrl\[{extra}\]"'):
        make(env_id, backend=backend, **played)


def test_native_for_an_environment_without_one() -> None:
    with pytest.raises(EnvCreationError, match="'FrozenLake-v1' has no native vector version.*backend=sync"):
        make("FrozenLake-v1", backend="native")
    with pytest.raises(EnvCreationError, match="no native vector version"):
        make("counter", custom=CounterEnv, backend="native")


def test_a_callable_makes_each_environment() -> None:
    envs = make("counter", custom=custom_factory(CounterEnv), num_envs=3)
    assert len({id(env.unwrapped) for env in envs.envs}) == 3
    assert all(isinstance(env.unwrapped, CounterEnv) for env in envs.envs)


def test_an_env_object_is_used_itself_and_copied_for_the_rest() -> None:
    given = CounterEnv(((4, "truncated"),))
    envs = make("counter", custom=custom_factory(given), num_envs=3)
    assert envs.envs[0].unwrapped is given
    assert len({id(env.unwrapped) for env in envs.envs}) == 3
    assert [env.unwrapped.script for env in envs.envs] == [given.script] * 3
    assert episode_length(envs) == 4


def test_an_id_needs_no_factory_and_other_things_are_refused() -> None:
    assert custom_factory("CartPole-v1") is None
    with pytest.raises(EnvCreationError, match="not int"):
        custom_factory(3)  # type: ignore[arg-type]


def test_names_for_folders() -> None:
    def my_env() -> Any:
        return CounterEnv()

    assert env_name("CartPole-v1") == "CartPole-v1"
    assert env_name(gym.make("Pendulum-v1")) == "Pendulum-v1"
    assert env_name(CounterEnv()) == "CounterEnv"
    assert env_name(my_env) == "my_env"
    assert env_name(lambda: CounterEnv()) == "lambda"
    assert env_name(gym.make_vec("CartPole-v1", 2, vectorization_mode="sync")) == "CartPole-v1"
