"""The rules of goal environments, as batches and one by one, and environments that have none."""

import gc
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs.builtin.goal_tasks import BitFlip, PointReach
from rl_training.envs.goals import GoalRules
from rl_training.utils.errors import EnvCreationError, SpaceError

GOALS = (
    np.array([[0.0, 0.0], [0.0, 0.0], [0.5, 0.5]], np.float32),
    np.array([[0, 0.05], [0, 1], [0.5, 0.5]], np.float32),
)


def test_rules_that_answer_batches_are_asked_once() -> None:
    class Counted(PointReach):
        calls = 0

        def reached(self, achieved_goal: Any, desired_goal: Any) -> Any:
            Counted.calls += 1
            return super().reached(achieved_goal, desired_goal)

    rules = GoalRules(Counted())
    Counted.calls = 0
    rewards, ends = rules.reward(*GOALS), rules.terminated(*GOALS)
    assert rewards.tolist() == [0, -1, 0] and rewards.dtype == np.float32
    assert ends.tolist() == [False] * 3 and ends.dtype == np.bool_
    assert Counted.calls == 1


class NormOfAll(PointReach):
    """Written for one pair of goals: of a batch it takes the norm over everything."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> float:
        return -float(np.linalg.norm(achieved_goal - desired_goal) > self.RADIUS)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= self.RADIUS)


class FailsOnBatches(PointReach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        x, y = achieved_goal - desired_goal
        return np.float32(-1.0 if x * x + y * y > 0.01 else 0.0)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.array([np.hypot(*(achieved_goal - desired_goal)) < 0.1])  # one number, in a shape of its own


class FirstOfAll(NormOfAll):
    """Answers with the right shape, but only for the first pair."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        pairs = np.atleast_2d(achieved_goal - desired_goal)
        values = np.full(len(pairs), -float(np.linalg.norm(pairs[0]) > self.RADIUS))
        return values if np.ndim(achieved_goal) == 2 else values[0]


@pytest.mark.parametrize("env", [NormOfAll, FailsOnBatches, FirstOfAll])
def test_rules_for_one_pair_are_asked_one_by_one(env: type[PointReach]) -> None:
    rules = GoalRules(env())
    assert rules.reward(*GOALS).tolist() == [0, -1, 0]
    assert rules.terminated(*GOALS).tolist() == [True, False, True]


def test_without_compute_terminated_there_is_no_rule_of_ends() -> None:
    class Bits(BitFlip):
        compute_terminated = property()  # type: ignore[assignment]

    rules = GoalRules(Bits(2))
    same = np.zeros((2, 2), np.int8)
    assert rules.reward(same, same).tolist() == [0, 0] and rules.terminated is None


def test_a_wrapper_may_have_rules_of_its_own() -> None:
    class Doubled(gym.Wrapper[Any, Any, Any, Any]):
        def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
            return 2 * self.unwrapped.compute_reward(achieved_goal, desired_goal, info)

    assert GoalRules(gym.wrappers.TimeLimit(Doubled(PointReach()), 9)).reward(*GOALS).tolist() == [0, -2, 0]


def test_the_environment_is_closed_with_the_rules() -> None:
    closed = []

    class Closing(BitFlip):
        def close(self) -> None:
            closed.append(self.bits)

    rules = GoalRules(Closing(2))
    gc.collect()
    assert closed == []
    del rules
    gc.collect()
    assert closed == [2]


class Goalless(PointReach):
    compute_reward = property()  # type: ignore[assignment]


class Broken(PointReach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -1.0 if info["is_success"] else 0.0


def observing(space: spaces.Space) -> gym.Env:
    env = PointReach()
    env.observation_space = space
    return env


BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
REFUSED = {
    "no Dict": (lambda: observing(BOX), SpaceError, "not a Box.\nUse such an environment, e.g. env_id=BitFlip-v0"),
    "no achieved goal": (
        lambda: observing(spaces.Dict({"observation": BOX, "desired_goal": BOX})),
        SpaceError,
        "lack 'achieved_goal'",
    ),
    "two shapes": (
        lambda: observing(
            spaces.Dict({"observation": BOX, "desired_goal": BOX, "achieved_goal": spaces.Box(-1.0, 1.0, (3,))})
        ),
        SpaceError,
        r"achieved_goal has \(3,\), desired_goal \(2,\)",
    ),
    "no rule": (Goalless, SpaceError, "Goalless has goals but no compute_reward"),
    "a rule that needs more": (Broken, EnvCreationError, "compute_reward with goals alone, .* KeyError: 'is_success'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    make, error, message = REFUSED[name]
    with pytest.raises(error, match=message) as caught:
        GoalRules(make())
    assert len(str(caught.value).splitlines()) <= 3
