"""What no machine can hold is refused in words before it is allocated, and what fails all the same ends in words too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import DQN, PPO, SAC, TrainConfig
from rl_training.cli.main import main
from rl_training.experiment.run import memory
from rl_training.experiment.run.memory import memory_limit, memory_named, size_text
from rl_training.utils.errors import AxiomError, ConfigError, OutOfMemoryError

HUGE = 10**12


class Images(gym.Env[Any, Any]):
    """Observations as large as CarRacing's."""

    observation_space = spaces.Box(0, 255, (96, 96, 3), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (3,))

    def reset(self, **kwargs: Any) -> Any:
        return self.observation_space.low, {}

    def step(self, action: Any) -> Any:
        return self.observation_space.low, 0.0, False, False, {}


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_limit", lambda device=None: 4 << 30)


@pytest.mark.parametrize(
    ("cls", "env", "settings", "message"),
    [
        (SAC, "Pendulum-v1", {"policy": {"critic_hidden_sizes": [100_000, 100_000]}}, "20,00.,...,... weights.*GiB"),
        (PPO, "CartPole-v1", {"policy": {"hidden_sizes": [HUGE]}}, "weights, which take .* TiB .*policy.hidden_sizes"),
        (PPO, "CartPole-v1", {"num_steps": HUGE}, "num_steps × num_envs = 8,000,000,000,000 steps, which take"),
        (PPO, "CartPole-v1", {"num_envs": HUGE}, "num_envs is 1,000,000,000,000: sync environments take .* at least"),
        (PPO, "CartPole-v1", {"num_envs": 10_000, "env": {"backend": "async"}}, "async environments take"),
        (PPO, "CartPole-v1", {"num_envs": HUGE, "env": {"backend": "tensor"}}, "tensor environments take"),
        (PPO, "CartPole-v1", {"evaluation": {"num_envs": HUGE, "episodes": 1_000_000}}, "evaluation.num_envs is"),
        (DQN, "CartPole-v1", {"buffer_size": HUGE}, "room for 1,000,000,000,000 transitions.*replay_storage: disk"),
        (DQN, "CartPole-v1", {"buffer_size": HUGE, "replay_storage": "disk"}, "buffer_size: 100000 or less"),
        (
            SAC,
            Images,
            {},
            r"(?s)which take 25.8 GiB \(27,648 bytes.*has 4.0 GiB.*buffer_size: 70000 or less, or .*disk",
        ),
        (PPO, "CartPole-v1", {"num_threads": 100_000}, "num_threads.*must be >= 1 and <= 256"),
    ],
)
@pytest.mark.usefixtures("small_machine")
def test_what_does_not_fit_is_refused_with_the_size(cls: Any, env: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}" if not message.startswith("(?s)") else message):
        cls(env, **settings)


@pytest.mark.usefixtures("small_machine")
def test_what_fits_is_not_refused(tmp_path: Path) -> None:
    tiny = {"hidden_sizes": (2,)}
    agent = SAC(Images, buffer_size=1_000_000, replay_storage="disk", policy=tiny)
    agent = SAC(Images, buffer_size=50_000, policy=tiny)
    path = agent.save(tmp_path / "agent")
    assert SAC.load(path, buffer_size=10_000_000).predict(Images.observation_space.low) is not None, "it can still play"
    with pytest.raises(ConfigError, match="which take"):
        SAC.load(path, env=Images, buffer_size=10_000_000).learn(100)


@pytest.mark.usefixtures("small_machine")
def test_nothing_is_written_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["train", "--output-dir", str(tmp_path), "--set", f"hyperparams.num_steps={HUGE}"])
    assert code == 2 and "which take" in capsys.readouterr().err and list(tmp_path.iterdir()) == []


def test_the_limit_is_the_machines_or_the_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory_limit()
    assert 1 << 28 < whole < 1 << 50
    for text, expected in (("1048576\n", 1 << 20), ("max\n", None)):
        (tmp_path / "limit").write_text(text)
        monkeypatch.setattr(memory, "_CGROUP_LIMITS", (str(tmp_path / "limit"), str(tmp_path / "none")))
        assert memory_limit() == expected or (expected is None and memory_limit() >= whole)
    assert [size_text(size) for size in (12, 1 << 21, 3 << 30, 5 << 40)] == [
        "12 bytes",
        "2.0 MiB",
        "3.0 GiB",
        "5.0 TiB",
    ]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("x] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.OutOfMemoryError("GPU"),
    ],
)
def test_memory_that_runs_out_all_the_same(error: Exception) -> None:
    with (
        pytest.raises(OutOfMemoryError, match="memory ran out while training: .*\n.*num_envs"),
        memory_named("training"),
    ):
        raise error
    with pytest.raises(RuntimeError, match="other"), memory_named("training"):
        raise RuntimeError("other")


@pytest.mark.parametrize(("cls", "env"), [(PPO, "CartPole-v1"), (DQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_an_absurd_learning_rate_ends_in_words(cls: Any, env: str) -> None:
    settings: dict[str, Any] = {"num_envs": 2, "evaluation": {"every": 100, "episodes": 1}, "learning_rate": 1e30}
    settings |= {"num_steps": 16} if cls is PPO else {"learning_starts": 32, "batch_size": 16}
    agent = cls(env, **settings)
    try:
        agent.learn(total_timesteps=200)
    except AxiomError as error:
        assert "became NaN or infinite" in str(error) and "learning rate" in str(error)
    assert all(torch.isfinite(value).all() for value in agent.get_parameters().values())


def test_an_absurd_learning_rate_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["hyperparams.learning_rate=1e30", "evaluation.every=0", "logging.console=off"]
    options = [part for setting in settings for part in ("--set", setting)]
    assert main(["train", "--output-dir", str(tmp_path), "--total-timesteps", "2048", *options]) == 1
    printed = capsys.readouterr().err
    assert "became NaN or infinite" in printed and "Traceback" not in printed


def test_a_config_from_a_larger_machine_is_still_a_config() -> None:
    assert TrainConfig(num_threads=128, num_envs=HUGE).num_envs == HUGE
