"""What the collector writes into the buffer and counts, in numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from helpers.envs import CounterEnv, DictCounterEnv, OsRandomEnv, RandomWalkEnv
from helpers.tools import through_codec
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.contract import EnvStepper, StepRecord
from rl_training.envs.factory import EnvFactory
from rl_training.execution.batches import count_of
from rl_training.execution.draws import uniform
from rl_training.execution.executor import Executor
from rl_training.policies.policy import Policy
from rl_training.runtime.collector import EpisodeStatistics, RolloutCollector, obs_to_torch
from rl_training.runtime.throughput import StageTimer
from rl_training.utils.trees import differing_paths

CPU = torch.device("cpu")


class CountingPolicy(Policy):
    """Acts at random from the generator it is given."""

    def act(self, obs: Any, state: Any = None, *, generator: Any = None, deterministic: bool = False) -> Any:
        return (uniform((count_of(obs),), generator, CPU) * 3).long(), state


def collector_for(
    *makers: Any, steps: int, mode: AutoresetMode = AutoresetMode.SAME_STEP, seed: int = 0, obs_shape: Any = (2,)
) -> RolloutCollector:
    envs = SyncVectorEnv([EnvFactory("test", custom=maker) for maker in makers], autoreset_mode=mode)
    dtypes = {"count": torch.float32, "parity": torch.int64} if isinstance(obs_shape, dict) else torch.float32
    buffer = RolloutBuffer(steps, len(makers), obs_shape, (), obs_dtype=dtypes, action_dtype=torch.int64)
    policy = CountingPolicy()
    return RolloutCollector(
        EnvStepper(envs), policy, buffer, executor=Executor(policy, CPU), seed=seed, device=CPU, timer=StageTimer()
    )


def record(rewards: list[float], ended: list[bool], valid: list[bool]) -> StepRecord:
    obs = np.zeros((len(rewards), 1))
    flags = np.array(ended)
    return StepRecord(obs, obs, np.array(rewards), obs, flags, np.zeros_like(flags), np.array(valid))


def test_episode_statistics_by_hand() -> None:
    statistics = EpisodeStatistics(2)
    assert statistics.summary() == {"episodes": 0.0}
    statistics.add(record([1.0, 10.0], [False, False], [True, True]))
    statistics.add(record([2.0, 20.0], [False, True], [True, True]))
    assert statistics.summary() == {"episode_return": 30.0, "episode_length": 2.0, "episodes": 1.0}
    statistics.add(record([4.0, 99.0], [True, False], [True, False]))  # the reset call of NEXT_STEP in environment 1
    assert statistics.summary() == {"episode_return": (30.0 + 7.0) / 2, "episode_length": 2.5, "episodes": 2.0}
    statistics.add(record([0.0, 5.0], [False, True], [False, True]))
    assert (list(statistics.returns), list(statistics.lengths)) == ([30.0, 7.0, 5.0], [2, 3, 1])


def test_an_episode_cut_off_by_a_dead_worker_has_no_return() -> None:
    statistics = EpisodeStatistics(1)
    statistics.add(record([100.0], [False], [True]))
    statistics.add(record([0.0], [False], [False]))
    statistics.add(record([3.0], [True], [True]))
    assert (list(statistics.returns), list(statistics.lengths)) == ([3.0], [1])


def test_statistics_keep_the_last_hundred_episodes_and_go_through_a_checkpoint() -> None:
    statistics = EpisodeStatistics(1)
    for value in range(150):
        statistics.add(record([float(value)], [True], [True]))
    statistics.add(record([7.0], [False], [True]))
    other = EpisodeStatistics(1)
    other.load_state_dict(through_codec(statistics.state_dict()))
    for found in (statistics, other):
        assert found.summary() == {"episode_return": np.mean(range(50, 150)), "episode_length": 1.0, "episodes": 150.0}
        found.add(record([1.0], [True], [True]))
        assert found.returns[-1] == 8.0


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_the_buffer_holds_the_valid_transitions(mode: AutoresetMode) -> None:
    script = ((2, "terminated"), (3, "truncated"))
    collector = collector_for(lambda: CounterEnv(script), steps=7, mode=mode)
    collector.reset()
    buffer, valid_steps = collector.collect()
    next_step = mode is AutoresetMode.NEXT_STEP
    assert valid_steps == int(buffer.valid.sum()) == (5 if next_step else 7)
    kept = buffer.valid[:, 0]
    assert buffer.obs[kept, 0, 0].tolist() == [0, 1, 0, 1, 2, 0, 1][:valid_steps]
    assert buffer.rewards[kept, 0].tolist() == [1, 2, 1, 2, 3, 1, 2][:valid_steps]
    assert buffer.dones[kept, 0].tolist() == [False, True, False, False, True, False, True][:valid_steps]
    assert buffer.truncated[kept, 0].tolist() == [False, False, False, False, True, False, False][:valid_steps]
    final_obs, index = buffer.final_obs()
    assert final_obs.tolist() == [[3.0, 1.0]] and index.tolist() == [5 if next_step else 4]
    assert buffer.last_obs.tolist() == ([[0.0, 2.0]] if next_step else [[0.0, 3.0]])
    assert list(collector.statistics.returns) == ([3.0, 6.0] if next_step else [3.0, 6.0, 3.0])


def test_a_rollout_starts_where_the_last_one_stopped() -> None:
    collector = collector_for(CounterEnv, steps=3)
    collector.reset()
    assert collector.collect()[0].obs[:, 0, 0].tolist() == [0, 1, 2]
    buffer, steps = collector.collect()
    assert (buffer.obs[:, 0, 0].tolist(), buffer.last_obs[0, 0].item(), steps) == ([3, 4, 5], 6.0, 3)


def test_dict_observations_are_collected_by_key() -> None:
    collector = collector_for(
        lambda: DictCounterEnv(((2, "truncated"),)), steps=3, obs_shape={"count": (1,), "parity": ()}
    )
    collector.reset()
    buffer, _ = collector.collect()
    assert buffer.obs["count"][:, 0, 0].tolist() == [0, 1, 0]
    assert buffer.obs["parity"][:, 0].tolist() == [0, 1, 0]
    final_obs, _ = buffer.final_obs()
    assert final_obs["count"].tolist() == [[2.0]] and final_obs["parity"].tolist() == [0]


def test_collecting_from_a_saved_state_gives_the_same_rollout() -> None:
    first, second = (collector_for(RandomWalkEnv, RandomWalkEnv, steps=20, seed=seed) for seed in (3, 3))
    first.reset()
    first.collect()
    second.load_state_dict(through_codec(first.state_dict()))
    assert second.stepper.resume_grade == "exact"
    expected, found = first.collect()[0], second.collect()[0]
    for name in ("obs", "actions", "rewards", "dones", "truncated", "valid", "last_obs"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert differing_paths(second.state_dict(), first.state_dict()) == []


def test_running_episodes_are_forgotten_when_the_environments_start_afresh() -> None:
    first, second = collector_for(OsRandomEnv, OsRandomEnv, steps=4), collector_for(OsRandomEnv, steps=4)
    first.reset()
    first.collect()
    assert first.statistics.running_returns.tolist() == [10.0, 10.0]
    second.load_state_dict(through_codec(first.state_dict()))  # into another number of environments, even
    assert second.stepper.resume_grade == "episode-boundary"
    assert second.statistics.running_returns.tolist() == [0.0]
    second.collect()
    assert second.statistics.running_lengths.tolist() == [4]


def test_the_seed_decides_the_actions_and_the_environments() -> None:
    rollouts = []
    for seed in (1, 1, 2):
        collector = collector_for(RandomWalkEnv, steps=10, seed=seed)
        collector.reset()
        buffer, _ = collector.collect()
        rollouts.append((buffer.obs.clone(), buffer.actions.clone()))
    assert torch.equal(rollouts[0][0], rollouts[1][0]) and torch.equal(rollouts[0][1], rollouts[1][1])
    assert not torch.equal(rollouts[0][0], rollouts[2][0]) and not torch.equal(rollouts[0][1], rollouts[2][1])


def test_time_is_split_into_stages() -> None:
    collector = collector_for(CounterEnv, steps=5)
    collector.reset()
    collector.collect()
    assert set(collector.timer.seconds) == {"inference", "env", "buffer"}
    assert all(seconds > 0 for seconds in collector.timer.seconds.values())


def test_observations_become_tensors_of_the_stored_type() -> None:
    assert obs_to_torch(np.array([[0.1]]), CPU).dtype == torch.float32
    found = obs_to_torch({"a": np.zeros((1, 2), np.uint8), "b": np.array([3])}, CPU)
    assert (found["a"].dtype, found["b"].dtype) == (torch.uint8, torch.int64)
