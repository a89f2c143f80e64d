"""HindsightReplayBuffer: new goals, rewards and ends by hand, agreement with naive lists of transitions, state."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch

from helpers.gpu import needs_gpu
from helpers.replay import Stream
from helpers.tools import through_codec
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.replay_buffer import Prioritization, ReplayBuffer, TransitionBatch
from rl_training.utils.trees import differing_paths

INT64 = torch.int64
ASKED = 50.0
"""The desired goal of every stored step; nothing achieves it."""


def negative_distance(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    assert achieved.shape == desired.shape and achieved.ndim == 2
    return -np.abs(achieved - desired).sum(axis=1)


def equal(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return (achieved == desired).all(axis=1)


def never(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return np.zeros(len(achieved), dtype=np.bool_)


def make(capacity: int = 20, size: int = 1, num_envs: int = 1, **options: Any) -> HindsightReplayBuffer:
    shapes = {"observation": (size,), "achieved_goal": (size,), "desired_goal": (size,)}
    rules: dict[str, Any] = {"hindsight": 1.0, "reward": negative_distance, "terminated": equal}
    return HindsightReplayBuffer(capacity, num_envs, shapes, (), action_dtype=INT64, **{**rules, **options})


def goal_obs(position: float) -> dict[str, torch.Tensor]:
    value = torch.tensor([[float(position)]])
    return {"observation": value + 0.5, "achieved_goal": value, "desired_goal": torch.tensor([[ASKED]])}


def add_episode(buffer: ReplayBuffer, positions: list[float], end: str) -> None:
    """One environment that walks through the positions; `end` is "T" (terminated), "U" (truncated) or "" (goes on)."""
    for i in range(len(positions) - 1):
        is_last = i == len(positions) - 2
        buffer.add(
            obs=goal_obs(positions[i]),
            actions=torch.tensor([i]),
            rewards=torch.tensor([7.0]),
            next_obs=goal_obs(positions[i + 1]),
            terminated=torch.tensor([is_last and end == "T"]),
            truncated=torch.tensor([is_last and end == "U"]),
            valid=torch.tensor([True]),
        )


Found = dict[float, dict[float, tuple[float, float, float]]]


def drawn(batch: TransitionBatch) -> Found:
    """position → goal → (reward, discount, next position)."""
    assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
    assert torch.equal(batch.obs["desired_goal"], batch.next_obs["desired_goal"])
    for obs in (batch.obs, batch.next_obs):
        assert torch.equal(obs["observation"], obs["achieved_goal"] + 0.5), "all entries of one step"
    columns = (
        batch.obs["achieved_goal"][:, 0],
        batch.obs["desired_goal"][:, 0],
        batch.rewards,
        batch.discounts,
        batch.next_obs["achieved_goal"][:, 0],
    )
    found: Found = defaultdict(dict)
    for position, goal, *rest in zip(*(column.tolist() for column in columns)):
        outcome = tuple(rest)
        assert found[position].setdefault(goal, outcome) == outcome
    return dict(found)


def goals_of(found: Found) -> dict[float, set[float]]:
    return {position: set(goals) for position, goals in found.items()}


# By hand --------------------------------------------------------------------------------------------------------------


def test_goals_are_achieved_later_in_the_same_episode() -> None:
    buffer = make()
    add_episode(buffer, [0, 1, 2, 3], "T")
    add_episode(buffer, [10, 11, 12], "U")
    add_episode(buffer, [20, 21, 22], "")
    expected = {0: {1, 2, 3}, 1: {2, 3}, 2: {3}, 10: {11, 12}, 11: {12}, 20: {21, 22}, 21: {22}}
    assert goals_of(drawn(buffer.sample(600))) == expected, "the running episode up to its newest step"
    add_episode(buffer, [22, 23], "U")
    expected |= {20: {21, 22, 23}, 21: {22, 23}, 22: {23}}
    assert goals_of(drawn(buffer.sample(600))) == expected


def test_rewards_and_ends_are_computed_for_the_new_goal() -> None:
    buffer = make(gamma=0.5)
    add_episode(buffer, [0, 1, 2], "T")
    add_episode(buffer, [10, 13], "U")
    assert drawn(buffer.sample(200)) == {
        0: {1: (0, 0, 1), 2: (-1, 0.5, 1)},
        1: {2: (0, 0, 2)},
        10: {13: (0, 0, 13)},
    }


def test_no_end_but_the_rules_stops_the_bootstrap() -> None:
    """The episode terminated for its own goal, which does not count for another."""
    buffer = make(gamma=0.5, terminated=never)
    add_episode(buffer, [0, 1, 2], "T")
    add_episode(buffer, [10, 11], "U")
    assert drawn(buffer.sample(200)) == {
        0: {1: (0, 0.5, 1), 2: (-1, 0.5, 1)},
        1: {2: (0, 0.5, 2)},
        10: {11: (0, 0.5, 11)},
    }


def test_without_a_rule_a_stored_termination_stays_one() -> None:
    """A robot that fell has fallen, whatever it was meant to do; a time limit still bootstraps."""
    buffer = make(gamma=0.5, terminated=None)
    add_episode(buffer, [0, 1, 2], "T")
    add_episode(buffer, [10, 11], "U")
    add_episode(buffer, [20, 21], "")
    assert drawn(buffer.sample(300)) == {
        0: {1: (0, 0.5, 1), 2: (-1, 0.5, 1)},
        1: {2: (0, 0, 2)},
        10: {11: (0, 0.5, 11)},
        20: {21: (0, 0.5, 21)},
    }
    buffer = make(n_step=3, gamma=0.5, terminated=None)
    add_episode(buffer, [0, 1, 2], "T")
    add_episode(buffer, [10, 11, 12], "U")
    assert drawn(buffer.sample(400)) == {
        0: {1: (0 - 0.5 * 1, 0, 2), 2: (-1 - 0, 0, 2)},
        1: {2: (0, 0, 2)},
        10: {11: (-0.5, 0.25, 12), 12: (-1, 0.25, 12)},
        11: {12: (0, 0.5, 12)},
    }


def test_n_step_returns_towards_the_new_goal() -> None:
    buffer = make(n_step=3, gamma=0.5)
    add_episode(buffer, [0, 1, 2, 3, 4], "U")
    assert drawn(buffer.sample(400)) == {
        0: {
            1: (0, 0, 1),  # reached in the first step: the other two do not count
            2: (-1 + 0, 0, 2),
            3: (-2 - 0.5 * 1 + 0, 0, 3),
            4: (-3 - 0.5 * 2 - 0.25 * 1, 0.125, 3),
        },
        1: {2: (0, 0, 2), 3: (-1, 0, 3), 4: (-2 - 0.5, 0, 4)},
        2: {3: (0, 0, 3), 4: (-1, 0, 4)},
        3: {4: (0, 0, 4)},
    }


def test_n_step_returns_stop_with_the_episode_and_at_the_newest_step() -> None:
    buffer = make(n_step=3, gamma=0.5, terminated=never)
    add_episode(buffer, [0, 1, 2], "T")
    add_episode(buffer, [10, 11, 12], "")
    assert drawn(buffer.sample(400)) == {
        0: {1: (0 - 0.5 * 1, 0.25, 2), 2: (-1 - 0, 0.25, 2)},
        1: {2: (0, 0.5, 2)},
        10: {11: (-0.5, 0.25, 12), 12: (-1, 0.25, 12)},
        11: {12: (0, 0.5, 12)},
    }


def test_a_goal_that_was_passed_before_ends_the_return_there() -> None:
    buffer = make(n_step=3, gamma=0.5)
    add_episode(buffer, [0, 1, 2, 1], "U")
    found = drawn(buffer.sample(200))
    assert found[0] == {1: (0, 0, 1), 2: (-1, 0, 2)}
    assert found[1] == {2: (0, 0, 2), 1: (-1 + 0, 0, 1)}


def test_across_the_seam_of_the_ring() -> None:
    buffer = make(4, n_step=2, gamma=0.5)  # five slots
    add_episode(buffer, [0, 1, 2, 3], "T")
    add_episode(buffer, [10, 11, 12, 13], "U")
    # Of six steps the last four are left: 2 → 3, and 10 → … → 13, which lies across the seam.
    found = drawn(buffer.sample(400))
    assert goals_of(found) == {2: {3}, 10: {11, 12, 13}, 11: {12, 13}, 12: {13}}
    assert found[10][13] == (-2 - 0.5, 0.25, 12)
    add_episode(buffer, [20, 21, 22, 23, 24, 25, 26], "")  # longer than the ring: its own beginning is overwritten
    assert goals_of(drawn(buffer.sample(400))) == {22: {23, 24, 25, 26}, 23: {24, 25, 26}, 24: {25, 26}, 25: {26}}
    add_episode(buffer, [26, 27], "U")
    assert goals_of(drawn(buffer.sample(400))) == {23: {24, 25, 26, 27}, 24: {25, 26, 27}, 25: {26, 27}, 26: {27}}
    add_episode(buffer, [30, 31], "")
    assert goals_of(drawn(buffer.sample(400))) == {24: {25, 26, 27}, 25: {26, 27}, 26: {27}, 30: {31}}


def test_an_episode_that_is_cut_off_ends_there() -> None:
    buffer = make(gamma=0.5, terminated=never)
    add_episode(buffer, [0, 1, 2], "")
    buffer.cut_episodes()
    add_episode(buffer, [10, 11], "")
    step = {"actions": torch.tensor([0]), "rewards": torch.tensor([0.0]), "valid": torch.tensor([False])}
    flags = {"terminated": torch.tensor([False]), "truncated": torch.tensor([False])}
    buffer.add(obs=goal_obs(11), next_obs=goal_obs(12), **step, **flags)  # its worker died
    add_episode(buffer, [20, 21], "")
    assert goals_of(drawn(buffer.sample(200))) == {0: {1, 2}, 1: {2}, 10: {11}, 20: {21}}


def test_the_future_is_drawn_uniformly_and_in_the_wanted_share() -> None:
    buffer = make(hindsight=0.8, seed=3)
    add_episode(buffer, list(range(11)), "U")
    batches = [buffer.sample(1000) for _ in range(60)]
    obs = [batch.obs for batch in batches]
    positions = torch.cat([o["achieved_goal"][:, 0] for o in obs]).numpy()  # type: ignore[index]
    goals = torch.cat([o["desired_goal"][:, 0] for o in obs]).numpy()  # type: ignore[index]
    replaced = goals != ASKED
    assert abs(replaced.mean() - 0.8) < 5 * (0.8 * 0.2 / len(goals)) ** 0.5, "five standard deviations"
    for position in range(10):
        values, counts = np.unique(goals[replaced & (positions == position)], return_counts=True)
        assert values.tolist() == list(range(position + 1, 11))
        expected = counts.sum() / len(values)
        assert ((counts - expected) ** 2 / expected).sum() < len(values) - 1 + 5 * (2 * len(values)) ** 0.5 + 1e-9


def test_the_rest_is_exactly_what_was_stored() -> None:
    """The first batch of a plain buffer with the same seed has the same transitions."""
    shapes = {"observation": (1,), "achieved_goal": (1,), "desired_goal": (1,)}
    buffer = make(n_step=3, gamma=0.5, hindsight=0.5, seed=5)
    plain = ReplayBuffer(20, 1, shapes, (), action_dtype=INT64, n_step=3, gamma=0.5, seed=5)
    for each in (buffer, plain):
        add_episode(each, [0, 1, 2, 3], "T")
        add_episode(each, [10, 11, 12], "")
    batch, stored = buffer.sample(300), plain.sample(300)
    assert isinstance(batch.obs, dict) and isinstance(stored.obs, dict)
    assert np.array_equal(batch.indices, stored.indices) and torch.equal(batch.actions, stored.actions)
    kept = batch.obs["desired_goal"][:, 0] == ASKED
    assert 100 < int(kept.sum()) < 200
    for name in ("rewards", "discounts", "weights"):
        assert torch.equal(getattr(batch, name)[kept], getattr(stored, name)[kept])
    for key in shapes:
        assert torch.equal(batch.obs[key][kept], stored.obs[key][kept])
        assert torch.equal(batch.next_obs[key][kept], stored.next_obs[key][kept])  # type: ignore[index]
    assert (batch.rewards[~kept] <= 0).all() and (stored.rewards > 0).all()
    assert not buffer.sample(300).obs["desired_goal"].equal(batch.obs["desired_goal"])  # type: ignore[index]
    export = buffer.export_rows(buffer.oldest(), buffer.counts)
    assert (export["obs"]["desired_goal"] == ASKED).all() and (export["rewards"] == 7).all(), "storage stays as it was"


def test_new_rewards_are_scaled_too() -> None:
    buffer = make(gamma=0.5, n_step=2, reward_scale=0.25)
    add_episode(buffer, [0, 4, 8], "U")
    assert drawn(buffer.sample(200)) == {0: {4: (0, 0, 4), 8: (-4 / 4 + 0, 0, 8)}, 4: {8: (0, 0, 8)}}


def test_goals_of_other_types() -> None:
    """Bits, and a plain number that the environment keeps in other types on either side."""

    def same_number(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        assert achieved.shape == desired.shape and achieved.ndim == 1 and desired.dtype == np.int32
        return achieved == desired

    for shape, dtype, terminated in (((3,), torch.int8, equal), ((), torch.int64, same_number)):
        dtypes = {"achieved_goal": dtype, "desired_goal": torch.int32 if shape == () else dtype}
        buffer = HindsightReplayBuffer(
            10,
            1,
            dict.fromkeys(dtypes, shape),
            (2,),
            obs_dtype=dtypes,
            hindsight=1.0,
            reward=lambda a, d, rule=terminated: rule(a, d) - 1,
            terminated=terminated,
            n_step=2,
            gamma=0.5,
        )
        for t in range(3):
            values = [torch.full((1, *shape), s, dtype=dtype) for s in (t, t + 1)]
            goal = torch.full((1, *shape), 9, dtype=dtypes["desired_goal"])
            buffer.add(
                obs={"achieved_goal": values[0], "desired_goal": goal},
                actions=torch.zeros(1, 2),
                rewards=torch.zeros(1, dtype=torch.float64),
                next_obs={"achieved_goal": values[1], "desired_goal": goal},
                terminated=torch.tensor([False]),
                truncated=torch.tensor([t == 2]),
                valid=torch.tensor([True]),
            )
        batch = buffer.sample(100)
        assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
        assert {key: value.dtype for key, value in batch.obs.items()} == dtypes
        assert batch.rewards.dtype is batch.discounts.dtype is torch.float32
        position, goal = (batch.obs[key].reshape(100, -1)[:, 0] for key in ("achieved_goal", "desired_goal"))
        assert set(zip(position.tolist(), goal.tolist())) == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}
        distance = (goal - position).tolist()
        assert batch.rewards.tolist() == [{1: 0.0, 2: -1.0, 3: -1.5}[d] for d in distance]
        assert batch.discounts.tolist() == [{1: 0.0, 2: 0.0, 3: 0.25}[d] for d in distance]


# Against naive lists --------------------------------------------------------------------------------------------------


class GoalStream:
    """The steps of `Stream` with goals: what is achieved repeats every three steps of an episode, so goals are met early too."""

    def __init__(self, num_envs: int, seed: int):
        self.stream = Stream(num_envs, seed=seed, end=0.15)

    def step(self) -> dict[str, Any]:
        step = self.stream.step()
        return {**step, "obs": self._with_goals(step["obs"]), "next_obs": self._with_goals(step["next_obs"])}

    def feed(self, buffer: ReplayBuffer, steps: int) -> None:
        for _ in range(steps):
            buffer.add(**self.step())

    @staticmethod
    def _with_goals(obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"observation": obs, "achieved_goal": achieved_in(obs), "desired_goal": torch.full_like(obs, ASKED)}

    def check(self, buffer: HindsightReplayBuffer, batch: TransitionBatch) -> int:
        """Compares each drawn transition with the lists; returns how many had another goal."""
        assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
        counts, envs = np.divmod(batch.indices, buffer.num_envs)
        replaced = 0
        for i, (env, count) in enumerate(zip(envs.tolist(), counts.tolist())):
            goal = batch.obs["desired_goal"][i]
            assert torch.equal(goal, batch.next_obs["desired_goal"][i])
            obs, action, *outcome = self.stream.expected(env, count, buffer.n_step, buffer.gamma)
            if float(goal[0]) == ASKED:
                reward, next_obs, discount = outcome
            else:
                replaced += 1
                reward, next_obs, discount = self._towards(goal.numpy(), env, count, buffer.n_step, buffer.gamma)
            for key, values in (("observation", lambda x: x), ("achieved_goal", achieved_in)):
                np.testing.assert_array_equal(batch.obs[key][i], values(obs))
                np.testing.assert_array_equal(batch.next_obs[key][i], values(next_obs))
            assert batch.actions[i] == action
            assert float(batch.rewards[i]) == pytest.approx(reward, rel=1e-5, abs=1e-6)
            assert float(batch.discounts[i]) == pytest.approx(discount, rel=1e-6)
        return replaced

    def _towards(self, goal: np.ndarray, env: int, count: int, n: int, gamma: float) -> tuple[float, np.ndarray, float]:
        """(reward, next_obs, discount) of one transition towards a goal, which must have been achieved later."""
        steps = self.stream.lists[env][count:]
        for i, step in enumerate(steps):
            lost = i + 1 < len(steps) and not np.array_equal(steps[i + 1].obs, step.next_obs)
            if step.terminated or step.truncated or lost:
                steps = steps[: i + 1]
                break
        reached = [np.array_equal(achieved_in(step.next_obs), goal) for step in steps]
        assert any(reached)
        reward = 0.0
        for m, step in enumerate(steps[:n]):
            reward -= gamma**m * float(np.abs(achieved_in(step.next_obs) - goal).sum())
            if reached[m]:
                return reward, step.next_obs, 0.0
        return reward, step.next_obs, gamma ** (m + 1)


def achieved_in(obs: Any) -> Any:
    achieved = obs.clone() if isinstance(obs, torch.Tensor) else obs.copy()
    achieved[..., 2] %= 3
    return achieved


def make_for(stream: GoalStream, per_env: int, **options: Any) -> HindsightReplayBuffer:
    n = stream.stream.n
    return make(per_env * n, size=3, num_envs=n, **{"hindsight": 0.7, **options})


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize(("num_envs", "per_env", "n_step"), [(1, 4, 1), (1, 9, 4), (3, 6, 2), (4, 30, 3)])
def test_random_streams_agree_with_lists(num_envs: int, per_env: int, n_step: int, prioritized: bool) -> None:
    stream = GoalStream(num_envs, seed=per_env)
    priorities = Prioritization() if prioritized else None
    buffer = make_for(stream, per_env, n_step=n_step, gamma=0.9, prioritization=priorities, seed=1)
    total = replaced = 0
    for _ in range(150):
        stream.feed(buffer, 1)
        if len(buffer):
            batch = buffer.sample(16)
            total, replaced = total + 16, replaced + stream.check(buffer, batch)
            if prioritized:
                buffer.update_priorities(batch.indices, batch.rewards)
    assert abs(replaced / total - 0.7) < 0.06


# State ----------------------------------------------------------------------------------------------------------------


def continue_alike(stream: GoalStream, a: HindsightReplayBuffer, b: HindsightReplayBuffer) -> None:
    """Both draw, learn and store the same from here on."""
    for _ in range(25):
        batches = [each.sample(16, beta=0.4) for each in (a, b)]
        trees = [{name: getattr(batch, name) for name in batch.__dataclass_fields__} for batch in batches]
        assert differing_paths(*trees) == []
        stream.check(a, batches[0])
        for each, batch in zip((a, b), batches):
            each.update_priorities(batch.indices, batch.rewards)
        step = stream.step()
        a.add(**step)
        b.add(**step)
    assert differing_paths(a.state_dict(), b.state_dict()) == []


@pytest.mark.parametrize("steps", [1, 5, 60])
def test_state_round_trip(steps: int) -> None:
    for seed in range(5):
        stream, other = GoalStream(3, seed), GoalStream(3, 99)
        buffer = make_for(stream, 9, n_step=3, prioritization=Prioritization())
        stream.feed(buffer, steps)
        if not len(buffer):
            continue
        buffer.sample(16)
        restored = make_for(stream, 9, n_step=3, prioritization=Prioritization(), seed=7)
        other.feed(restored, 33)  # what was there before is forgotten
        restored.load_state_dict(through_codec(buffer.state_dict()))
        continue_alike(stream, buffer, restored)


@pytest.mark.parametrize("gaps", [(2, 3, 4), (30, 1, 2), (5, 0, 40)])
@pytest.mark.parametrize("cut", [False, True])
def test_state_in_segments(gaps: tuple[int, ...], cut: bool) -> None:
    for seed in range(5):
        stream = GoalStream(3, seed)
        buffer = make_for(stream, 9, n_step=3, prioritization=Prioritization())
        segments, saved = [], buffer.counts.copy()
        for gap in gaps:
            stream.feed(buffer, gap)
            start = np.maximum(saved, buffer.oldest())
            segments.append(through_codec(buffer.export_rows(start, buffer.counts)))
            saved = buffer.counts.copy()
        if not len(buffer):
            continue
        restored = make_for(stream, 9, n_step=3, prioritization=Prioritization(), seed=7)
        head = through_codec(buffer.head_state())
        for segment in segments:
            restored.import_rows(segment)
        restored.load_head_state(head)
        if cut:  # a resume that begins fresh episodes
            for each in (buffer, restored):
                each.cut_episodes()
            stream.stream.obs = [stream.stream._first(env) for env in range(3)]
            stream.stream.awaiting = [False] * 3
        continue_alike(stream, buffer, restored)


def test_a_cleared_buffer_starts_over() -> None:
    buffer = make()
    add_episode(buffer, [0, 1, 2, 3], "T")
    buffer.clear()
    add_episode(buffer, [10, 11], "U")
    add_episode(buffer, [20, 21, 22], "")
    assert goals_of(drawn(buffer.sample(200))) == {10: {11}, 20: {21, 22}, 21: {22}}


@needs_gpu
def test_storage_on_the_gpu_draws_the_same() -> None:
    stream = GoalStream(3, 1)
    on_cpu, on_gpu = (
        make_for(stream, 9, n_step=3, prioritization=Prioritization(), device=device) for device in ("cpu", "cuda")
    )
    for _ in range(60):
        step = stream.step()
        on_cpu.add(**step)
        on_gpu.add(**step)
    assert on_gpu.sample(4).rewards.is_cuda and on_cpu.sample(4).rewards.device.type == "cpu"
    continue_alike(stream, on_cpu, on_gpu)
