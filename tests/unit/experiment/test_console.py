"""What a run shows: plain lines for logs, a panel for terminals."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.console import LivePanel, PlainLines, evaluation_text, make_console
from rl_training.experiment.runner import start_run
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import EvaluationResult


def _config(folder: Path, console: Any) -> TrainConfig:
    return TrainConfig(
        total_timesteps=256,
        num_envs=2,
        output_dir=str(folder),
        hyperparams={"num_steps": 32},
        evaluation={"every": 128, "episodes": 2},
        logging={"console": console, "tensorboard": False, "every": 0},
    )


def test_plain_lines_say_step_return_speed_and_evaluations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start_run(_config(tmp_path, "plain"))
    captured = capsys.readouterr()
    assert captured.out == "", "stdout is for results"
    lines = captured.err.splitlines()
    assert re.match(
        r"step +\d+/256  return [\d.-]+  [\d,]+ steps/s \(env \d+%, inference \d+%, learn \d+%\)  ETA ", lines[0]
    )
    assert sum("evaluation return" in line for line in lines) == 2
    assert lines[-1].startswith("step       256/256"), "the last report is always shown"


def test_the_live_panel_shows_the_run_and_cleans_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = start_run(_config(tmp_path, "live"))
    assert result.metrics["global_step"] == 256
    panel = LivePanel("PPO on CartPole-v1")
    panel.on_evaluation(None, _result())  # type: ignore[arg-type]
    panel._metrics = {"episode_return": 21.5, "time/steps_per_second": 1234.0, "time/env_share": 0.5}

    class Run:
        global_step, total_timesteps = 100, 1000

        class timer:
            elapsed = 10.0

    from rich.console import Console

    console = Console(record=True, width=100)
    console.print(panel._render(Run()))  # type: ignore[arg-type]
    text = console.export_text()
    for part in ("PPO on CartPole-v1", "100 / 1,000", "ETA 0:01:30", "21.5", "1,234 steps/s", "env 50%", "Ctrl-C"):
        assert part in text


def _result() -> EvaluationResult:
    return EvaluationResult.from_episodes([10.0, 20.0], [10, 20], deterministic=True)


def test_an_evaluation_in_one_line() -> None:
    assert evaluation_text(_result()) == (
        "evaluation return 15.0 (95 % interval 10.0 to 20.0, 2 deterministic episodes)"
    )
    reaching = EvaluationResult.from_episodes([0.0] * 8, [1] * 8, deterministic=False, successes=[1.0] * 6 + [0.0] * 2)
    assert evaluation_text(reaching).endswith("8 stochastic episodes), success 75%")


def test_auto_is_plain_where_there_is_no_terminal_and_off_is_silent(tmp_path: Path) -> None:
    assert isinstance(make_console(_config(tmp_path, "auto")), PlainLines)
    assert type(make_console(_config(tmp_path, "off"))) is Callback
