"""`axiomrl check-env`: its arguments, what it prints, its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rl_training.cli import main

MODULE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class Pole(CartPoleEnv):
    def __init__(self, old=False):
        super().__init__()
        self.old = old

    def step(self, action):
        result = super().step(action)
        return result[:4] if self.old else result

gym.register("CheckedPole-v0", Pole)
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    (tmp_path / "checked_pole.py").write_text(MODULE)
    return str(tmp_path / "checked_pole.py")


def test_an_environment_that_is_right(capsys: Any) -> None:
    assert main(["check-env", "CartPole-v1", "--steps", "100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("CartPole-v1\n") and out.endswith("passed: 0 errors, 0 warnings\n")
    assert "resume grade: exact" in out


def test_import_and_set(module: str, capsys: Any) -> None:
    assert main(["check-env", "CheckedPole-v0", "--import", module, "--steps", "50"]) == 0
    capsys.readouterr()
    arguments = ["check-env", "CheckedPole-v0", "--import", module, "--set", "env.kwargs.old=true"]
    assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "error: api: environment 'CheckedPole-v0'" in out and "must return five values" in out
    assert out.endswith("not passed: 1 error, 0 warnings\n")
    assert main(["check-env", "CliffWalking-v1", "--steps", "60", "--set", "env.max_episode_steps=20"]) == 0
    assert "time limit: 20 steps" in capsys.readouterr().out


def test_json(capsys: Any) -> None:
    assert main(["check-env", "CliffWalking-v1", "--steps", "50", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["env"] == "CliffWalking-v1" and report["passed"] is True
    levels = {finding["check"]: finding["level"] for finding in report["findings"]}
    assert levels == {"endless": "warning", "seeding": "info"} and report["findings"][0]["fix"]


def test_steps_and_seed(capsys: Any) -> None:
    seen = []
    for seed in ("0", "0", "1"):
        assert main(["check-env", "Pendulum-v1", "--steps", "40", "--seed", seed]) == 0
        seen.append(next(line for line in capsys.readouterr().out.splitlines() if "rewards" in line))
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["CartPole-v1", "--set", "hyperparams.gamma=1"], "only keys of the env section"),
        (["CartPole-v1", "--set", "env.bakend=sync"], "did you mean 'backend'"),
        (["CartPole-v1", "--steps", "0"], "steps must be at least 1"),
        (["CartPole-v1", "--seed", "-1"], "--seed must be from 0"),
        (["CartPole-v1", "--import", "no_such_module_here"], "--import no_such_module_here"),
    ],
)
def test_mistakes_of_the_user_are_exit_code_2(arguments: list[str], message: str, capsys: Any) -> None:
    assert main(["check-env", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_id_is_named(capsys: Any) -> None:
    assert main(["check-env", "CartPole-v9"]) == 1
    assert "did you mean CartPole-v1" in capsys.readouterr().out
