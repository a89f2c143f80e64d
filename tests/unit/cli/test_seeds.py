"""`train --seeds 0-4 --jobs 2`: which seeds, side by side, and what comes of failures and of Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_training.cli.main import main
from rl_training.cli.seeds import parse_seeds
from rl_training.experiment.config.loader import ResolvedConfig
from rl_training.experiment.run import runner
from rl_training.experiment.run.session import TrainResult
from rl_training.experiment.run.signals import ReceivedSignal
from rl_training.utils.errors import UserError
from rl_training.zoo import workers

SHORT = ["--num-envs=2", "--set=hyperparams.num_steps=8", "--set=evaluation.every=0", "--set=logging.tensorboard=false"]


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", [3]),
        ("1,2,3", [1, 2, 3]),
        ("0-4", [0, 1, 2, 3, 4]),
        ("0-2,7", [0, 1, 2, 7]),
        (" 5 , 1-2 ", [5, 1, 2]),
        ("4-4", [4]),
    ],
)
def test_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,a", "takes numbers and ranges"),
        ("", "takes numbers and ranges"),
        ("-1", "takes numbers and ranges"),
        ("1-", "takes numbers and ranges"),
        ("4-0", "ends before it begins; write 0-4"),
        ("0-3,2", "names a seed twice"),
        ("0-99999999999", "at most 10,000 seeds"),
        ("4294967296", "below 2"),
    ],
)
def test_what_is_no_list_of_seeds(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs=2"], "--jobs is for several seeds, e.g. --seeds 0-4 --jobs 2"),
        (["--seeds=0-1", "--jobs=0"], "--jobs must be at least 1"),
        (["--seeds=0-1", "--seed=3"], "give --seed or --seeds, not both"),
    ],
)
def test_options_that_do_not_go_together(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_dry_run_shows_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--seeds=0-2", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == {"value": [0, 1, 2], "origin": "command line"}


def test_a_signal_between_seeds_ends_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(source: ResolvedConfig, **options: object) -> TrainResult:
        reason = "stopped by SIGINT"
        return TrainResult({"global_step": 9}, None, reason, 130, None, tmp_path / f"run {source.config.seed}")

    monkeypatch.setattr(runner, "start_run", stopped)
    assert main(["train", "--seeds=4-6"]) == 130
    output = capsys.readouterr()
    assert output.err == "not trained: seed 5, seed 6\n"
    assert output.out.count("resume with:") == 1 and f"resume '{tmp_path}/run 4'" in output.out


def _start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rl_training.cli", "train", "a2c", *SHORT, *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_runs_side_by_side_with_an_import(tmp_path: Path) -> None:
    (tmp_path / "my envs").mkdir()
    code = "import gymnasium as gym\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
    code += "class E(CartPoleEnv):\n    def __init__(self, **kwargs):\n        super().__init__(**kwargs)\n"
    (tmp_path / "my envs" / "own_env.py").write_text(f"{code}gym.register('Own-v0', entry_point=E)\n", encoding="utf-8")
    (tmp_path / "runs").mkdir()
    process = _start(
        tmp_path, "--env=Own-v0", "--import=my envs/own_env.py", "--total-timesteps=32", "--seeds=0,3", "--jobs=2"
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    heads = [line.partition(" in ")[0] for line in out.splitlines() if line.startswith("A2C on Own-v0")]
    assert heads == [f"A2C on Own-v0, seed {seed}: 32 steps" for seed in (0, 3)], "in order, each readable"
    assert "seed 0: started" in err and "seed 3: done" in err and "Traceback" not in err
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_a_run_that_fails_makes_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    received = ReceivedSignal()
    monkeypatch.setattr(workers, "run_tasks", lambda tasks, jobs, say: ({tasks[1]: "planted"}, received))
    assert main(["train", "--seeds=0-1", "--jobs=2"]) == 1
    received.number = signal.SIGINT
    assert main(["train", "--seeds=0-1", "--jobs=2"]) == 130
    assert "not trained: seed 0" in capsys.readouterr().err


def test_ctrl_c_saves_all_and_names_each_resume_command(tmp_path: Path) -> None:
    process = _start(tmp_path, "--env=CartPole-v1", "--total-timesteps=10_000_000", "--seeds=0-2", "--jobs=2")
    while process.poll() is None and len(list(tmp_path.glob("runs/*/checkpoints/latest"))) < 2:
        time.sleep(0.02)  # until both have something to lose
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 2 and "not trained: seed 2" in err and "Traceback" not in err
    for run in runs:
        assert out.count(f"axiomrl resume runs/{run.name}") == 1
        assert json.loads((run / "metadata.json").read_text(encoding="utf-8"))["status"] == "interrupted"
