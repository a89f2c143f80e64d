"""One environment: what is recorded, what is replayed, what is compared."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs import CounterEnv, OptionsEnv, RandomWalkEnv, SelfExportingEnv
from helpers.tools import through_codec
from rl_training.envs.replay import ReplayableEnv


def played(env: ReplayableEnv, steps: int, **reset: Any) -> ReplayableEnv:
    env.reset(**reset)
    for step in range(steps):
        env.step(np.int64(step % 3))
    return env


def test_before_the_first_reset_there_is_nothing_to_save() -> None:
    assert ReplayableEnv(CounterEnv()).export_state() is None
    fresh = ReplayableEnv(RandomWalkEnv())
    _, problem = fresh.restore_state(None, fallback_seed=3)
    assert problem
    expected, _ = RandomWalkEnv().reset(seed=3)
    assert fresh.export_state()["observation"].tobytes() == expected.tobytes()


def test_a_seeded_episode_is_replayed_from_its_seed() -> None:
    state = through_codec(played(ReplayableEnv(RandomWalkEnv()), 4, seed=5).export_state())
    assert (state["start"]["seed"], state["start"]["options"]) == (5, None)
    assert state["actions"].tolist() == [0, 1, 2, 0]
    assert state["return"] == 1 + 2 + 3 + 4
    other = ReplayableEnv(RandomWalkEnv())
    observation, problem = other.restore_state(state, fallback_seed=0)
    assert problem is None and observation.tobytes() == state["observation"].tobytes()


def test_a_later_episode_is_replayed_from_the_generator() -> None:
    env = ReplayableEnv(RandomWalkEnv())
    env.reset(seed=5)
    while not any(env.step(np.int64(0))[2:4]):
        pass
    env.reset()
    env.step(np.int64(1))
    state = through_codec(env.export_state())
    assert state["start"]["seed"] is None and len(state["actions"]) == 1
    other = ReplayableEnv(RandomWalkEnv())
    observation, problem = other.restore_state(state, fallback_seed=0)
    assert problem is None and observation.tobytes() == state["observation"].tobytes()


def test_reset_options_are_part_of_the_state() -> None:
    state = through_codec(played(ReplayableEnv(OptionsEnv()), 2, seed=1, options={"start": 40}).export_state())
    assert state["observation"][0] == 42
    _, problem = ReplayableEnv(OptionsEnv()).restore_state(state, fallback_seed=0)
    assert problem is None
    state["start"]["options"] = None
    _, problem = ReplayableEnv(OptionsEnv()).restore_state(state, fallback_seed=0)
    assert problem


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("return", 11.0),
        ("done", True),
        ("observation", np.array([0.0, 4.0], dtype=np.float32)),
        ("generator", np.random.default_rng(0).bit_generator.state),
    ],
)
def test_any_difference_after_the_replay_is_not_exact(key: str, value: Any) -> None:
    state = through_codec(played(ReplayableEnv(RandomWalkEnv()), 4, seed=5).export_state())
    other = ReplayableEnv(RandomWalkEnv())
    observation, problem = other.restore_state({**state, key: value}, fallback_seed=9)
    assert problem
    expected, _ = RandomWalkEnv().reset(seed=9)
    assert observation.tobytes() == expected.tobytes(), "a fresh episode with the fallback seed"


def test_an_episode_that_ends_too_early_in_the_replay_is_not_exact() -> None:
    state = through_codec(played(ReplayableEnv(CounterEnv(((9, "terminated"),))), 5, seed=5).export_state())
    _, problem = ReplayableEnv(CounterEnv(((3, "terminated"),))).restore_state(state, fallback_seed=0)
    assert problem


def test_restored_between_the_end_and_the_reset_the_next_step_is_the_reset() -> None:
    env = played(ReplayableEnv(CounterEnv(((3, "truncated"),))), 3, seed=0)
    other = ReplayableEnv(CounterEnv(((3, "truncated"),)))
    _, problem = other.restore_state(through_codec(env.export_state()), fallback_seed=0)
    assert problem is None
    observation, reward, terminated, truncated, _ = other.step(np.int64(0))
    assert (observation.tolist(), reward, terminated, truncated) == ([0.0, 1.0], 0.0, False, False)
    observation, reward, *_ = other.step(np.int64(0))
    assert (observation.tolist(), reward) == ([1.0, 1.0], 1.0)


def test_box_and_multi_discrete_actions_are_replayed_in_their_own_form() -> None:
    class Recorder(CounterEnv):
        def __init__(self, action_space: spaces.Space[Any]):
            super().__init__()
            self.action_space, self.seen = action_space, list[Any]()

        def step(self, action: Any) -> Any:
            self.seen.append(action)
            return super().step(action)

    for space in (spaces.Discrete(4), spaces.Box(-1, 1, (2, 2)), spaces.MultiDiscrete([3, 4]), spaces.MultiBinary(3)):
        env = ReplayableEnv(Recorder(space))
        env.reset(seed=0)
        for _ in range(3):
            env.step(space.sample())
        other = ReplayableEnv(Recorder(space))
        assert other.restore_state(through_codec(env.export_state()), fallback_seed=0)[1] is None
        for given, replayed in zip(env.unwrapped.seen, other.unwrapped.seen):
            assert type(given) is type(replayed)
            assert np.asarray(given).dtype == np.asarray(replayed).dtype
            assert np.array_equal(given, replayed)


def test_the_recorded_actions_are_copies() -> None:
    env = ReplayableEnv(gym.make("Pendulum-v1"))
    env.reset(seed=0)
    action = np.array([0.5], dtype=np.float32)
    env.step(action)
    action[0] = -1.0
    assert env.export_state()["actions"].tolist() == [[0.5]]


def test_an_own_export_is_used_only_when_no_wrapper_hides_state() -> None:
    class Counting(gym.Wrapper[Any, Any, Any, Any]):
        pass

    assert "own" in played(ReplayableEnv(SelfExportingEnv()), 2, seed=0).export_state()
    wrapped = played(ReplayableEnv(Counting(SelfExportingEnv())), 2, seed=0).export_state()
    assert "own" not in wrapped and wrapped["actions"].tolist() == [0, 1]


def test_an_own_state_that_does_not_come_back_is_not_exact() -> None:
    class Forgetful(SelfExportingEnv):
        def set_state(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    state = through_codec(played(ReplayableEnv(SelfExportingEnv()), 3, seed=0).export_state())
    assert ReplayableEnv(SelfExportingEnv()).restore_state(state, fallback_seed=0)[1] is None
    assert ReplayableEnv(Forgetful()).restore_state(state, fallback_seed=0)[1]
    assert ReplayableEnv(RandomWalkEnv()).restore_state(state, fallback_seed=0)[1]
