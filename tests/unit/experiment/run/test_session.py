"""One training run: its files, its failures, its end."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.envs import ConstantRewardEnv, CounterEnv, ExplodingRewardEnv, OsRandomEnv, RandomWalkEnv
from rl_training import PPO, Callback
from rl_training.experiment import versions
from rl_training.experiment.checkpoint.store import read_checkpoint
from rl_training.experiment.run import session
from rl_training.experiment.run.run_dir import read_lines
from rl_training.runtime.callbacks import Evaluate, SaveCheckpoints, StopOnTime
from rl_training.utils.errors import NonFiniteError
from rl_training.utils.trees import differing_paths


def agent_in(folder: Path, make: Any = ConstantRewardEnv, **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "num_envs": 2,
        "num_steps": 10,
        "num_minibatches": 2,
        "total_timesteps": 100,
        "evaluation": {"every": 40, "episodes": 2},
        "checkpoint": {"every": 40, "keep": 2},
        "logging": {"every": 20, "console": "off", "tensorboard": False},
    }
    return PPO(make, output_dir=str(folder), **{**defaults, **settings})


def metadata_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "metadata.json").read_text())


def only_run(folder: Path) -> Path:
    (run_dir,) = folder.iterdir()
    return run_dir


def test_the_files_of_a_run(tmp_path: Path) -> None:
    result = agent_in(tmp_path).learn()
    run_dir = only_run(tmp_path)
    assert result.run_dir == run_dir
    metrics = read_lines(run_dir / "metrics.jsonl")
    assert [line["step"] for line in metrics] == [20, 40, 60, 80, 100]
    assert metrics[-1]["episode_return"] == 5.0 and metrics[-1]["episode_length"] == 5.0
    assert metrics[-1]["episodes"] == 20.0 and metrics[-1]["train/value_loss"] >= 0
    assert {"time/steps_per_second", "time/env_share", "time/inference_share", "time/learn_share"} <= metrics[-1].keys()
    evaluations = read_lines(run_dir / "evaluations.jsonl")
    assert [(line["step"], line["mean"], line["returns"]) for line in evaluations] == [
        (40, 5.0, [5.0, 5.0]),
        (80, 5.0, [5.0, 5.0]),
        (100, 5.0, [5.0, 5.0]),
    ]
    # Kept: the newest two and the best (only the first evaluation was a new best).
    folders = sorted(path.name for path in (run_dir / "checkpoints").iterdir() if path.is_dir())
    assert folders == ["step_000000040", "step_000000080", "step_000000100"]
    metadata = metadata_of(run_dir)
    assert (metadata["status"], metadata["stop_reason"]) == ("completed", None)
    assert metadata["best_checkpoint"] == "checkpoints/step_000000040"
    assert metadata["latest_metrics"]["global_step"] == 100
    assert metadata["latest_metrics"]["evaluation/mean_return"] == 5.0
    assert result.best_checkpoint_path == run_dir / "checkpoints" / "step_000000040"
    assert (run_dir / "checkpoints" / "latest").read_text().strip() == "step_000000100"


def test_tensorboard_files_can_be_read(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = agent_in(tmp_path, logging={"every": 20, "console": "off", "tensorboard": True}).learn()
    events = EventAccumulator(str(result.run_dir / "tensorboard")).Reload()
    assert {"rollout/episode_return", "train/value_loss", "evaluation/mean_return"} <= set(events.Tags()["scalars"])
    assert [(event.step, event.value) for event in events.Scalars("rollout/episode_return")][-1] == (100, 5.0)


def test_metrics_at_the_end_even_between_two_reports(tmp_path: Path) -> None:
    result = agent_in(tmp_path, logging={"every": 70, "console": "off", "tensorboard": False}).learn()
    assert [line["step"] for line in read_lines(result.run_dir / "metrics.jsonl")] == [80, 100]


def test_a_nan_stops_before_the_weights_are_touched_and_the_state_is_kept(tmp_path: Path) -> None:
    agent = agent_in(tmp_path, lambda: ExplodingRewardEnv(healthy_steps=25), evaluation={"every": 0})
    with pytest.raises(NonFiniteError, match="loss.* became NaN or infinite") as caught:
        agent.learn()
    assert "value_loss" in str(caught.value)
    run_dir = only_run(tmp_path)
    metadata = metadata_of(run_dir)
    assert metadata["status"] == "failed" and "value_loss" in metadata["stop_reason"]
    crash = read_checkpoint(run_dir / "crash")
    assert crash.info["error"] == str(caught.value)
    assert crash.groups["runtime"]["global_step"] == 40
    weights = crash.groups["policy"]["weights"]
    assert all(torch.isfinite(value).all() for value in weights.values())
    last_good = read_checkpoint(run_dir / "checkpoints" / "step_000000040")
    assert differing_paths(weights, last_good.groups["policy"]["weights"]) == []
    assert not (run_dir / "checkpoints" / "crash").exists(), "a resume does not meet it"


def test_without_a_run_directory_a_nan_is_reported_all_the_same() -> None:
    agent = PPO(lambda: ExplodingRewardEnv(healthy_steps=5), num_envs=2, num_steps=10, num_minibatches=2)
    before = {name: value.clone() for name, value in agent.policy.state_dict().items()}
    with pytest.raises(NonFiniteError):
        agent.learn(total_timesteps=100)
    assert differing_paths(dict(agent.policy.state_dict()), before) == []


def test_an_evaluation_that_is_not_a_number_is_logged_and_is_never_best(tmp_path: Path) -> None:
    class InfiniteOnce(ConstantRewardEnv):
        """Training environments are the first two made; those of the evaluation come later, and their returns overflow."""

        made = 0

        def __init__(self) -> None:
            super().__init__()
            type(self).made += 1
            if self.made > 2:
                self.reward = 1e308 if self.made % 2 else -1e308

    result = agent_in(tmp_path, InfiniteOnce).learn()
    lines = (result.run_dir / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["mean"] for line in lines] == [None, None, None]
    assert metadata_of(result.run_dir)["best_checkpoint"] is None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_stops(tmp_path: Path, number: signal.Signals, code: int) -> None:
    class Sends(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            if trainer.global_step == 60:
                os.kill(os.getpid(), number)

    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    result = agent_in(tmp_path)._session_for([Sends()]).train()  # learn() would pass the signal on
    assert (result.exit_code, result.stop_reason) == (code, f"stopped by {number.name}")
    assert result.checkpoint_path.name == "step_000000060"
    assert [line["step"] for line in read_lines(result.run_dir / "evaluations.jsonl")] == [40], "no last evaluation"
    assert metadata_of(result.run_dir)["status"] == "interrupted"
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers


def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    class Sends(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        agent_in(tmp_path).learn(callbacks=[Sends()])
    assert metadata_of(only_run(tmp_path))["status"] == "interrupted"


def test_an_error_of_a_callback_is_recorded(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        agent_in(tmp_path).learn(callbacks=[Fails()])
    metadata = metadata_of(only_run(tmp_path))
    assert (metadata["status"], metadata["stop_reason"]) == ("failed", "ZeroDivisionError('mine')")


def test_callbacks_run_in_the_order_that_saving_needs(tmp_path: Path) -> None:
    class Mine(Callback):
        pass

    mine = Mine()
    agent = agent_in(tmp_path, stopping={"max_seconds": 1e9})
    agent.learn(callbacks=[mine])
    order = agent._session.trainer.callbacks
    assert isinstance(order[0], Evaluate) and isinstance(order[1], StopOnTime)
    assert order.index(mine) == 2, "the user's callbacks see the evaluation of the same step"
    assert isinstance(order[-1], SaveCheckpoints), "what changes state comes before what saves it"


def test_the_number_of_threads_is_fixed_while_training_and_put_back() -> None:
    seen = []

    class Looks(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        PPO(CounterEnv, num_envs=1, num_steps=8, num_threads=1).learn(total_timesteps=8, callbacks=[Looks()])
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_a_resume_that_cannot_be_exact_says_so(tmp_path: Path) -> None:
    agent = agent_in(tmp_path / "first", OsRandomEnv, evaluation={"every": 0})
    saved = agent.learn().checkpoint_path
    again = PPO.load(saved, env=OsRandomEnv, output_dir=str(tmp_path / "second"))
    result = again.learn(total_timesteps=120)
    assert result.resume_grade == "episode-boundary"
    assert any("fresh episodes" in note for note in result.notes)
    (entry,) = metadata_of(only_run(tmp_path / "second"))["resumes"]
    assert (entry["grade"], entry["step"]) == ("episode-boundary", 100)


def test_other_versions_are_no_exact_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = agent_in(tmp_path / "first", RandomWalkEnv, evaluation={"every": 0}).learn().checkpoint_path
    same = PPO.load(saved, env=RandomWalkEnv, output_dir=str(tmp_path / "same")).learn(total_timesteps=120)
    assert (same.resume_grade, same.notes) == ("exact", ())
    monkeypatch.setattr(session, "run_versions", lambda *_: {**versions.run_versions("x", None), "numpy": "9.9"})
    other = PPO.load(saved, env=RandomWalkEnv, output_dir=str(tmp_path / "other")).learn(total_timesteps=120)
    assert other.resume_grade == "other-versions"
    assert f"numpy 9.9, saved with {np.__version__}" in other.notes[0]
    (entry,) = metadata_of(only_run(tmp_path / "other"))["resumes"]
    assert entry["grade"] == "other-versions" and entry["notes"] == list(other.notes)
    again = PPO.load(other.checkpoint_path, env=RandomWalkEnv, output_dir=str(tmp_path / "again"))
    assert again.learn(total_timesteps=140).resume_grade == "exact", "the new checkpoint is of the new version"
