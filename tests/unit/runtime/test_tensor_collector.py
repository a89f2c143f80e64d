"""Collection on the device: the same rollouts, statistics and checkpoints as the ordinary way, and no waiting in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import VectorWrapper

from helpers.no_waiting import NoWaiting
from helpers.tensor_counters import tensor_counters
from helpers.tools import through_codec
from rl_training import PPO
from rl_training.config import TrainConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.builtin.tensor_envs import TensorVectorEnv, make_tensor_env
from rl_training.envs.contract import EnvStepper
from rl_training.execution.executor import Executor
from rl_training.experiment.checkpoint.snapshot import RESUME_IGNORES
from rl_training.experiment.checkpoint.store import read_checkpoint
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.policy import Policy
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.spec import PolicySpec
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.tensor_collector import TensorEpisodeStatistics, TensorRolloutCollector, rollout_collector
from rl_training.runtime.throughput import StageTimer
from rl_training.utils.errors import NonFiniteError
from rl_training.utils.spaces import ActionAdapter
from rl_training.utils.trees import differing_paths

CPU = torch.device("cpu")
COLUMNS = ("obs", "actions", "rewards", "dones", "truncated", "valid", "last_obs")


class SumPolicy(Policy):
    """The action is (count + episode) mod 3."""

    def act(self, obs: Any, state: Any = None, *, generator: Any = None, deterministic: bool = False) -> Any:
        return obs.sum(dim=-1).long() % 3, state


def collector_for(
    envs: TensorVectorEnv, steps: int, *, on_device: bool = True, policy: Any = None, execution: Any = "auto"
) -> RolloutCollector:
    adapter = ActionAdapter(envs.single_action_space)
    if policy is None:
        torch.manual_seed(0)
        spec = PolicySpec(envs.single_observation_space, envs.single_action_space, PolicyConfig(hidden_sizes=(8,)))
        policy = ActorCritic(spec)
    shape = envs.single_observation_space.shape
    buffer = RolloutBuffer(steps, envs.num_envs, shape, adapter.shape, action_dtype=getattr(torch, adapter.dtype))
    kind = rollout_collector if on_device else RolloutCollector
    executor = Executor(policy, CPU, execution)
    return kind(EnvStepper(envs), policy, buffer, executor=executor, seed=0, device=CPU, timer=StageTimer())


def test_hand_computed_ends_and_advantages() -> None:
    """The numbers of tests/unit/envs/test_contract.py, where their derivation is written out."""
    scripts = (((2, "terminated"), (3, "truncated"), (1, "both")), ((3, "truncated"), (4, "terminated")))
    collector = collector_for(tensor_counters(*scripts), 7, policy=SumPolicy())
    assert isinstance(collector, TensorRolloutCollector)
    collector.reset()
    buffer, valid_steps = collector.collect()
    assert valid_steps == 14 and buffer.full and buffer.valid.all()
    assert buffer.obs[:, 0].tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [2, 1], [0, 2], [0, 3]]
    assert buffer.actions[:, 0].tolist() == [0, 1, 1, 2, 0, 2, 0]
    assert buffer.rewards.T.tolist() == [[1, 2, 1, 2, 3, 1, 1], [1, 2, 3, 1, 2, 3, 4]]
    assert buffer.dones.T.int().tolist() == [[0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0, 1]]
    assert buffer.truncated.T.int().tolist() == [[0, 0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0]]
    final_obs, index = buffer.final_obs()
    assert (final_obs.tolist(), index.tolist()) == ([[3, 0], [3, 1]], [2 * 2 + 1, 4 * 2 + 0])
    assert buffer.last_obs.tolist() == [[1, 3], [0, 2]]
    assert list(collector.statistics.returns) == [3.0, 6.0, 6.0, 1.0, 10.0], "by step, then by environment"
    assert list(collector.statistics.lengths) == [2, 3, 3, 1, 4]
    assert collector.statistics.running_returns.tolist() == [1.0, 0.0]
    assert collector.statistics.running_lengths.tolist() == [1, 0]

    buffer.values = buffer.obs[..., 0].clone()
    buffer.final_values.view(-1)[index] = final_obs[:, 0]
    buffer.compute_returns_and_advantages(buffer.last_obs[:, 0], gamma=0.5, gae_lambda=0.5)
    assert buffer.advantages.T.tolist() == [
        [1.75, 1.0, 2.15625, 2.625, 2.5, 1.0, 1.5],
        [2.15625, 2.625, 2.5, 2.171875, 2.6875, 2.75, 1.0],
    ]


def test_no_final_observations_without_a_truncation() -> None:
    collector = collector_for(tensor_counters(((2, "truncated"), (9, "terminated"))), 4, policy=SumPolicy())
    collector.reset()
    assert collector.collect()[0].final_obs() is not None
    assert collector.collect()[0].final_obs() is None, "those of the rollout before are gone"


def test_a_rollout_starts_where_the_last_one_stopped() -> None:
    collector = collector_for(tensor_counters(((5, "terminated"),)), 3, policy=SumPolicy())
    collector.reset()
    assert collector.collect()[0].obs[:, 0, 0].tolist() == [0, 1, 2]
    assert collector.collect()[0].obs[:, 0, 0].tolist() == [3, 4, 0]
    assert list(collector.statistics.returns) == [15.0]


@pytest.mark.parametrize("per_rollout", [1, 7, 150])
def test_statistics_keep_the_last_hundred_episodes(per_rollout: int) -> None:
    """Episodes of one step in one environment, with returns 0, 1, 2, ..."""
    statistics, ended = TensorEpisodeStatistics(1, per_rollout, CPU), torch.ones(per_rollout, 1, dtype=torch.bool)
    assert statistics.summary() == {"episodes": 0.0}
    values = iter(range(10_000))
    for rollout in range(1, 4):
        for t in range(per_rollout):
            statistics.write(t, torch.tensor([float(next(values))]), ended[t])
        statistics.read(ended)
        count = rollout * per_rollout
        assert statistics.episodes == count
        assert list(statistics.returns) == [float(value) for value in range(count)][-100:]
        assert list(statistics.lengths) == [1] * min(count, 100)


ENVS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0")


@pytest.mark.parametrize("env_id", ENVS)
def test_the_same_rollouts_as_the_ordinary_way_bit_for_bit(env_id: str) -> None:
    fast, ordinary = (
        collector_for(make_tensor_env(env_id, 6, max_episode_steps=21), 16, on_device=on_device, execution="eager")
        for on_device in (True, False)  # NumPy, in a recording, may round otherwise than torch
    )
    assert (type(fast), type(ordinary)) == (TensorRolloutCollector, RolloutCollector)
    fast.reset()
    ordinary.reset()
    for _ in range(4):
        (found, found_steps), (expected, expected_steps) = fast.collect(), ordinary.collect()
        assert found_steps == expected_steps
        assert differing_paths([getattr(found, n) for n in COLUMNS], [getattr(expected, n) for n in COLUMNS]) == []
        assert differing_paths(found.final_obs(), expected.final_obs()) == []
        assert fast.statistics.summary() == ordinary.statistics.summary()
        assert differing_paths(through_codec(fast.state_dict()), through_codec(ordinary.state_dict())) == []
    assert fast.statistics.episodes >= 12


@pytest.mark.parametrize("to_device", [True, False])
@pytest.mark.parametrize("from_device", [True, False])
def test_a_checkpoint_of_either_way_continues_in_either(from_device: bool, to_device: bool) -> None:
    first, second = (
        collector_for(make_tensor_env("CartPole-v1", 3), 20, on_device=on_device)
        for on_device in (from_device, to_device)
    )
    first.reset()
    first.collect()
    second.load_state_dict(through_codec(first.state_dict()))
    assert second.stepper.resume_grade == "exact"
    assert differing_paths(second.state_dict(), first.state_dict()) == []
    expected, found = first.collect()[0], second.collect()[0]
    for name in COLUMNS:
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert differing_paths(second.state_dict(), first.state_dict()) == []


def test_running_episodes_are_forgotten_with_another_number_of_environments() -> None:
    first, second = (collector_for(make_tensor_env("CartPole-v1", count), 5) for count in (2, 3))
    first.reset()
    first.collect()
    assert first.statistics.running_lengths.tolist() == [5, 5]
    second.reset()
    second.load_state_dict(through_codec(first.state_dict()))
    assert second.stepper.resume_grade == "episode-boundary"
    assert second.statistics.running_lengths.tolist() == [0, 0, 0]
    second.collect()
    assert second.statistics.running_lengths.tolist() == [5, 5, 5]


@pytest.mark.parametrize("env_id", ENVS)
def test_a_rollout_waits_for_nothing_and_writes_where_it_did_before(env_id: str) -> None:
    collector = collector_for(make_tensor_env(env_id, 3), 4)
    collector.reset()
    collector.collect()
    places = memory(collector)
    with NoWaiting():
        collector._play()
    assert memory(collector) == places


def memory(collector: TensorRolloutCollector) -> list[int]:
    """Where everything lies that a rollout reads and writes."""
    buffer, statistics, envs = collector.buffer, collector.statistics, collector.envs
    tensors = [envs.states, envs.steps, statistics._running, statistics._history, buffer._every_next_obs]
    return [tensor.data_ptr() for tensor in (*tensors, *(getattr(buffer, name) for name in COLUMNS))]


def test_a_wrapped_environment_is_collected_the_ordinary_way() -> None:
    collector = collector_for(VectorWrapper(make_tensor_env("CartPole-v1", 2)), 5)
    assert type(collector) is RolloutCollector
    collector.reset()
    assert collector.collect()[1] == 10


def test_time_is_split_into_stages() -> None:
    collector = collector_for(make_tensor_env("CartPole-v1", 2), 5)
    collector.reset()
    collector.collect()
    assert set(collector.timer.seconds) == {"inference", "env", "buffer"}


def config_in(folder: Path, **values: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "env_id": "CartPole-v1",
        "num_envs": 16,
        "device": "cpu",
        "total_timesteps": 1280,
        "output_dir": str(folder),
        "hyperparams": {"num_steps": 16, "num_minibatches": 2},
        "env": {"backend": "tensor"},
        "evaluation": {"every": 512, "episodes": 2},
        "checkpoint": {"every": 256, "keep": 10},
        "logging": {"every": 256, "console": "off", "tensorboard": False},
    }
    return TrainConfig(**{**defaults, **values})


def final_state(run_dir: Path) -> dict[str, Any]:
    return read_checkpoint(run_dir / "checkpoints" / "step_000001280").groups


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "env_id": "Pendulum-v1",
            "env": {"backend": "tensor", "normalize_observations": True, "normalize_rewards": True},
        },
    ],
    ids=["CartPole", "Pendulum, normalised"],
)
def test_a_resumed_run_ends_like_one_that_was_never_stopped(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = start_run(config_in(tmp_path / "whole", **settings)).run_dir
    killed = tmp_path / "killed"
    shutil.copytree(whole, killed)
    for folder in (killed / "checkpoints").glob("step_*"):
        if int(folder.name.removeprefix("step_")) > 512:
            shutil.rmtree(folder)
    (killed / "checkpoints" / "latest").write_text("step_000000512\n")
    result = resume_run(killed)
    assert result.resume_grade == "exact"
    assert differing_paths(final_state(killed), final_state(whole), RESUME_IGNORES) == []


def test_training_gives_the_same_weights_either_way() -> None:
    weights = []
    for wrap in (lambda envs: envs, VectorWrapper):
        settings = {"num_steps": 32, "num_minibatches": 2, "device": "cpu", "seed": 3}
        agent = PPO(wrap(make_tensor_env("CartPole-v1", 8)), **settings)
        agent.learn(total_timesteps=1_024)
        weights.append(agent.policy.state_dict())
    assert differing_paths(*weights) == []


def test_ppo_learns_cartpole_on_tensor_environments() -> None:
    settings: dict[str, Any] = {"num_steps": 32, "num_minibatches": 4, "update_epochs": 4, "learning_rate": 2e-3}
    agent = PPO("CartPole-v1", seed=0, num_envs=64, device="cpu", env={"backend": "tensor"}, **settings)
    first = agent.learn(total_timesteps=2_048).metrics["episode_return"]
    last = agent.learn(total_timesteps=81_920).metrics["episode_return"]
    assert first < 40 and last > 200
    assert agent.evaluate(10).mean > 250, "Gymnasium's own environments agree"


def test_a_policy_that_became_nan_ends_the_run() -> None:
    agent = PPO("Pendulum-v1", num_envs=4, num_steps=8, device="cpu", env={"backend": "tensor"})
    with torch.no_grad():
        agent.policy.action_head.log_std.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        agent.learn(total_timesteps=64)


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_off_policy_algorithms_run_on_them_too(tmp_path: Path, algo: str) -> None:
    env_id = {"dqn": "CartPole-v1", "sac": "Pendulum-v1"}[algo]
    hyperparams = {"learning_starts": 64, "buffer_size": 500, "batch_size": 16}
    result = start_run(
        config_in(tmp_path, algo=algo, env_id=env_id, num_envs=4, total_timesteps=256, hyperparams=hyperparams)
    )
    assert result.metrics["global_step"] == 256 and np.isfinite(result.evaluation.mean)
