"""Interrupting an agent, looking into it, and saving it in parts."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.envs import CounterEnv
from rl_training import DQN, PPO, Callback, TrainConfig, load_agent
from rl_training.trainer import train
from rl_training.utils.errors import ConfigError, UserError

SMALL: dict[str, Any] = {"num_envs": 2, "num_steps": 16, "seed": 0}
REPLAY: dict[str, Any] = {"learning_starts": 16, "batch_size": 8, "buffer_size": 200, "num_envs": 2, "seed": 0}


class Signal(Callback):
    """Sends this process a signal after the first iteration."""

    def __init__(self, number: int):
        self.number = number

    def on_iteration_end(self, trainer: Any) -> None:
        if trainer.iterations == 1:
            signal.raise_signal(self.number)


class TestSignals:
    def test_ctrl_c_saves_and_then_raises(self, tmp_path: Path) -> None:
        agent = PPO("CartPole-v1", output_dir=tmp_path, logging={"console": "off"}, **SMALL)
        with pytest.raises(KeyboardInterrupt):
            agent.learn(total_timesteps=640, callbacks=Signal(signal.SIGINT))
        (run,) = tmp_path.iterdir()
        metadata = json.loads((run / "metadata.json").read_text())
        assert (metadata["status"], metadata["stop_reason"]) == ("interrupted", "stopped by SIGINT")
        assert load_agent(run).num_timesteps == 32 == agent.num_timesteps
        assert agent.learn(total_timesteps=64).exit_code == 0, "it can go on"

    def test_ctrl_c_without_a_run_folder(self) -> None:
        agent = PPO("CartPole-v1", **SMALL)
        with pytest.raises(KeyboardInterrupt):
            agent.learn(total_timesteps=640, callbacks=[Signal(signal.SIGINT)])
        assert agent.num_timesteps == 32

    def test_sigterm_goes_to_the_handler_that_was_there(self) -> None:
        seen: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
        try:
            result = PPO("CartPole-v1", **SMALL).learn(total_timesteps=640, callbacks=Signal(signal.SIGTERM))
        finally:
            signal.signal(signal.SIGTERM, before)
        assert seen == [signal.SIGTERM] and result.exit_code == 143 and result.metrics["global_step"] == 32

    def test_training_by_function_call(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("rl_training.trainer.start_run", lambda config: type("R", (), {"exit_code": 130}))
        with pytest.raises(KeyboardInterrupt):
            train(TrainConfig())


class TestCallbacks:
    def test_one_or_several(self) -> None:
        seen: list[str] = []

        class Saying(Callback):
            def on_training_start(self, trainer: Any) -> None:
                seen.append("one")

        PPO("CartPole-v1", **SMALL).learn(32, Saying())
        PPO("CartPole-v1", **SMALL).learn(32, (Saying(),))
        assert seen == ["one", "one"]

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(UserError, match="derived from rl_training.Callback, not <class"):
            PPO("CartPole-v1", **SMALL).learn(32, [Callback, Callback()])
        with pytest.raises(UserError, match="derived from rl_training.Callback"):
            PPO("CartPole-v1", **SMALL).learn(32, print)


class TestReplayBuffer:
    def test_it_is_the_one_that_is_learned_from(self) -> None:
        agent = DQN("CartPole-v1", **REPLAY)
        assert len(agent.replay_buffer) == 0
        agent.learn(total_timesteps=40)
        assert len(agent.replay_buffer) == 40 and agent.replay_buffer is agent._session.trainer.replay
        assert agent.replay_buffer.sample(4).obs.shape == (4, 4)

    def test_a_loaded_one_has_it_too(self, tmp_path: Path) -> None:
        agent = DQN("CartPole-v1", **REPLAY)
        agent.learn(total_timesteps=40)
        assert len(DQN.load(agent.save(tmp_path / "x")).replay_buffer) == 40

    def test_on_policy_agents_have_none(self) -> None:
        with pytest.raises(UserError, match="PPO learns from what it has just done, and has no replay buffer"):
            _ = PPO("CartPole-v1", **SMALL).replay_buffer

    def test_it_can_be_left_out_of_a_saved_agent(self, tmp_path: Path) -> None:
        agent = DQN(CounterEnv, **REPLAY)
        agent.learn(total_timesteps=40)
        whole, small = agent.save(tmp_path / "whole"), agent.save(tmp_path / "small", include_replay=False)
        assert not (small / "replay").exists() and len(list(small.iterdir())) < len(list(whole.iterdir()))
        loaded = DQN.load(small, env=CounterEnv)
        assert loaded.num_timesteps == 40
        again = DQN.load(loaded.save(tmp_path / "again"), env=CounterEnv)
        for one in (loaded, again):
            with pytest.warns(UserWarning, match="saved without its replay buffer.*an empty one"):
                result = one.learn(total_timesteps=60)
            assert result.resume_grade == "episode-boundary" and "without its replay buffer" in result.notes[0]
            assert len(one.replay_buffer) == 20
        agent = PPO("CartPole-v1", **SMALL)
        agent.learn(32)
        assert PPO.load(agent.save(tmp_path / "ppo", include_replay=False)).learn(64).resume_grade == "exact"


class TestParameters:
    @pytest.mark.parametrize("cls", [PPO, DQN])
    def test_they_can_be_taken_over_by_another_agent(self, cls: Any) -> None:
        settings = SMALL if cls is PPO else REPLAY
        agent, other = cls("CartPole-v1", **settings), cls("CartPole-v1", **{**settings, "seed": 1})
        agent.learn(total_timesteps=64)
        parameters = agent.get_parameters()
        assert all(isinstance(value, torch.Tensor) for value in parameters.values())
        other.set_parameters(parameters)
        assert all(torch.equal(value, other.get_parameters()[name]) for name, value in parameters.items())
        obs = agent._spaces.observation.sample()
        assert agent.predict(obs)[0] == other.predict(obs)[0]
        assert any(name.startswith("targets.") for name in parameters) is (cls is DQN)

    def test_what_is_taken_out_is_a_copy(self) -> None:
        agent = PPO("CartPole-v1", **SMALL)
        for value in agent.get_parameters().values():
            value.zero_()
        assert any(value.any() for value in agent.get_parameters().values())

    def test_what_does_not_fit_is_refused_and_changes_nothing(self) -> None:
        agent = PPO("CartPole-v1", **SMALL)
        before = agent.get_parameters()
        name = next(iter(before))
        with pytest.raises(UserError, match=f"only one of them has: {name}"):
            agent.set_parameters({key: value for key, value in before.items() if key != name})
        zeros = {key: torch.zeros_like(value) for key, value in before.items()}
        with pytest.raises(UserError, match=f"'{name}' has the shape"):
            agent.set_parameters({**zeros, name: torch.zeros(1, 2, 3)})
        assert all(torch.equal(value, agent.get_parameters()[key]) for key, value in before.items())

    def test_training_goes_on_from_them(self) -> None:
        agent, other = PPO("CartPole-v1", **SMALL), PPO("CartPole-v1", **SMALL)
        other.set_parameters(agent.get_parameters())
        agent.learn(64), other.learn(64)
        assert all(torch.equal(value, other.get_parameters()[key]) for key, value in agent.get_parameters().items())


def test_paths_may_begin_with_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    agent = PPO("CartPole-v1", output_dir="~/runs", logging={"console": "off"}, **SMALL)
    assert agent.save("~/x") == tmp_path / "x" and (tmp_path / "x").is_dir()
    assert PPO.load("~/x").config == agent.config == load_agent("~/x").config
    run = agent.learn(total_timesteps=32).run_dir
    assert run is not None and run.parent == tmp_path / "runs"


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'gamma' is given twice"):
        PPO("CartPole-v1", gamma=0.9, hyperparams={"gamma": 0.8})


def test_no_output_dir_turns_off_the_run_folder_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = TrainConfig(num_envs=2, hyperparams={"num_steps": 16}, evaluation={"every": 0}, logging={"console": "off"})
    agent = PPO(config, output_dir=None)
    assert agent.learn(32).run_dir is None
    agent.save("x")
    assert PPO.load("x", output_dir=None).learn(64).run_dir is None
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
