"""When updates are compiled, and what is said when they cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.experiment import compiler, registry
from rl_training.experiment.compiler import compiling_problem, wants_compiling
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import complete_config
from rl_training.utils.errors import ConfigError

CPU = torch.device("cpu")


def wanted(**settings: Any) -> bool:
    config, hyperparams = complete_config(TrainConfig(**settings))
    return wants_compiling(config, registry.load(config.algo), hyperparams, CPU)


@pytest.fixture
def possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compiling_problem", lambda device: None)


@pytest.mark.usefixtures("possible")
def test_only_where_asked_and_with_auto_only_where_it_pays() -> None:
    assert not wanted(algo="sac", env_id="Pendulum-v1", total_timesteps=10**9)
    assert wanted(algo="sac", env_id="Pendulum-v1", total_timesteps=1, compile=True)
    # One update per step; PPO takes 4 epochs of 4 minibatches on 8 × 128 steps: one update on 64 steps.
    for settings, least in (({"algo": "sac", "env_id": "Pendulum-v1"}, 50_000), ({"algo": "ppo"}, 64 * 50_000)):
        assert wanted(**settings, total_timesteps=least, compile="auto")
        assert not wanted(**settings, total_timesteps=least - 1, compile="auto")


@pytest.mark.usefixtures("possible")
def test_an_algorithm_that_cannot_be_compiled() -> None:
    with pytest.raises(ConfigError, match="trpo cannot be compiled: leave out"):
        wanted(algo="trpo", compile=True)
    assert not wanted(algo="trpo", compile="auto", total_timesteps=10**9)


def test_without_a_compiler_the_run_goes_on_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(UserWarning, match="the C\\+\\+ compiler no-such-compiler is not there: install g\\+\\+"):
        assert not wanted(algo="dqn", compile=True)
    assert not wanted(algo="dqn", compile="auto", total_timesteps=10**9)


def test_an_old_torch_and_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    for device in ("cuda", "mps"):
        assert f"for a CPU only, and this run uses the device {device}" in str(compiling_problem(torch.device(device)))
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    assert "PyTorch 2.9.1 cannot compile" in str(compiling_problem(CPU))
