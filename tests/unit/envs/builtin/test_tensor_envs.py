"""Tensor environments are Gymnasium's, step for step, and end episodes as the contract wants."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from helpers.envs import CounterEnv
from helpers.no_waiting import NoWaiting
from helpers.tools import through_codec
from rl_training.envs.builtin.classic_dynamics import DYNAMICS
from rl_training.envs.builtin.tensor_envs import TensorVectorEnv, make_tensor_env
from rl_training.envs.contract import EnvStepper
from rl_training.envs.factory import make_vector_env
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.errors import ConfigError, EnvCreationError, UserError
from rl_training.utils.trees import differing_paths

IDS = list(DYNAMICS)
KWARGS = [
    ("CartPole-v1", {"sutton_barto_reward": True}),
    ("Pendulum-v1", {"g": 3.5}),
    ("MountainCar-v0", {"goal_velocity": 0.03}),
    ("MountainCarContinuous-v0", {"goal_velocity": 0.03}),
]


def put(envs: TensorVectorEnv, index: int, state: Any, steps: int | None = None) -> None:
    envs.states[index] = torch.tensor(np.asarray(state, dtype=np.float64)).to(envs.states.dtype)
    if steps is not None:
        envs.steps[index] = steps


def play_beside_gymnasium(
    env_id: str,
    *,
    dtype: torch.dtype,
    tolerance: float,
    every_step: bool = False,
    kwargs: dict[str, Any] | None = None,
    steps: int = 1_000,
    action_scale: float = 1.0,
) -> int:
    """Plays 3 Gymnasium environments and a tensor environment with the same random actions; the tensor states are set to
    Gymnasium's after each reset there (or before every step). Returns how many episodes ended."""
    single = [gym.make(env_id, **(kwargs or {})) for _ in range(3)]
    envs = make_tensor_env(env_id, 3, kwargs=kwargs, dtype=dtype)
    envs.reset(seed=0)
    envs.action_space.seed(5)
    for index, env in enumerate(single):
        first, _ = env.reset(seed=index)
        put(envs, index, env.unwrapped.state, 0)
        np.testing.assert_allclose(envs.observe()[index], first, rtol=0, atol=tolerance)
    ended = 0
    for step in range(steps):
        actions = envs.action_space.sample()
        if actions.dtype == np.float32:
            actions = actions * np.float32(action_scale)
        if every_step:
            for index, env in enumerate(single):
                put(envs, index, env.unwrapped.state)
        obs, rewards, terminated, truncated, infos = envs.step(actions)
        for index, env in enumerate(single):
            their_obs, reward, their_terminated, their_truncated, _ = env.step(actions[index])
            where = f"step {step}, environment {index}"
            assert (bool(terminated[index]), bool(truncated[index])) == (their_terminated, their_truncated), where
            assert rewards[index] == pytest.approx(float(reward), abs=tolerance), where
            over = their_terminated or their_truncated
            ours = infos["final_obs"][index] if over else obs[index]
            np.testing.assert_allclose(ours, their_obs, rtol=0, atol=tolerance, err_msg=where)
            if over:
                ended += 1
                assert int(envs.steps[index]) == 0
                assert envs.single_observation_space.contains(obs[index]) and not np.array_equal(obs[index], ours)
                env.reset()
                put(envs, index, env.unwrapped.state)
    return ended


@pytest.mark.parametrize("env_id", IDS)
def test_equal_to_gymnasium_in_double_precision(env_id: str) -> None:
    # Observations are float32, so that two units in the last place of an angular velocity of 28 are 4e-6.
    assert play_beside_gymnasium(env_id, dtype=torch.float64, tolerance=1e-5) >= 3


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0"])
def test_equal_to_gymnasium_in_single_precision(env_id: str) -> None:
    assert play_beside_gymnasium(env_id, dtype=torch.float32, tolerance=2e-5) >= 3


@pytest.mark.parametrize("env_id", IDS)
def test_each_single_step_in_single_precision(env_id: str) -> None:
    # From the same state each time: Acrobot is chaotic and Pendulum falls from upright, so that rounding grows within an episode.
    assert play_beside_gymnasium(env_id, dtype=torch.float32, tolerance=2e-5, every_step=True) >= 3


@pytest.mark.parametrize(("env_id", "kwargs"), KWARGS)
def test_equal_to_gymnasium_with_arguments(env_id: str, kwargs: dict[str, Any]) -> None:
    play_beside_gymnasium(env_id, dtype=torch.float64, tolerance=1e-5, kwargs=kwargs, steps=300)


@pytest.mark.parametrize("env_id", ["Pendulum-v1", "MountainCarContinuous-v0"])
def test_actions_beyond_the_bounds_mean_what_they_mean_in_gymnasium(env_id: str) -> None:
    play_beside_gymnasium(env_id, dtype=torch.float64, tolerance=1e-5, steps=300, action_scale=3.0)


@pytest.mark.parametrize("env_id", IDS)
def test_spaces_and_first_states_are_gymnasiums(env_id: str) -> None:
    env, envs = gym.make(env_id), make_tensor_env(env_id, 20_000)
    assert envs.single_observation_space == env.observation_space
    assert envs.single_action_space == env.action_space
    assert envs.limit == env.spec.max_episode_steps
    first, _ = envs.reset(seed=1)
    assert first.dtype == np.float32 and first in envs.observation_space
    theirs = np.stack([env.reset(seed=seed)[0] for seed in range(2_000)])
    assert first.min(axis=0) == pytest.approx(theirs.min(axis=0), abs=0.02)
    assert first.max(axis=0) == pytest.approx(theirs.max(axis=0), abs=0.02)
    assert first.mean(axis=0) == pytest.approx(theirs.mean(axis=0), abs=0.05)
    assert first.std(axis=0) == pytest.approx(theirs.std(axis=0), rel=0.05, abs=1e-6)


def test_rare_ends_of_the_mountain_cars() -> None:
    for env_id, reward in (("MountainCar-v0", -1.0), ("MountainCarContinuous-v0", 100.0)):
        envs = make_tensor_env(env_id, 3)
        put(envs, 0, [0.49, 0.05])  # arrives
        put(envs, 1, [-1.19, -0.06])  # hits the left wall and stops there
        put(envs, 2, [-0.5, 0.0])
        idle = np.array([1, 1, 1]) if reward < 0 else np.zeros((3, 1), np.float32)
        obs, rewards, terminated, _, infos = envs.step(idle)
        assert terminated.tolist() == [True, False, False]
        assert rewards[0] == reward and obs[1].tolist() == [np.float32(-1.2), 0.0]
        assert infos["final_obs"][0, 0] > envs.dynamics.GOAL and -0.6 <= obs[0, 0] <= -0.4
        faster = make_tensor_env(env_id, 3, kwargs={"goal_velocity": 0.06})
        put(faster, 0, [0.49, 0.05])
        assert not faster.step(idle)[2].any(), "too slow"


def test_angles_of_the_acrobot_wrap() -> None:
    envs = make_tensor_env("Acrobot-v1", 2, dtype=torch.float64)
    env = gym.make("Acrobot-v1")
    env.reset(seed=0)
    for state in ([3.1, -3.1, 12.0, -27.0], [-3.1, 3.1, -12.0, 28.0]):
        env.unwrapped.state = np.array(state)
        put(envs, 0, state)
        envs.step_tensors(torch.tensor([2, 2]))
        env.step(2)
        assert envs.states[0].tolist() == pytest.approx(env.unwrapped.state.tolist(), abs=1e-9)
        assert envs.states[0, :2].abs().max() <= math.pi


# CartPole, about to fall at its next step, or standing still.
FALLING, STANDING = [0.0, 0.0, 0.209, 3.0], [0.0, 0.0, 0.0, 0.0]


def test_termination_truncation_and_both_by_hand() -> None:
    envs = make_tensor_env("CartPole-v1", 4, max_episode_steps=3)
    envs.reset(seed=0)
    put(envs, 0, STANDING, 0)
    put(envs, 1, FALLING, 0)
    put(envs, 2, STANDING, 2)
    put(envs, 3, FALLING, 2)
    stepper = EnvStepper(envs)
    stepper.obs = envs.observe().numpy()
    record = stepper.step(np.ones(4, dtype=np.int64))
    assert record.terminated.tolist() == [False, True, False, True]
    assert record.truncated.tolist() == [False, False, True, False], "both at once is a termination"
    assert record.valid.all() and record.rewards.tolist() == [1.0] * 4
    # From rest, force 10: push = 10 / 1.1, spin' = -push / (0.5 · (4/3 − 0.1 / 1.1)), speed' = push − 0.05 · spin' / 1.1.
    push = 10 / 1.1
    spin = -push / (0.5 * (4 / 3 - 0.1 / 1.1))
    after = [0.0, 0.02 * (push - 0.05 * spin / 1.1), 0.0, 0.02 * spin]
    for index in (0, 2):
        assert record.next_obs[index].tolist() == pytest.approx(after, abs=1e-6)
    for index in (1, 3):
        assert record.next_obs[index, 2] == pytest.approx(0.209 + 0.02 * 3.0, abs=1e-6)
    assert stepper.obs[0].tolist() == pytest.approx(after, abs=1e-6)
    assert np.abs(stepper.obs[1:]).max() <= 0.05, "first observations of new episodes"
    assert envs.steps.tolist() == [1, 0, 0, 0]


def test_the_time_limit_counts_from_each_episodes_start() -> None:
    envs = make_tensor_env("Pendulum-v1", 2, max_episode_steps=4)
    envs.reset(seed=0)
    envs.steps[1] = 2
    ends = [envs.step(np.zeros((2, 1), np.float32))[3].tolist() for _ in range(8)]
    assert [step for step, (first, _) in enumerate(ends, 1) if first] == [4, 8]
    assert [step for step, (_, second) in enumerate(ends, 1) if second] == [2, 6]


@pytest.mark.parametrize("env_id", IDS)
def test_state_goes_through_a_checkpoint_exactly(env_id: str) -> None:
    cfg = TrainConfig(env_id=env_id, num_envs=5, env={"backend": "tensor", "max_episode_steps": 30})
    first, second = (EnvStepper(make_vector_env(cfg)) for _ in range(2))
    first.reset(seed=3)
    space = first.envs.action_space
    space.seed(0)
    for _ in range(40):
        first.step(space.sample())
    saved = through_codec(first.state_dict())
    second.load_state_dict(saved, fallback_seed=1)
    assert second.resume_grade == "exact"
    ended = 0
    for _ in range(60):
        actions = space.sample()
        expected, found = first.step(actions), second.step(actions)
        for name in ("obs", "next_obs", "rewards", "terminated", "truncated"):
            assert getattr(found, name).tobytes() == getattr(expected, name).tobytes(), name
        ended += int((expected.terminated | expected.truncated).sum())
    assert ended >= 5
    assert differing_paths(second.state_dict(), first.state_dict()) == []


def test_another_number_of_environments_is_not_exact() -> None:
    first, second = (EnvStepper(make_tensor_env("CartPole-v1", count)) for count in (2, 3))
    first.reset(seed=0)
    second.reset(seed=0)
    second.load_state_dict(through_codec(first.state_dict()), fallback_seed=4)
    assert second.resume_grade == "episode-boundary" and second.obs.shape == (3, 4)


def test_the_seed_decides() -> None:
    envs = make_tensor_env("CartPole-v1", 2)
    (one, _), (same, _), (other, _) = envs.reset(seed=1), envs.reset(seed=1), envs.reset(seed=2)
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert not np.array_equal(envs.reset()[0], envs.reset()[0]), "without a seed the stream goes on"


def test_results_do_not_change_afterwards() -> None:
    envs = make_tensor_env("CartPole-v1", 2)
    first, _ = envs.reset(seed=1)
    tensors = envs.step_tensors(torch.zeros(2, dtype=torch.int64))
    kept = [first.copy(), tensors.obs.clone(), tensors.final_obs.clone()]
    envs.step(np.ones(2, dtype=np.int64))
    assert np.array_equal(kept[0], first)
    assert torch.equal(kept[1], tensors.obs) and torch.equal(kept[2], tensors.final_obs)


@pytest.mark.parametrize("env_id", IDS)
def test_a_step_never_waits_for_the_device(env_id: str) -> None:
    envs = make_tensor_env(env_id, 3)
    actions = torch.as_tensor(envs.action_space.sample())
    memory = [tensor.data_ptr() for tensor in (envs.states, envs.steps)]
    with NoWaiting():
        envs.step_tensors(actions)
    assert [tensor.data_ptr() for tensor in (envs.states, envs.steps)] == memory, "a recorded step writes where it did"


def test_the_check_above_notices_a_question_to_the_device() -> None:
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        bool(torch.ones(2).sum() > 1)


def make(env_id: str, custom: Any = None, **env: Any) -> Any:
    cfg = TrainConfig(env_id=env_id, num_envs=2, env={"backend": "tensor", **env})
    return make_vector_env(cfg, custom=custom)


def test_the_factory_makes_them() -> None:
    envs = make("Pendulum-v1", kwargs={"g": 2}, max_episode_steps=7)
    assert isinstance(envs, TensorVectorEnv) and envs.num_envs == 2
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert (envs.dynamics.g, envs.limit, envs.device) == (2.0, 7, torch.device("cpu"))


@pytest.mark.parametrize("env_id", ["Hopper-v5", "Cartpole-v1", "CartPole-v0"])
def test_other_environments_are_refused_with_the_list(env_id: str) -> None:
    with pytest.raises(
        EnvCreationError, match=rf"'{env_id}' has no tensor version.*CartPole-v1, Pendulum-v1.*\n.*sync"
    ):
        make(env_id)


def test_python_environments_are_refused() -> None:
    with pytest.raises(EnvCreationError, match="no tensor version: use env.backend=sync"):
        make("counter", custom=CounterEnv)


@pytest.mark.parametrize(
    ("env_id", "kwargs", "problem"),
    [
        ("Pendulum-v1", {"gravity": 3.0}, "gravity"),
        ("CartPole-v1", {"render_mode": "human"}, "render_mode"),
        ("CartPole-v1", {"sutton_barto_reward": 3}, "sutton_barto_reward"),
        ("Pendulum-v1", {"g": "heavy"}, "env.kwargs.g"),
        ("Acrobot-v1", {"max_episode_steps": 3}, "max_episode_steps"),
    ],
)
def test_other_arguments_are_refused_with_a_way_out(env_id: str, kwargs: dict[str, Any], problem: str) -> None:
    with pytest.raises(EnvCreationError, match=rf"'{env_id}'.*backend=tensor.*{problem}.*\n.*env.backend=sync"):
        make(env_id, kwargs=kwargs)


def test_wrong_calls_are_named() -> None:
    envs = make("CartPole-v1")
    with pytest.raises(UserError, match="actions must be in"):
        envs.step(np.array([0, 2]))
    with pytest.raises(UserError, match="reset options"):
        envs.reset(options={"low": -1.0})
    with pytest.raises(ConfigError, match="autoreset.*tensor environments reset in their own way"):
        make("CartPole-v1", autoreset="next_step")


def test_other_backends_do_not_import_torch() -> None:
    code = (
        "import sys; from rl_training.config import TrainConfig; from rl_training.envs import make_vector_env;"
        "make_vector_env(TrainConfig(), 2); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
