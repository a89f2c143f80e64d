"""Array environments live through the same episodes as Gymnasium's, one by one, with the same seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from helpers.tools import through_codec
from rl_training.envs.builtin.array_envs import ArrayVectorEnv, make_array_env
from rl_training.envs.builtin.classic_dynamics import DYNAMICS
from rl_training.envs.contract import EnvStepper
from rl_training.envs.factory import make_vector_env
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.errors import EnvCreationError, UserError

# Gymnasium rounds the states of these to float32 now and then, and Acrobot is chaotic: alike for an episode's first steps only.
ROUNDED = {"Acrobot-v1": 60, "MountainCarContinuous-v0": 400}


def stepper(env_id: str, backend: str, num_envs: int = 4, **env: Any) -> EnvStepper:
    config = TrainConfig(algo="ppo", env_id=env_id, num_envs=num_envs, env={"backend": backend, **env})
    return EnvStepper(make_vector_env(config))


@pytest.mark.parametrize("env_id", DYNAMICS)
def test_the_same_records_as_one_after_the_other(env_id: str) -> None:
    arrays, singles = stepper(env_id, "native"), stepper(env_id, "sync")
    assert isinstance(arrays.envs, ArrayVectorEnv)
    np.testing.assert_allclose(arrays.reset(seed=3), singles.reset(seed=3), rtol=0, atol=1e-6)
    space = arrays.envs.action_space
    space.seed(0)
    episodes = 0
    for _ in range(ROUNDED.get(env_id, 1_000)):
        actions = space.sample()
        ours, theirs = arrays.step(actions), singles.step(actions)
        np.testing.assert_array_equal(ours.terminated, theirs.terminated)
        np.testing.assert_array_equal(ours.truncated, theirs.truncated)
        np.testing.assert_allclose(ours.rewards, theirs.rewards, rtol=0, atol=1e-5)
        np.testing.assert_allclose(ours.next_obs, theirs.next_obs, rtol=0, atol=1e-4)
        np.testing.assert_allclose(arrays.obs, singles.obs, rtol=0, atol=1e-4)
        episodes += int((ours.terminated | ours.truncated).sum())
    assert episodes > 0 or env_id in ROUNDED


def test_cartpole_is_equal_to_the_last_bit_on_this_machine() -> None:
    arrays, singles = stepper("CartPole-v1", "native"), stepper("CartPole-v1", "sync")
    np.testing.assert_array_equal(arrays.reset(seed=1), singles.reset(seed=1))
    rng = np.random.default_rng(0)
    for _ in range(2_000):
        actions = rng.integers(0, 2, 4)
        ours, theirs = arrays.step(actions), singles.step(actions)
        np.testing.assert_array_equal(ours.next_obs, theirs.next_obs)
        np.testing.assert_array_equal(arrays.obs, singles.obs)


def test_an_episode_ends_and_the_next_begins_in_the_same_step() -> None:
    envs = make_array_env("MountainCar-v0", 2, max_episode_steps=3)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.reset(seed=0)
    for _ in range(2):
        obs, rewards, terminated, truncated, infos = envs.step(np.array([1, 1]))
        assert not truncated.any() and infos == {}
    before = envs.states.copy()
    obs, rewards, terminated, truncated, infos = envs.step(np.array([1, 1]))
    assert truncated.all() and not terminated.any() and rewards.tolist() == [-1.0, -1.0]
    velocity = before[:, 1] - 0.0025 * np.cos(3 * before[:, 0])
    np.testing.assert_allclose(infos["final_obs"][:, 0], before[:, 0] + velocity, atol=1e-6)
    assert (np.abs(obs[:, 0] + 0.5) <= 0.1).all() and (obs[:, 1] == 0).all() and envs.steps.tolist() == [0, 0]


def test_the_state_comes_back_exactly_through_a_checkpoint() -> None:
    first = stepper("CartPole-v1", "native", max_episode_steps=13)
    second = stepper("CartPole-v1", "native", max_episode_steps=13)
    first.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        first.step(rng.integers(0, 2, 4))
    second.reset(seed=9)
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=7)
    assert second.resume_grade == "exact"
    for _ in range(30):
        actions = rng.integers(0, 2, 4)
        np.testing.assert_array_equal(first.step(actions).next_obs, second.step(actions).next_obs)
        np.testing.assert_array_equal(first.obs, second.obs)


def test_states_of_another_number_of_environments_are_refused() -> None:
    three, four = make_array_env("CartPole-v1", 3), make_array_env("CartPole-v1", 4)
    with pytest.raises(ValueError, match=r"\(3, 4\), not \(4, 4\)"):
        four.set_state(three.get_state())


def test_bad_input_is_named() -> None:
    envs = make_array_env("CartPole-v1", 2)
    with pytest.raises(UserError, match="actions must be in"):
        envs.step(np.array([0, 2]))
    with pytest.raises(UserError, match="no reset options"):
        envs.reset(options={"low": 0.0})
    with pytest.raises(EnvCreationError, match=r"env\.backend=native.*render_mode"):
        make_array_env("CartPole-v1", 2, kwargs={"render_mode": "human"})
