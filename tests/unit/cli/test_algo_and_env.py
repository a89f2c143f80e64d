"""`train --algo ALGO --env ENV_ID`: an algorithm's defaults on any environment, and both on top of presets and files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_training.cli.main import main

Shown = dict[str, dict[str, object]]


def dry_run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Shown:
    assert main(["train", *arguments, "--dry-run", "--json"]) == 0
    shown: Shown = json.loads(capsys.readouterr().out)
    return shown


@pytest.mark.parametrize(
    "arguments",
    [
        ["--algo", "sac", "--env", "Pendulum-v1"],
        ["sac", "--env", "Pendulum-v1"],
        ["sac", "--set", "env_id=Pendulum-v1"],
    ],
    ids=" ".join,
)
def test_an_algorithm_and_an_environment_take_the_defaults(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = dry_run(arguments, capsys)
    assert shown["algo"] == {"value": "sac", "origin": "command line"}
    assert shown["env_id"] == {"value": "Pendulum-v1", "origin": "command line"}
    assert shown["hyperparams.tau"] == {"value": 0.005, "origin": "algorithm default"}
    assert shown["policy.hidden_sizes"] == {"value": [256, 256], "origin": "algorithm default"}
    assert shown["policy.squash"]["origin"] == "default"
    assert not [key for key, entry in shown.items() if "preset" in str(entry["origin"])]


def test_an_environment_alone_is_for_ppo(capsys: pytest.CaptureFixture[str]) -> None:
    shown = dry_run(["--env", "Acrobot-v1", "--set", "hyperparams.gamma=0.9"], capsys)
    assert shown["algo"]["value"] == "ppo" and shown["hyperparams.gamma"] == {"value": 0.9, "origin": "command line"}


def test_each_part_of_a_setting_has_its_own_origin(capsys: pytest.CaptureFixture[str]) -> None:
    beta = ["--set", "hyperparams.prioritized=true", "--set", "hyperparams.per_beta={start: 0.5, end: 1.0}"]
    shown = dry_run(["dqn", "--env", "CartPole-v1", *beta], capsys)
    assert shown["hyperparams.per_beta.start"]["origin"] == "command line"
    assert shown["hyperparams.per_beta.fraction"]["origin"] == "algorithm default"


def test_both_go_on_top_of_a_preset_and_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = dry_run(["ppo/cartpole", "--env", "Acrobot-v1", "--algo", "ppo"], capsys)
    assert shown["env_id"]["value"] == "Acrobot-v1" and "preset" in str(shown["hyperparams.update_epochs"]["origin"])
    (tmp_path / "x.yaml").write_text("env_id: CartPole-v1\nalgo: dqn\n", encoding="utf-8")
    shown = dry_run(["--config", str(tmp_path / "x.yaml"), "--algo", "a2c", "--env", "Acrobot-v1"], capsys)
    assert (shown["algo"]["value"], shown["env_id"]["value"]) == ("a2c", "Acrobot-v1")


REFUSED = {
    "no environment": (["--algo", "sac"], "sac needs an environment, e.g. axiomrl train --algo sac --env Pendulum-v1"),
    "no environment, bare": (["ppo"], "ppo needs an environment"),
    "unknown algorithm": (
        ["--algo", "sacc", "--env", "Pendulum-v1"],
        "no algorithm or preset 'sacc'; did you mean 'sac'?",
    ),
    "unknown bare name": (["pppo"], "no algorithm or preset 'pppo'; did you mean 'ppo'?"),
    "nothing like it": (["zzzzz"], "algorithms: a2c, c51"),
    "two algorithms": (["ppo", "--algo", "sac", "--env", "Pendulum-v1"], "two algorithms are named"),
    "another algorithm's preset": (["ppo/cartpole", "--algo", "dqn"], "written for another algorithm"),
    "unknown environment": (["sac", "--env", "Pendulm-v1"], "did you mean Pendulum-v1"),
    "the wrong kind of action": (["sac", "--env", "CartPole-v1"], "Use an algorithm for discrete actions"),
    "env twice": (["sac", "--env", "Pendulum-v1", "--set", "env_id=CartPole-v1"], "env_id is given twice"),
    "algo twice": (["--algo", "sac", "--env", "Pendulum-v1", "--set", "algo=td3"], "algo is given twice"),
    "seed twice": (["--seed", "1", "--set", "seed=2"], "seed is given twice, by --set seed=2 and by --seed"),
    "--set twice": (
        ["--set", "seed=1", "--set", "seed=2"],
        "seed is given twice, by --set seed=2 and by another --set",
    ),
    "an algorithm and a file": (["ppo", "--config", "x.yaml"], "not both"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = REFUSED[name]
    assert main(["train", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("env_id", "module", "extra"), [("Hopper-v5", "mujoco", "mujoco"), ("LunarLander-v3", "Box2D", "box2d")]
)
def test_an_environment_of_an_extra_names_the_pip_command(
    env_id: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else real(name, *rest))
    assert main(["train", "--algo", "ppo", "--env", env_id]) == 2
    assert f'pip install "axiomrl[{extra}]"' in capsys.readouterr().err


def test_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--total-timesteps", "64", "--num-envs", "2", "--set", "hyperparams.num_steps=16"]
    off = ["--set", "evaluation.every=0", "--set", "logging.tensorboard=false", "--output-dir", str(tmp_path)]
    assert main(["train", "a2c", "--env", "CartPole-v1", *short, *off]) == 0
    assert "A2C on CartPole-v1, seed 0: 64 steps" in capsys.readouterr().out
