"""The card at the end of `train` and `resume`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rl_training.cli.end_card import print_card, reference_text
from rl_training.experiment.run.reference import Reference
from rl_training.experiment.run.session import TrainResult
from rl_training.runtime.evaluator import EvaluationResult

REFERENCE = Reference("dqn/cartpole", 483.3, (453.9, 500.0), (426.4, 490.0, 500.0), (((100, 400.0),),))


def result(returns: list[float], **changes: object) -> TrainResult:
    finished = TrainResult(
        metrics={"global_step": 50_048},
        evaluation=EvaluationResult.from_episodes(returns, [1] * len(returns), deterministic=True),
        stop_reason=None,
        exit_code=0,
        resume_grade=None,
        run_dir=Path("runs/x"),
        checkpoint_path=Path("runs/x/checkpoints/step_000050048"),
        best_checkpoint_path=Path("runs/x/checkpoints/step_000030000"),
        best_score=500.0,
        reference=REFERENCE,
    )
    return replace(finished, **changes)  # type: ignore[arg-type]


def test_the_card_of_a_finished_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_card("DQN on CartPole-v1, seed 0: 50,048 steps in 9 s", result([480.0, 480.0]), ["train ppo/pendulum"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == [
        "",
        "DQN on CartPole-v1, seed 0: 50,048 steps in 9 s",
        "evaluation return 480.0 (95 % interval 480.0 to 480.0, 2 deterministic episodes)",
        "best checkpoint (500.0): runs/x/checkpoints/step_000030000",
        "reference 483.3 (3 seeds, 453.9 to 500.0); this run is within the seeds' range, 426.4 to 500.0",
        "run folder: runs/x",
        "",
    ]
    assert [line.split("axiomrl ")[-1] for line in lines[7:]] == [
        "Try next:",
        "report runs/x --format html",
        "eval runs/x --episodes 100",
        "train ppo/pendulum",
    ]


@pytest.mark.parametrize(
    ("returns", "place"),
    [([500.0], "within"), ([400.0], "below"), ([300.0, 500.0], "slightly below"), ([501.0], "above")],
)
def test_where_the_run_lies_among_the_seeds(returns: list[float], place: str) -> None:
    assert reference_text(result(returns)).endswith(f"; this run is {place} the seeds' range, 426.4 to 500.0")


def test_a_run_that_stopped_early_is_not_compared_with_finished_ones() -> None:
    stopped = result([100.0], stop_reason="stopped by SIGINT", exit_code=130)
    assert reference_text(stopped) == "reference 483.3 (3 seeds, 453.9 to 500.0)"
    assert reference_text(result([100.0], evaluation=None)) == "reference 483.3 (3 seeds, 453.9 to 500.0)"


def test_a_config_of_ones_own_has_no_reference() -> None:
    assert reference_text(result([100.0], reference=None)) == "no reference: no shipped result has this config"


def test_an_interrupted_run_gets_the_resume_command_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    print_card("x", result([1.0], stop_reason="stopped by SIGINT", exit_code=130), ["train ppo/pendulum"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "stopped by SIGINT"
    assert lines[-1].startswith("resume with: ") and lines[-1].endswith("axiomrl resume runs/x")


def test_commands_that_open_the_run_again_import_what_it_needed(capsys: pytest.CaptureFixture[str]) -> None:
    print_card("x", result([1.0]), ["resume runs/x", "train ppo/pendulum"], ("my algo.py", "envs"))
    lines = [line.split("axiomrl ")[-1] for line in capsys.readouterr().out.splitlines()[-4:]]
    flags = "--import 'my algo.py' --import envs"
    assert lines[0] == "report runs/x --format html" and lines[3] == "train ppo/pendulum"
    assert lines[1:3] == [f"eval runs/x --episodes 100 {flags}", f"resume runs/x {flags}"]
    print_card("x", result([1.0], stop_reason="stopped by SIGINT", exit_code=130), [], ("envs",))
    assert capsys.readouterr().out.splitlines()[-1].endswith("axiomrl resume runs/x --import envs")
