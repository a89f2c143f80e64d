"""Callbacks that see every step, infos as metrics, and numbers that callbacks log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs import CounterEnv
from rl_training import DQN, PPO, Callback
from rl_training.data.sources import TransitionDataset
from rl_training.envs.contract import StepRecord
from rl_training.runtime.callbacks import Callback as BaseCallback
from rl_training.runtime.step_infos import info_values
from rl_training.runtime.trainer import OfflineTrainer
from rl_training.utils.errors import UserError

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "seed": 0, "logging": {"every": 0}}


class InfoEnv(CounterEnv):
    """Says its count, and at the end of an episode how it went."""

    def __init__(self, length: int = 4):
        super().__init__(((length, "terminated"),))

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs)[0], {"speed": 1000.0}

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        info = {"speed": float(self.count), "name": "x", "pair": np.zeros(2), "nested": {"deep": self.count}}
        if terminated:
            info["won"] = True
        return obs, reward, terminated, truncated, info


class Steps(Callback):
    def __init__(self) -> None:
        self.steps: list[StepRecord] = []

    def on_step(self, trainer: Any, step: StepRecord) -> None:
        self.steps.append(step)


@pytest.mark.parametrize("cls", [PPO, DQN])
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_every_step_is_seen_with_its_infos(cls: Any, backend: str) -> None:
    steps = Steps()
    settings = SMALL if cls is PPO else {"num_envs": 2, "learning_starts": 8}
    agent = cls(InfoEnv, env={"backend": backend}, **settings)
    agent.learn(total_timesteps=16, callbacks=steps)
    agent.close()
    assert len(steps.steps) == 8 and sum(step.valid.sum() for step in steps.steps) == 16
    assert [step.rewards.tolist() for step in steps.steps[:4]] == [[1, 1], [2, 2], [3, 3], [4, 4]]
    assert steps.steps[0].infos["speed"].tolist() == [1.0, 1.0]
    assert steps.steps[3].infos["final_info"]["won"].tolist() == [True, True]


@pytest.mark.parametrize("overlap", [False, True])
def test_it_works_beside_learning_and_costs_nothing_where_nobody_listens(overlap: bool) -> None:
    agent = PPO(CounterEnv, overlap=overlap, device="cpu", **SMALL)
    agent.learn(total_timesteps=16)
    assert agent._session.trainer.collector.on_step is None
    steps = Steps()
    agent.learn(total_timesteps=48, callbacks=[steps])
    assert len(steps.steps) == 16
    agent.learn(total_timesteps=64)
    assert agent._session.trainer.collector.on_step is None and len(steps.steps) == 16


def test_steps_that_nobody_sees_are_refused() -> None:
    agent = PPO("CartPole-v1", env={"backend": "tensor"}, device="cpu", **SMALL)
    with pytest.raises(UserError, match="Steps wants to see every step.*env.backend=tensor.*use the backend native"):
        agent.learn(16, Steps())
    agent = PPO("CartPole-v1", env={"backend": "tensor"}, device="cpu", **{**SMALL, "logging": {"info_keys": ["x"]}})
    with pytest.raises(UserError, match="LogInfos wants to see every step"):
        agent.learn(16)
    box = spaces.Box(0, 1, (1,))
    rows = np.zeros((2, 1), np.float32)
    data = TransitionDataset(box, box, obs=rows, actions=rows, rewards=rows[:, 0], next_obs=rows, terminated=rows[:, 0])
    trainer = OfflineTrainer(None, data, 10, [Steps()], seed=0)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="learning from a dataset takes none"):
        trainer.train()


@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_infos_of_steps_count_and_those_of_resets_do_not(autoreset: str) -> None:
    settings = {**SMALL, "logging": {"every": 0, "info_keys": ["speed", "won", "nested.deep"]}, "num_steps": 20}
    metrics = PPO(InfoEnv, env={"autoreset": autoreset}, **settings).learn(total_timesteps=32).metrics
    mean = 2.5 if autoreset != "next_step" else pytest.approx(2.5)
    assert metrics["info/speed"] == mean and metrics["info/nested.deep"] == mean
    assert metrics["info/won"] == 1.0


def test_infos_that_are_no_numbers_are_named() -> None:
    for key, message in [("name", "'name' is not a number, but 'x'"), ("pair", r"'pair' is not one number.*\(2, 2\)")]:
        with pytest.raises(UserError, match=message):
            PPO(InfoEnv, **{**SMALL, "logging": {"info_keys": [key]}}).learn(16)
    with pytest.warns(UserWarning, match="no environment has put sped into its info"):
        PPO(InfoEnv, **{**SMALL, "logging": {"info_keys": ["sped", "speed"]}}).learn(16)


def test_values_of_those_who_say_something() -> None:
    flags = np.zeros(3, bool)
    infos = {"x": np.array([1.0, 2.0, 3.0]), "_x": np.array([True, False, True])}
    record = StepRecord(flags, flags, flags, flags, flags, flags, np.array([True, True, False]), None, infos)
    assert info_values(record, "x").tolist() == [1.0]
    assert info_values(record, "y").tolist() == [] == info_values(record, "x.y").tolist()


class Logs(Callback):
    def on_step(self, trainer: Any, step: StepRecord) -> None:
        trainer.log("mine/reward", step.rewards.mean())

    def on_iteration_end(self, trainer: Any) -> None:
        trainer.log("iterations", trainer.iterations)


def test_what_a_callback_logs_is_in_the_metrics(tmp_path: Path) -> None:
    agent = PPO(InfoEnv, output_dir=tmp_path, **{**SMALL, "logging": {"every": 32, "console": "off"}})
    result = agent.learn(total_timesteps=64, callbacks=Logs())
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(line["mine/reward"], line["iterations"]) for line in lines] == [(2.5, 1.5), (2.5, 3.5)]
    assert result.metrics["mine/reward"] == 2.5
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    assert {"mine/reward", "rollout/iterations"} <= set(events.Tags()["scalars"])


def test_what_was_logged_since_the_last_report_is_resumed(tmp_path: Path) -> None:
    settings = {**SMALL, "logging": {"every": 64, "console": "off", "info_keys": ["speed"]}}
    agent = PPO(InfoEnv, output_dir=tmp_path, checkpoint={"every": 16, "keep": 9}, evaluation={"every": 0}, **settings)
    whole = agent.learn(64, Logs())
    part = PPO.load(whole.run_dir / "checkpoints" / "step_000000016", env=InfoEnv).learn(64, Logs()).metrics
    assert whole.metrics["iterations"] == 2.5, "the mean of four iterations"
    for name in ("iterations", "mine/reward", "info/speed"):
        assert part[name] == whole.metrics[name]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("train/loss", 1.0, "a name such as"), ("", 1.0, "a name such as"), ("x", "fast", "takes a number, got 'fast'")],
)
def test_what_cannot_be_logged_is_refused(name: str, value: Any, message: str) -> None:
    class Logging(BaseCallback):
        def on_training_start(self, trainer: Any) -> None:
            trainer.log(name, value)

    with pytest.raises(UserError, match=message):
        PPO(CounterEnv, **SMALL).learn(16, Logging())
