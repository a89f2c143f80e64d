"""The goal environments: moves, rewards and ends by hand; rules for batches; exact restoring."""

import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rl_training.envs.builtin.goal_tasks import BitFlip, PointReach
from rl_training.envs.factory import EnvFactory
from rl_training.utils.spaces import same_tree

IDS = {"BitFlip-v0": {"bits": 6}, "PointReach-v0": {}}


def test_flipping_the_bits_that_differ_solves_it() -> None:
    env = BitFlip(bits=6)
    obs, info = env.reset(seed=4)
    assert not info["is_success"]
    wrong = np.flatnonzero(obs["observation"] != obs["desired_goal"])
    assert len(wrong) > 1
    goal = obs["desired_goal"].copy()
    for number, bit in enumerate(wrong, start=1):
        before = obs["observation"].copy()
        obs, reward, terminated, truncated, info = env.step(bit)
        before[bit] = 1 - before[bit]
        assert obs["observation"].tolist() == obs["achieved_goal"].tolist() == before.tolist()
        assert obs["desired_goal"].tolist() == goal.tolist()
        solved = number == len(wrong)
        assert (reward, terminated, info["is_success"]) == (0.0 if solved else -1.0, solved, solved)
        assert not truncated


def test_bit_flip_is_truncated_after_as_many_steps_as_bits() -> None:
    env = BitFlip(bits=4)
    obs, _ = env.reset(seed=0)
    right = np.flatnonzero(obs["observation"] == obs["desired_goal"])
    assert len(right)
    outcomes = [env.step(right[0])[1:4] for _ in range(4)]  # away from the goal and back, never there
    wanted = [(-1.0, False, False)] * 3 + [(-1.0, False, True)]
    assert outcomes == wanted


@pytest.mark.parametrize("bits", [1, 2])
def test_an_episode_never_begins_at_its_goal(bits: int) -> None:
    env = BitFlip(bits)
    env.reset(seed=0)
    starts = [env.reset()[0] for _ in range(50)]
    assert all((start["observation"] != start["desired_goal"]).any() for start in starts)
    assert len({tuple(start["desired_goal"]) for start in starts}) == 2**bits


def test_no_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BitFlip(bits=0)


def test_bit_flip_rules_for_batches() -> None:
    env = BitFlip(bits=2)
    achieved, desired = np.array([[0, 1], [1, 1], [0, 0]], np.int8), np.array([[0, 1], [0, 1], [1, 1]], np.int8)
    assert env.compute_reward(achieved, desired, {}).tolist() == [0, -1, -1]
    assert env.compute_terminated(achieved, desired, {}).tolist() == [True, False, False]
    assert env.compute_reward(achieved[1], desired[1], {}) == -1


def test_the_point_moves_by_a_tenth_and_stays_in_the_square() -> None:
    env = PointReach()
    env.reset(seed=0)
    env._state, env._goal = np.array([0.0, 0.95], np.float32), np.array([0.25, 0.9], np.float32)
    obs, reward, terminated, truncated, info = env.step(np.array([1.0, 1.0], np.float32))
    assert obs["observation"] == pytest.approx([0.1, 1.0]) and obs["achieved_goal"] == pytest.approx([0.1, 1.0])
    assert (reward, terminated, truncated, info["is_success"]) == (-1.0, False, False, False)  # 0.18 away
    obs, reward, terminated, truncated, info = env.step(np.array([0.8, -0.5], np.float32))
    assert obs["observation"] == pytest.approx([0.18, 0.95]), "0.086 from the goal"
    assert (reward, terminated, truncated, info["is_success"]) == (0.0, False, False, True)
    obs, *_ = env.step(np.array([5.0, 0.0], np.float32))
    assert obs["observation"] == pytest.approx([0.28, 0.95]), "no action moves it further"


def test_point_reach_rules_for_batches() -> None:
    env = PointReach()
    achieved, desired = np.zeros((3, 2), np.float32), np.array([[0.09, 0], [0.08, 0.08], [0, 0.5]], np.float32)
    assert env.compute_reward(achieved, desired, {}).tolist() == [0, -1, -1]
    assert env.compute_terminated(achieved, desired, {}).tolist() == [False] * 3


def test_point_reach_lasts_fifty_steps() -> None:
    env = gym.make("PointReach-v0")
    env.reset(seed=0)
    ends = [env.step(env.action_space.sample())[2:4] for _ in range(50)]
    assert ends == [(False, False)] * 49 + [(False, True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("env_id", IDS)
def test_gymnasiums_own_checker(env_id: str) -> None:
    check_env(gym.make(env_id, **IDS[env_id]).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("env_id", IDS)
def test_restored_in_the_middle_of_an_episode(env_id: str) -> None:
    make = EnvFactory(env_id, IDS[env_id])
    env, copy = make(), make()
    env.reset(seed=3)
    env.action_space.seed(0)
    for _ in range(3):
        _play(env, 7)
        observation, problem = copy.restore_state(env.export_state(), fallback_seed=9)  # type: ignore[attr-defined]
        assert problem is None and same_tree(observation, env._observation)  # type: ignore[attr-defined]
        copy.action_space.seed(1)
        env.action_space.seed(1)
        for (obs, *rest), (same_obs, *same_rest) in zip(_play(env, 30), _play(copy, 30)):
            assert same_tree(obs, same_obs) and rest == same_rest


def _play(env: gym.Env, steps: int) -> list[tuple[Any, ...]]:
    history = []
    for _ in range(steps):
        *step, _ = env.step(env.action_space.sample())
        history.append(tuple(step))
        if step[2] or step[3]:
            history.append((env.reset()[0],))
    return history


def test_registered_without_torch_and_without_the_environments_module() -> None:
    code = (
        "import sys, gymnasium, rl_training.envs as e; assert 'rl_training.envs.builtin.goal_tasks' not in sys.modules; "
        "gymnasium.make('BitFlip-v0', bits=3); gymnasium.make('PointReach-v0'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
