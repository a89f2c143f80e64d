"""Every key of a config is used or refused: each has an entry here, and a key without one fails."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import nn

from helpers.envs import CounterEnv
from rl_training import PPO, Callback, TrainConfig, agent_class, register_encoder
from rl_training.utils.errors import UserError

BASE: dict[str, Any] = {
    "env_id": "CartPole-v1",
    "total_timesteps": 64,
    "num_envs": 2,
    "device": "cpu",
    "hyperparams": {"num_steps": 16},
    "policy": {"hidden_sizes": [4]},
    "evaluation": {"every": 0, "episodes": 2, "num_envs": 2},
    "checkpoint": {"every": 32, "keep": 3},
    "logging": {"every": 32, "console": "off", "tensorboard": False},
}


class Run:
    """A short training with some keys changed, and what came of it."""

    def __init__(self, folder: Path, changes: dict[str, Any]):
        values: dict[str, Any] = {"output_dir": str(folder / "runs"), **BASE}
        for key, value in changes.items():
            section, _, name = key.partition(".")
            if name:
                values[section] = {**values.get(section, {}), name: value}
            elif isinstance(value, dict):
                values[section] = {**values.get(section, {}), **value}
            else:
                values[section] = value
        self.config = TrainConfig(**values)
        self.agent = agent_class(self.config.algo)(self.config)
        self.threads = 0
        self._result: Any = None

    @property
    def result(self) -> Any:
        if self._result is None:
            run = self

            class Look(Callback):
                def on_iteration_end(self, trainer: Any) -> None:
                    run.threads = torch.get_num_threads()

            self._result = self.agent.learn(callbacks=Look())
        return self._result

    def lines(self, name: str) -> list[Any]:
        path = self.result.run_dir / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def weights(run: Run) -> Any:
    return run.result and {name: value.tolist() for name, value in run.agent.get_parameters().items()}


def first_weights(run: Run) -> Any:
    return {name: value.tolist() for name, value in run.agent.get_parameters().items()}


def envs(attribute: str) -> Callable[[Run], Any]:
    return lambda run: getattr(run.agent._envs, attribute)


def evaluations(run: Run) -> Any:
    return [(line["step"], line["returns"], line["lengths"]) for line in run.lines("evaluations.jsonl")]


def checkpoints(run: Run) -> Any:
    return sorted(path.name for path in (run.result.run_dir / "checkpoints").iterdir())


def stop_reason(run: Run) -> Any:
    return run.result.stop_reason


def videos(run: Run) -> Any:
    return {path.name: path.stat().st_size for path in (run.result.run_dir / "videos").iterdir()}


RECORD = {"video": {"every": 32, "episodes": 1}}
EVALUATE = {"evaluation": {"every": 32}}
PENDULUM: dict[str, Any] = {"env_id": "Pendulum-v1"}

# Key: what it is changed to, what is to be seen of that (or the message that refuses it), and what goes with it in both runs.
USED: dict[str, tuple[Any, Callable[[Run], Any], dict[str, Any]]] = {
    "algo": ("a2c", lambda run: type(run.agent), {}),
    "env_id": ("Acrobot-v1", lambda run: run.agent._spaces.observation.shape, {}),
    "seed": (5, first_weights, {}),
    "total_timesteps": (96, lambda run: run.result.metrics["global_step"], {}),
    "num_envs": (3, envs("num_envs"), {}),
    "num_threads": (2, lambda run: (run.result, run.threads)[1], {}),
    "execution": ("eager", lambda run: run.agent.algorithm.executor.records, {}),
    "check_execution_every": (7, lambda run: run.agent.algorithm.executor.check_every, {}),
    "overlap": (True, weights, {}),
    "precision": ("bf16", weights, {}),
    "output_dir": ("other", lambda run: run.result.run_dir.parent.name, {}),
    "hyperparams": ({"gamma": 0.5}, weights, {}),
    "policy.hidden_sizes": ([5], first_weights, {}),
    "policy.actor_hidden_sizes": ([5], first_weights, {}),
    "policy.critic_hidden_sizes": ([5], first_weights, {}),
    "policy.encoder": ("Doubled", first_weights, {}),
    "policy.activation": ("relu", weights, {}),
    "policy.shared": (True, first_weights, {}),
    "policy.orthogonal_init": (False, first_weights, {}),
    "policy.log_std_init": (-1.0, first_weights, PENDULUM),
    "policy.squash": (True, weights, PENDULUM),
    "env.backend": ("native", lambda run: type(run.agent._envs).__name__, {}),
    "env.kwargs": ({"g": 1.0}, weights, PENDULUM),
    "env.autoreset": ("next_step", envs("autoreset_mode"), {}),
    "env.max_episode_steps": (3, lambda run: run.result.metrics["episode_length"], {}),
    "env.wrappers": (["TimeAwareObservation"], lambda run: run.agent._spaces.observation.shape, {}),
    "env.renew": (True, lambda run: (run.result, len(Made.made) > 20)[1], {"env_id": "ConfigKeyMade-v0"}),
    "env.action_masks": (False, lambda run: type(run.agent._spaces.observation).__name__, {"env_id": "KeyRing-v0"}),
    "env.normalize_observations": (True, weights, {}),
    "env.normalize_rewards": (True, weights, {}),
    "env.clip_rewards": (True, weights, {"env_id": "Pendulum-v1"}),
    "env.workers": (1, lambda run: len(run.agent._envs.processes), {"num_envs": 2, "env": {"backend": "async"}}),
    "env.restart_workers": (2, envs("restarts_left"), {"env": {"backend": "async"}}),
    "evaluation.every": (64, evaluations, EVALUATE),
    "evaluation.episodes": (3, evaluations, EVALUATE),
    "evaluation.max_episode_steps": (3, evaluations, EVALUATE),
    "evaluation.num_envs": (1, evaluations, EVALUATE),
    "evaluation.deterministic": (False, evaluations, EVALUATE),
    "evaluation.wrappers": ([{"name": "TimeLimit", "max_episode_steps": 3}], evaluations, EVALUATE),
    "checkpoint.every": (64, checkpoints, {}),
    "checkpoint.keep": (1, checkpoints, {}),
    "logging.every": (64, lambda run: len(run.lines("metrics.jsonl")), {}),
    "logging.tensorboard": (True, lambda run: len(list((run.result.run_dir / "tensorboard").iterdir())), {}),
    "logging.info_keys": (["number"], lambda run: "info/number" in run.result.metrics, {"env_id": "ConfigKeyMade-v0"}),
    "stopping.reward": (1.0, stop_reason, EVALUATE),
    "stopping.patience": (1, stop_reason, {"evaluation": {"every": 16}, "env_id": "ConfigKeyMade-v0"}),
    "stopping.max_seconds": (1e-9, stop_reason, {}),
    "video.every": (64, videos, RECORD),
    "video.episodes": (2, videos, RECORD),
    "video.keep": (1, videos, RECORD),
    "video.max_seconds": (0.1, videos, RECORD),
}
REFUSED = {"device": ("cuda:99", "cuda:99.* is not available|does not exist")}
ELSEWHERE = {"logging.console": "test_the_console", "env.atari": "test_how_a_game_is_played"}


class Made(CounterEnv):
    """Remembers every one that was made."""

    made: typing.ClassVar[list[Any]] = []

    def __init__(self) -> None:
        super().__init__(((2, "terminated"),))
        self.made.append(self)

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], {"number": 1.0})


class Doubled(nn.Module):
    """An encoder: the observation, twice."""

    def __init__(self, observation_space: Any):
        super().__init__()
        self.features = 2 * observation_space.shape[0]

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.cat([obs, obs], dim=-1)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gym.register("ConfigKeyMade-v0", Made)
    register_encoder("Doubled", Doubled)
    yield
    del gym.registry["ConfigKeyMade-v0"]


def config_keys() -> set[str]:
    keys = set()
    hints = typing.get_type_hints(TrainConfig)
    for field in dataclasses.fields(TrainConfig):
        section = hints[field.name]
        parts = dataclasses.fields(section) if dataclasses.is_dataclass(section) else ()
        keys |= {f"{field.name}.{part.name}" for part in parts} or {field.name}
    return keys


def test_every_key_has_an_entry() -> None:
    assert {*USED, *REFUSED, *ELSEWHERE} == config_keys(), "a new key needs an entry that shows what it changes"
    assert all(name in globals() for name in ELSEWHERE.values())


@pytest.mark.parametrize("key", USED)
def test_it_changes_something(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    value, observe, both = USED[key]
    Made.made.clear()
    usual = Run(tmp_path, both)
    before = observe(usual)
    usual.agent.close()
    Made.made.clear()
    changed = Run(tmp_path, {**both, key: value})
    after = observe(changed)
    changed.agent.close()
    assert before != after


@pytest.mark.parametrize("key", REFUSED)
def test_it_is_refused(key: str, tmp_path: Path) -> None:
    value, message = REFUSED[key]
    with pytest.raises(UserError, match=message):
        Run(tmp_path, {key: value})


@pytest.mark.parametrize("console", ["plain", "off", "live", "auto"])
def test_the_console(console: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    agent = PPO("CartPole-v1", num_envs=2, num_steps=16, output_dir=tmp_path, logging={"every": 0, "console": console})
    agent.learn(32)
    printed = "".join(capfd.readouterr())
    assert (printed == "") is (console == "off"), "there is no terminal to draw a panel on, so it is lines"


def test_how_a_game_is_played(tmp_path: Path) -> None:
    """Every key of `env.atari` has a test in tests/unit/envs/test_atari.py."""
    pytest.importorskip("ale_py")
    games = [
        Run(tmp_path, {"env_id": "ALE/Pong-v5", "env.atari": {"protocol": name}}) for name in ("machado", "classic")
    ]
    assert [game.agent._spaces.action.n for game in games] == [18, 6]
    for game in games:
        game.agent.close()
