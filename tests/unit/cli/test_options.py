"""One row per option of every command: given, it changes what the command does or prints, or it is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import shutil
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tyro

from helpers.run_folders import write_run
from rl_training.cli import watch, zoo
from rl_training.cli.main import COMMANDS, main
from rl_training.envs import check
from rl_training.envs.check_report import EnvReport
from rl_training.experiment.proof import conformance
from rl_training.experiment.proof import resume as proof
from rl_training.experiment.run import runner
from rl_training.utils.errors import UserError
from rl_training.zoo import benchmark, workers

TRAIN: dict[str, list[str]] = {
    "PRESET": ["a2c/cartpole"],
    "--algo": ["--algo=dqn", "--env=CartPole-v1"],
    "--env": ["--env=Acrobot-v1"],
    "--config": ["--config=mine.yaml"],
    "--set": ["--set=hyperparams.gamma=0.5"],
    "--seed": ["--seed=7"],
    "--total-timesteps": ["--total-timesteps=77"],
    "--num-envs": ["--num-envs=3"],
    "--device": ["--device=cpu"],
    "--output-dir": ["--output-dir=elsewhere"],
    "--import": ["--import=option_probe.py"],
    "--json": ["--dry-run", "--json"],
    "--seeds": ["--seeds=5-6"],
    "--jobs": ["--seeds=5-6", "--jobs=2"],
    "--dry-run": ["--dry-run"],
}
_CONFIG = {key: words for key, words in TRAIN.items() if key not in ("--seeds", "--jobs", "--dry-run", "--json")}
TABLE: dict[str, dict[str, list[str]]] = {
    "train": TRAIN,
    "zoo run": {**TRAIN, "--json": ["ppo/cartpole", "--dry-run", "--json"]},
    "eval": {
        "RUN|CHECKPOINT": ["nowhere"],
        "--episodes": ["RUN", "--episodes=3"],
        "--best": ["saved", "--best"],
        "--stochastic": ["RUN", "--stochastic"],
        "--seed": ["RUN", "--seed=99"],
        "--env": ["RUN", "--env=CartPole-v0"],
        "--video": ["RUN", "--episodes=1", "--video=out.mp4"],
        "--video-seconds": ["RUN", "--episodes=1", "--video=out.mp4", "--video-seconds=0.1"],
        "--import": ["RUN", "--import=option_probe.py"],
        "--json": ["RUN", "--json"],
    },
    "resume": {
        "RUN|CHECKPOINT": ["elsewhere"],
        "--set": ["RUN", "--set=hyperparams.gamma=0.5"],
        "--total-timesteps": ["RUN", "--total-timesteps=77"],
        "--device": ["RUN", "--device=cpu"],
        "--env": ["RUN", "--env=CartPole-v0"],
        "--import": ["RUN", "--import=option_probe.py"],
        "--json": ["FINISHED", "--json"],
    },
    "watch": {"RUN": ["runs/one"], "--once": ["--once"], "--json": ["--json"]},
    "report": {
        "RUNS": ["runs/one"],
        "--format": ["--format=csv"],
        "--json": ["--json"],
        "--output": ["--output=report.txt"],
    },
    "leaderboard": {
        "RUNS|RESULTS ...": ["runs/one"],
        "--env": ["runs", "--env=CartPole-v1"],
        "--algo": ["runs", "--algo=ppo"],
        "--min-seeds": ["runs", "--min-seeds=1"],
        "--compare-to": ["runs", "--compare-to=runs/one"],
        "--fail-on-regression": ["runs/six", "--compare-to=runs/one", "--fail-on-regression"],
        "--tolerance": ["runs", "--compare-to=runs/one", "--tolerance=1000"],
        "--format": ["runs", "--format=csv"],
        "--json": ["runs", "--json"],
        "--output": ["runs", "--output=board.txt"],
    },
    "verify-resume": {
        **_CONFIG,
        "--kills": ["--kills=3"],
        "--moments-seed": ["--moments-seed=4"],
        "--json": ["--json"],
    },
    "check-algorithm": {
        "ALGO": ["dqn"],
        "--set": ["ppo", "--set=num_steps=16"],
        "--total-timesteps": ["ppo", "--total-timesteps=77"],
        "--device": ["ppo", "--device=cuda"],
        "--import": ["ppo", "--import=option_probe.py"],
        "--json": ["ppo", "--json"],
    },
    "check-env": {
        "ENV_ID": ["Acrobot-v1"],
        "--set": ["CartPole-v1", "--set=env.max_episode_steps=7"],
        "--steps": ["CartPole-v1", "--steps=77"],
        "--seed": ["CartPole-v1", "--seed=7"],
        "--import": ["CartPole-v1", "--import=option_probe.py"],
        "--json": ["CartPole-v1", "--json"],
    },
    "doctor": {"--json": ["--json"], "--gl": ["--gl"]},
    "zoo list": {
        "--algo": ["--algo=ppo"],
        "--env": ["--env=cartpole"],
        "--family": ["--family=mujoco"],
        "--tier": ["--tier=unmeasured"],
        "--json": ["--json"],
    },
    "zoo show": {"PRESET": ["dqn/cartpole"], "--json": ["ppo/cartpole", "--json"]},
    "zoo benchmark": {
        "MANIFEST": ["ppo/cartpole"],
        "--seeds": ["smoke", "--seeds=5-6"],
        "--episodes": ["smoke", "--episodes=77"],
        "--set": ["smoke", "--set=num_envs=3"],
        "--jobs": ["smoke", "--jobs=3"],
        "--output": ["smoke", "--output=elsewhere"],
        "--redo": ["smoke", "--redo"],
        "--import": ["smoke", "--import=option_probe.py"],
        "--json": ["smoke", "--json"],
    },
}
"""Command -> option -> the words after the command that give it."""
WITHOUT: dict[tuple[str, str], list[str]] = {
    ("eval", ""): ["RUN"],
    ("eval", "--best"): ["saved"],
    ("eval", "--video"): ["RUN", "--episodes=1"],
    ("eval", "--video-seconds"): ["RUN", "--episodes=1", "--video=out.mp4"],
    ("resume", ""): ["RUN"],
    ("resume", "--json"): ["FINISHED"],
    ("leaderboard", ""): ["runs"],
    ("leaderboard", "--fail-on-regression"): ["runs/six", "--compare-to=runs/one"],
    ("leaderboard", "--tolerance"): ["runs", "--compare-to=runs/one"],
    ("check-algorithm", ""): ["ppo"],
    ("check-env", ""): ["CartPole-v1"],
    ("zoo show", ""): ["ppo/cartpole"],
    ("zoo run", ""): ["ppo/cartpole"],
    ("zoo benchmark", ""): ["smoke"],
    ("train", "--json"): ["--dry-run"],
    ("zoo run", "--json"): ["ppo/cartpole", "--dry-run"],
    ("train", "--jobs"): ["--seeds=5-6"],
    ("zoo run", "--jobs"): ["ppo/cartpole", "--seeds=5-6"],
}
"""What an option's effect is compared with, for a command and, where it differs, for an option; no words at all otherwise."""


def words_of(command: str, option: str) -> list[str]:
    words = TABLE[command][option]
    named = any(not word.startswith("-") for word in words)
    takes_preset_first = command == "zoo run" and not named and option not in ("--algo", "--config")
    return ["ppo/cartpole", *words] if takes_preset_first else words


def options_of(command: type) -> Iterator[str]:
    """The options of a command's dataclass as the user writes them; a positional argument by its metavar."""
    hints = typing.get_type_hints(command, include_extras=True)
    for field in dataclasses.fields(command):
        inner, *marks = typing.get_args(hints[field.name]) or [hints[field.name]]
        settings = [mark for mark in marks if type(mark).__name__ == "_ArgConfig"]
        if dataclasses.is_dataclass(inner):
            yield from options_of(inner)  # type: ignore[arg-type]
        elif tyro.conf.Positional in marks:
            yield str(settings[0].metavar).strip("[]").removesuffix("|ALGO")
        else:
            name = next((setting.name for setting in settings if setting.name), field.name)
            yield f"--{name.replace('_', '-')}"


def commands() -> dict[str, type]:
    found = {name: importlib.import_module(module).Command for name, (module, _) in COMMANDS.items() if name != "zoo"}
    return {**found, **{f"zoo {name}": command for name, (command, _) in zoo.COMMANDS.items()}}


def test_every_option_of_every_command_has_a_row() -> None:
    assert {name: set(options_of(command)) for name, command in commands().items()} == {
        name: set(rows) for name, rows in TABLE.items()
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, the first of which is the better one."""
    folder = tmp_path_factory.mktemp("trained")
    short = ["--total-timesteps=64", "--num-envs=2", "--set=hyperparams.num_steps=16", "--set=evaluation.every=32"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        more = ["--set=evaluation.episodes=1", "--set=logging.tensorboard=false", f"--output-dir={folder}"]
        assert main(["train", "a2c", "--env=CartPole-v1", "--set=hyperparams.learning_rate=0.5", *short, *more]) == 0
    (run_dir,) = folder.iterdir()
    return run_dir


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command asks of the layers below, where doing it would take long; those calls end it with a message."""
    seen: list[Any] = []

    def stand_in(name: str, result: Any = None) -> Any:
        def record(*arguments: Any, **options: Any) -> Any:
            options.pop("find_reference", None)
            options.pop("say", None)
            state = options["rng"].getstate() if "rng" in options and options["kills"] == 1 else None
            options.pop("rng", None)
            plain = [getattr(argument, "config", argument) for argument in arguments]
            if name == "verify":
                del plain[1]  # a temporary folder
            seen.append((name, plain if name != "tasks" else len(list(arguments[0])), options, state))
            if result is None:
                raise UserError("recorded")
            return result

        return record

    real_resume = runner.resume_run
    recorded_resume = stand_in("resume")
    monkeypatch.setattr(runner, "start_run", stand_in("start"))
    monkeypatch.setattr(
        runner,
        "resume_run",
        lambda path, **options: real_resume(path) if "finished" in str(path) else recorded_resume(path, **options),
    )
    report = proof.VerifyReport(True, 1, 1, (), (), 1, (), 0.0)
    monkeypatch.setattr(proof, "verify_resume", stand_in("verify", report))
    monkeypatch.setattr(conformance, "check_algorithm", stand_in("check", conformance.ConformanceReport("ppo", [])))
    report_of_env = EnvReport("CartPole-v1")
    monkeypatch.setattr(check, "check_env", stand_in("env", report_of_env))
    monkeypatch.setattr(benchmark, "run_benchmark", stand_in("benchmark", benchmark.BenchmarkOutcome()))
    monkeypatch.setattr(workers, "run_tasks", stand_in("tasks"))
    monkeypatch.setattr(watch, "_follow", lambda follower, console: seen.append("followed"))
    return seen


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.yaml").write_text("algo: trpo\n", encoding="utf-8")
    (tmp_path / "option_probe.py").write_text("", encoding="utf-8")
    write_run(tmp_path / "runs" / "one", algo="ppo", seed=0, curve=[(1000, 20.0)])
    write_run(tmp_path / "runs" / "two", algo="a2c", seed=0, curve=[(1000, 10.0)])
    write_run(tmp_path / "runs" / "six", algo="ppo", seed=1, curve=[(1000, 5.0)])
    write_run(tmp_path / "runs" / "tre", algo="ppo", seed=0, env_id="Acrobot-v1", curve=[(1000, -90.0)])
    later = "2027-01-01T00:00:00+00:00"
    write_run(tmp_path / "runs" / "new", seed=9, status="running", env_id="Acrobot-v1", created=later)
    (tmp_path / "finished").symlink_to(trained)
    shutil.copytree(next((trained / "checkpoints").glob("step_*")), tmp_path / "saved")
    yield tmp_path
    sys.modules.pop("option_probe", None)


CASES = [(command, option) for command, rows in TABLE.items() for option in rows]


@pytest.mark.parametrize(("command", "option"), CASES, ids=[f"{command} {option}" for command, option in CASES])
def test_an_option_changes_something_or_is_refused(
    command: str,
    option: str,
    folder: Path,
    trained: Path,
    calls: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if command == "watch":  # where the output is no terminal it always shows the run once
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")

    def observe(words: list[str]) -> tuple[Any, ...]:
        real = {"RUN": str(trained), "FINISHED": "finished"}
        calls.clear()
        code = main([*command.split(), *(real.get(word, word) for word in words)])
        output = capsys.readouterr()
        files = sorted(path.name for path in folder.iterdir())
        return code, output.out, output.err, repr(calls), files, "option_probe" in sys.modules

    without = observe(WITHOUT.get((command, option), WITHOUT.get((command, ""), [])))
    given = observe(words_of(command, option))
    assert given != without, "it changes nothing"
    assert "Traceback" not in given[2] and given[0] in (0, 2, 3)


CONTRADICTIONS = {
    "eval --best of one checkpoint": (["eval", "CHECKPOINT", "--best"], "name the run for its best one"),
    "a length without a video": (["eval", "RUN", "--video-seconds=3"], "--video-seconds needs a video"),
    "report in two formats": (["report", "runs", "--json", "--format=html"], "give --json or --format html, not both"),
    "leaderboard in two formats": (["leaderboard", "runs", "--json", "--format=csv"], "not both"),
    "a folder for what is not kept": (["verify-resume", "--output-dir=x"], "leave out --output-dir"),
    "a tolerance without a baseline": (["leaderboard", "runs", "--tolerance=3"], "needs a baseline"),
    "seeds twice": (["zoo", "benchmark", "smoke", "--set=seed=3"], "set by the benchmark itself"),
    "a hyperparameter twice": (["check-algorithm", "ppo", "--set=gamma=1", "--set=gamma=0.5"], "gamma is given twice"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_options_that_contradict_each_other_are_refused(
    name: str, folder: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = CONTRADICTIONS[name]
    checkpoint = str(sorted((trained / "checkpoints").glob("step_*"))[0])
    assert main([checkpoint if word == "CHECKPOINT" else word for word in words]) == 2
    assert message in capsys.readouterr().err
