"""What a run shows: plain lines for logs, a panel for terminals."""

from __future__ import annotations

import io
import os
import pty
import re
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.console.lines import LivePanel, PlainLines, evaluation_text, make_console
from rl_training.experiment.console.terminal import keys_unseen
from rl_training.experiment.run.reference import Reference, read_reference
from rl_training.experiment.run.run_dir import append_line
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.experiment.run.view import RunView
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
    shares = ", ".join(rf"{stage} \d+%" for stage in ("env", "inference", "buffer", "learn", "other"))
    assert re.match(rf"step +\d+/256  return [\d.-]+  [\d,]+ steps/s \({shares}\)  ETA 0:\d\d:\d\d$", lines[0])
    assert sum("evaluation return" in line for line in lines) == 2
    assert lines[-1].startswith("step       256/256"), "the last report is always shown"


REFERENCE = Reference("p/q", 9.0, (8.0, 10.0), (9.0,), (((128, 500.0), (256, 1000.0)),))


def test_evaluations_stand_beside_what_the_reference_seeds_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = start_run(_config(tmp_path, "plain"), find_reference=lambda config: REFERENCE)
    first, last = (line for line in capsys.readouterr().err.splitlines() if "evaluation return" in line)
    # Hardly trained, it is below what is asked of it here at both steps.
    assert first.endswith("; reference seeds 500.0 to 500.0: below")
    assert last.endswith("; reference seeds 1,000.0 to 1,000.0: below")
    assert result.reference == REFERENCE and result.run_dir is not None
    assert read_reference(result.run_dir) == REFERENCE


def test_a_resume_looks_for_its_reference_anew(tmp_path: Path) -> None:
    run_dir = start_run(_config(tmp_path, "off"), find_reference=lambda config: REFERENCE).run_dir
    assert run_dir is not None
    asked: list[TrainConfig] = []
    # A longer run has other schedules, so it may have no reference any more.
    longer = resume_run(run_dir, total_timesteps=320, find_reference=lambda config: asked.append(config))
    assert [config.total_timesteps for config in asked] == [320]
    assert asked[0].hyperparams["gamma"] == 0.99, "every hyperparameter is written out"
    assert longer.reference is None and read_reference(run_dir) is None


class _Run:
    """What a panel asks of a trainer."""

    global_step, total_timesteps = 100, 1000

    class timer:
        elapsed = 10.0


def _panel(run_dir: Path | None = None) -> tuple[LivePanel, Console]:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    return LivePanel(RunView("PPO on CartPole-v1", 1000), run_dir, console), console


def _drawn(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_live_panel_shows_the_run_and_cleans_up() -> None:
    panel, console = _panel()
    panel.on_training_start(_Run())  # type: ignore[arg-type]
    panel.on_metrics(_Run(), {"episode_return": 21.5, "time/steps_per_second": 1234.0, "time/elapsed": 10.0})  # type: ignore[arg-type]
    panel.on_evaluation(_Run(), _result())  # type: ignore[arg-type]
    panel.on_iteration_end(_Run())  # type: ignore[arg-type]
    text = _drawn(console)
    for part in (
        "PPO on CartPole-v1",
        "100 of 1,000 steps",
        "ETA 0:01:30",
        "21.5",
        "1,234/s",
        "10.0 to 20.0",
        "Ctrl-C",
    ):
        assert part in text
    panel.close()
    assert _drawn(console).count("\x1b[?25l") == _drawn(console).count("\x1b[?25h") == 1, "the cursor is back"
    after = _drawn(console)
    panel.on_iteration_end(_Run())  # type: ignore[arg-type]
    panel.close()
    assert _drawn(console) == after


def test_the_panel_is_not_redrawn_at_every_iteration() -> None:
    panel, console = _panel()
    panel.on_training_start(_Run())  # type: ignore[arg-type]
    for _ in range(1000):
        panel.on_metrics(_Run(), {"episode_return": 1.0})  # type: ignore[arg-type]
        panel.on_iteration_end(_Run())  # type: ignore[arg-type]
    drawn = _drawn(console).count("╭")
    assert drawn <= 4, "one at the start, one at the first iteration, then four a second at most"
    panel.on_evaluation(_Run(), _result())  # type: ignore[arg-type]
    panel.on_iteration_end(_Run())  # type: ignore[arg-type]
    assert _drawn(console).count("╭") == drawn + 1, "an evaluation is shown at once"
    panel.close()


def test_a_run_with_a_live_panel_trains(tmp_path: Path) -> None:
    assert start_run(_config(tmp_path, "live")).metrics["global_step"] == 256


def test_a_resumed_run_shows_its_whole_history(tmp_path: Path) -> None:
    append_line(tmp_path / "metrics.jsonl", {"step": 50, "episode_return": 7.0, "time/elapsed": 5.0})
    append_line(tmp_path / "evaluations.jsonl", {"step": 50, **_result().to_dict()})
    panel, console = _panel(tmp_path)
    panel.on_training_start(_Run())  # type: ignore[arg-type]
    panel.close()
    assert panel.view.returns.points == [(50.0, 7.0)]
    assert "best 15.0 at step 50" in _drawn(console)


def _result() -> EvaluationResult:
    return EvaluationResult.from_episodes([10.0, 20.0], [10, 20], deterministic=True)


def test_an_evaluation_in_one_line() -> None:
    assert evaluation_text(_result()) == (
        "evaluation return 15.0 (95 % interval 10.0 to 20.0, 2 deterministic episodes)"
    )
    reaching = EvaluationResult.from_episodes([0.0] * 8, [1] * 8, deterministic=False, successes=[1.0] * 6 + [0.0] * 2)
    assert evaluation_text(reaching).endswith("8 stochastic episodes), success 75%")
    broken = EvaluationResult.from_episodes([float("nan")], [1], deterministic=True)
    assert evaluation_text(broken) == "evaluation return not finite"


def test_auto_is_plain_where_there_is_no_terminal_and_off_is_silent(tmp_path: Path) -> None:
    assert isinstance(make_console(_config(tmp_path, "auto")), PlainLines)
    assert type(make_console(_config(tmp_path, "off"))) is Callback


@pytest.mark.parametrize(
    ("term", "console", "kind"),
    [
        ("xterm", "auto", LivePanel),
        ("dumb", "auto", PlainLines),
        ("dumb", "live", PlainLines),
        ("xterm", "live", LivePanel),
    ],
)
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(
    term: str, console: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal, inside = pty.openpty()
    monkeypatch.setenv("TERM", term)
    with os.fdopen(inside, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert type(make_console(_config(tmp_path, console))) is kind
    os.close(terminal)


@pytest.mark.parametrize("kind", ["plain", "live"])
def test_a_closed_pipe_turns_the_console_off_and_the_run_goes_on(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """stderr as it is after `axiomrl train 2>&1 | head` has seen enough."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", buffering=1, encoding="utf-8") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", pipe)
        stdout = sys.stdout
        result = start_run(_config(tmp_path, kind))
        assert sys.stdout is stdout and sys.stderr is pipe, "what the panel had taken is given back"
    assert result.metrics["global_step"] == 256 and result.exit_code == 0 and result.stop_reason is None


def test_a_panel_hides_the_echo_of_ctrl_c_while_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)

        def echoes() -> bool:
            return bool(termios.tcgetattr(terminal)[3] & termios.ECHOCTL)

        assert echoes()
        with pytest.raises(KeyboardInterrupt), keys_unseen():
            assert not echoes()
            raise KeyboardInterrupt
        assert echoes()
    os.close(master)


def test_without_a_terminal_there_is_nothing_to_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with keys_unseen():
        pass
