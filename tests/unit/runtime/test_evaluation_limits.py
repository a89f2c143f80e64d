"""Evaluations end: episodes that do not are cut and counted, and a signal stops an evaluation at once without losing it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from helpers.envs import ConstantRewardEnv, CounterEnv, RandomWalkEnv
from rl_training import DQN, PPO, TrainConfig
from rl_training.envs.factory import EnvFactory
from rl_training.envs.limits import episode_limit
from rl_training.experiment.checkpoint.store import read_checkpoint
from rl_training.experiment.console.lines import evaluation_text
from rl_training.experiment.run.run_dir import read_lines
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.spec import PolicySpec
from rl_training.runtime import evaluator as module
from rl_training.runtime.evaluator import Evaluator
from rl_training.utils.errors import ConfigError, UserError
from rl_training.utils.trees import differing_paths

CPU = torch.device("cpu")


def policy_for() -> ActorCritic:
    observations = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return ActorCritic(PolicySpec(observations, spaces.Discrete(3), PolicyConfig(hidden_sizes=(4,))))


def evaluator_for(make: Any, num_envs: int = 3, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> Evaluator:
    def make_envs(count: int) -> Any:
        return SyncVectorEnv([EnvFactory("test", custom=make)] * count, autoreset_mode=mode)

    return Evaluator(make_envs, num_envs=num_envs, seed=0, device=CPU)


def of_lengths(*lengths: int) -> Any:
    """A maker of environments whose episodes have these lengths, in turn."""
    given = itertools.cycle(lengths)
    return lambda: ConstantRewardEnv(1.0, ((next(given), "truncated"),))


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EPISODE_STEPS", 30)


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_episodes_without_an_end_are_cut_and_counted(mode: AutoresetMode) -> None:
    result = evaluator_for(CounterEnv, num_envs=2, mode=mode).evaluate(policy_for(), 5, deterministic=True)
    assert result.lengths == (30,) * 5 and result.cut_episodes == 5
    assert result.returns == (float(sum(range(1, 31))),) * 5, "a new episode begins after the cut"
    assert result.to_dict()["cut_episodes"] == 5
    assert evaluation_text(result).endswith("5 deterministic episodes), 5 of them cut before their end")


@pytest.mark.usefixtures("short_limit")
@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_the_others_go_on_while_one_is_cut(mode: AutoresetMode) -> None:
    result = evaluator_for(of_lengths(7, 50, 30), mode=mode).evaluate(policy_for(), 6, deterministic=True)
    assert result.lengths == (7, 7, 30, 30, 30, 30)
    assert result.cut_episodes == 2, "an episode that ends with the limit is whole"
    assert result.returns == (7.0, 7.0, 30.0, 30.0, 30.0, 30.0)


@pytest.mark.usefixtures("short_limit")
def test_an_environments_own_limit_is_kept_however_long() -> None:
    result = evaluator_for(lambda: TimeLimit(CounterEnv(), 45)).evaluate(policy_for(), 3, deterministic=True)
    assert result.lengths == (45, 45, 45) and result.cut_episodes == 0
    assert "cut" not in evaluation_text(result)


def test_the_limit_of_the_config_is_used_everywhere(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "output_dir": str(tmp_path)}
    evaluation = {"every": 16, "episodes": 3, "max_episode_steps": 12}
    logging = {"console": "off", "tensorboard": False}
    result = PPO(CounterEnv, evaluation=evaluation, logging=logging, **settings).learn(16)
    assert result.evaluation is not None
    assert result.evaluation.lengths == (12, 12, 12) and result.evaluation.cut_episodes == 3
    assert result.run_dir is not None
    assert read_lines(result.run_dir / "evaluations.jsonl")[-1]["cut_episodes"] == 3
    agent = PPO(lambda: ConstantRewardEnv(script=((20, "terminated"),)), evaluation={"max_episode_steps": 12})
    assert agent.evaluate(2).cut_episodes == 2, "also below the environment's own end"


def test_cliff_walking_without_a_limit_ends_its_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EPISODE_STEPS", 200)
    result = DQN("CliffWalking-v1", seed=0).evaluate(3)
    assert result.episodes == 3 and result.cut_episodes == sum(length == 200 for length in result.lengths) > 0


class OwnVector(SyncVectorEnv):
    """Stands for a vector environment that cannot restart a single environment."""


def test_a_vector_environment_that_cannot_restart_one_gets_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator = evaluator_for(CounterEnv)
    evaluator._max_episode_steps = 5
    monkeypatch.setattr("rl_training.envs.contract.SyncVectorEnv", OwnVector)
    with pytest.raises(UserError, match=r"an episode of test did not end.*\n.*env.max_episode_steps=1000"):
        evaluator.evaluate(policy_for(), 3, deterministic=True)


def test_absurd_numbers_of_episodes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation.episodes.*<= 1000000, got 1000000000000000"):
        TrainConfig(evaluation={"episodes": 10**15})  # type: ignore[arg-type]
    for episodes in (0, 10**15):
        with pytest.raises(UserError, match="1 to 1,000,000 episodes"):
            evaluator_for(CounterEnv).evaluate(policy_for(), episodes, deterministic=True)


def test_what_environments_say_about_their_limits() -> None:
    assert episode_limit(gym.make("CartPole-v1")) == 500
    assert episode_limit(EnvFactory("CartPole-v1", max_episode_steps=7)()) == 7
    assert episode_limit(EnvFactory("x", custom=CounterEnv)()) is None
    assert episode_limit(SyncVectorEnv([lambda: gym.make("Pendulum-v1")])) == 200
    assert episode_limit(gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")) == 500


@pytest.fixture
def registered() -> Iterator[None]:
    gym.register("RandomWalk-v0", RandomWalkEnv)
    yield
    del gym.registry["RandomWalk-v0"]


class Signals:
    """Counts the steps of evaluations, and sends a signal to the process in the `at`-th."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.steps, self.at = 0, 0
        self._to_torch = module.obs_to_torch
        monkeypatch.setattr(module, "obs_to_torch", self._count)

    def _count(self, *args: Any) -> Any:
        self.steps += 1
        if self.steps == self.at:
            os.kill(os.getpid(), signal.SIGTERM)
        return self._to_torch(*args)


def run_config(folder: Path) -> TrainConfig:
    return TrainConfig(
        env_id="RandomWalk-v0",
        num_envs=2,
        total_timesteps=96,
        output_dir=str(folder),
        hyperparams={"num_steps": 8, "num_minibatches": 2},
        evaluation={"every": 32, "episodes": 4, "num_envs": 2},  # type: ignore[arg-type]
        checkpoint={"every": 0},  # type: ignore[arg-type]
        stopping={"patience": 2},  # type: ignore[arg-type]
        logging={"every": 16, "console": "off", "tensorboard": False},  # type: ignore[arg-type]
    )


def outcome(run_dir: Path) -> tuple[Any, Any, Any]:
    (newest,) = sorted((run_dir / "checkpoints").glob("step_*"))[-1:]
    groups = read_checkpoint(newest).groups
    lines = [{**line, "at_utc": None} for line in read_lines(run_dir / "evaluations.jsonl")]
    best = (run_dir / "checkpoints" / "best").read_text()
    return {"policy": groups["policy"], "callbacks": groups["runtime"]["callbacks"]}, lines, best


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_signal_during_an_evaluation_stops_it_and_a_resume_makes_it_up(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals = Signals(monkeypatch)
    whole = start_run(run_config(tmp_path / "whole"))
    signals.at, signals.steps = max(1, int(signals.steps * share)), 0
    stopped = start_run(run_config(tmp_path / "stopped"))
    assert stopped.exit_code == 143
    assert signals.steps == signals.at, "not a step more"
    assert whole.run_dir is not None and stopped.run_dir is not None
    lines = read_lines(whole.run_dir / "evaluations.jsonl")
    assert len(read_lines(stopped.run_dir / "evaluations.jsonl")) < len(lines), "the evaluation is not reported"
    signals.at = 0
    resumed = resume_run(stopped.run_dir)
    assert resumed.exit_code == 0 and resumed.resume_grade == "exact"
    expected, found = outcome(whole.run_dir), outcome(stopped.run_dir)
    assert differing_paths(expected[0], found[0]) == []
    assert found[1:] == expected[1:]


def test_python_evaluations_raise_keyboard_interrupt() -> None:
    class Interrupts(CounterEnv):
        def step(self, action: Any) -> Any:
            if self.count == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(action)

    agent = PPO(Interrupts)
    with pytest.raises(KeyboardInterrupt):
        agent.evaluate(1)
    assert np.isfinite(agent.predict(np.zeros(2, np.float32))[0])
