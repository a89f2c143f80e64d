"""Runs that are started and resumed by their folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_training import A2C, PPO
from rl_training.config import TrainConfig, load_config
from rl_training.experiment.checkpoint.store import read_checkpoint
from rl_training.experiment.run.run_dir import append_line, read_lines
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.utils.errors import ConfigError, EnvCreationError, UserError
from rl_training.utils.trees import differing_paths

IGNORED = ("runtime.timer", "runtime.resume_count")


def config_in(folder: Path, **values: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "env_id": "CartPole-v1",
        "num_envs": 2,
        "total_timesteps": 160,
        "output_dir": str(folder),
        "hyperparams": {"num_steps": 16, "num_minibatches": 2},
        "evaluation": {"every": 64, "episodes": 2},
        "checkpoint": {"every": 32, "keep": 10},
        "logging": {"every": 32, "console": "off", "tensorboard": False},
    }
    return TrainConfig(**{**defaults, **values})


def metadata_of(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "metadata.json").read_text())


def final_state(run_dir: Path, step: int = 160) -> dict[str, Any]:
    return read_checkpoint(run_dir / "checkpoints" / f"step_{step:09d}").groups


def killed_at(run_dir: Path, step: int, copy: Path) -> Path:
    """A copy of a run as it would be had the process been killed right after writing the checkpoint of `step`."""
    shutil.copytree(run_dir, copy)
    for folder in (copy / "checkpoints").glob("step_*"):
        if int(folder.name.removeprefix("step_")) > step:
            shutil.rmtree(folder)
    (copy / "checkpoints" / "latest").write_text(f"step_{step:09d}\n")
    return copy


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    result = start_run(config_in(tmp_path_factory.mktemp("whole")))
    assert result.metrics["global_step"] == 160
    return result.run_dir


@pytest.mark.parametrize("step", [0, 32, 96])
def test_a_resumed_run_ends_like_one_that_was_never_stopped(whole: Path, tmp_path: Path, step: int) -> None:
    run_dir = killed_at(whole, step, tmp_path / "run")
    result = resume_run(run_dir)
    assert result.run_dir == run_dir and result.resume_grade == "exact"
    assert differing_paths(final_state(run_dir), final_state(whole), ignore=IGNORED) == []
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        found, expected = ([_untimed(line) for line in read_lines(folder / name)] for folder in (run_dir, whole))
        assert found == expected, "no line twice, none missing"
    (entry,) = metadata_of(run_dir)["resumes"]
    assert (entry["checkpoint"], entry["step"], entry["grade"]) == (f"step_{step:09d}", step, "exact")
    assert metadata_of(run_dir)["status"] == "completed"


def _untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "at_utc" and not key.startswith("time/")}


def test_lines_of_steps_that_are_taken_again_are_removed(whole: Path, tmp_path: Path) -> None:
    run_dir = killed_at(whole, 64, tmp_path / "run")
    append_line(run_dir / "metrics.jsonl", {"step": 9999})
    resume_run(run_dir)
    assert [line["step"] for line in read_lines(run_dir / "metrics.jsonl")] == [32, 64, 96, 128, 160]


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/latest", "checkpoints/step_000000096"])
def test_the_newest_checkpoint_continues_in_place(whole: Path, tmp_path: Path, name: str) -> None:
    run_dir = killed_at(whole, 96, tmp_path / "run")
    result = resume_run(run_dir / name)
    assert result.run_dir == run_dir
    assert differing_paths(final_state(run_dir), final_state(whole), ignore=IGNORED) == []


def test_an_older_checkpoint_continues_in_a_new_directory(whole: Path, tmp_path: Path) -> None:
    run_dir = killed_at(whole, 160, tmp_path / "old" / "run")
    before = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    text = (run_dir / "metadata.json").read_text()
    checkpoint = run_dir / "checkpoints" / "step_000000064"
    result = resume_run(checkpoint)
    assert result.run_dir not in (run_dir, whole) and result.run_dir.parent == whole.parent
    assert sorted(path.name for path in (run_dir / "checkpoints").iterdir()) == before
    assert (run_dir / "metadata.json").read_text() == text
    assert differing_paths(final_state(result.run_dir), final_state(whole), ignore=IGNORED) == []
    (entry,) = metadata_of(result.run_dir)["resumes"]
    assert entry["step"] == 64 and str(checkpoint) in entry["notes"][0]
    steps = sorted(path.name for path in (result.run_dir / "checkpoints").glob("step_*"))
    assert steps[0] == "step_000000064", "the new directory can be resumed from its first moment"
    shutil.rmtree(result.run_dir)


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used(whole: Path, tmp_path: Path) -> None:
    run_dir = killed_at(whole, 96, tmp_path / "run")
    state = run_dir / "checkpoints" / "step_000000096" / "state.json"
    state.write_text(state.read_text()[:-10])
    result = resume_run(run_dir)
    assert any("step_000000096" in note for note in result.notes)
    assert metadata_of(run_dir)["resumes"][0]["checkpoint"] == "step_000000064"
    assert differing_paths(final_state(run_dir), final_state(whole), ignore=IGNORED) == []


def test_a_finished_run_can_be_made_longer(whole: Path, tmp_path: Path) -> None:
    run_dir = killed_at(whole, 160, tmp_path / "run")
    result = resume_run(run_dir, total_timesteps=224)
    assert result.metrics["global_step"] == 224
    assert load_config(run_dir / "config.yaml").total_timesteps == 224
    # The policy does not depend on the total here, so the longer run equals one that was planned so.
    planned = start_run(config_in(tmp_path / "planned", total_timesteps=224))
    ignore = (*IGNORED, "runtime.callbacks")  # the shorter run had an evaluation of its own at its end
    assert differing_paths(final_state(run_dir, 224), final_state(planned.run_dir, 224), ignore=ignore) == []


def test_a_finished_run_is_finished(whole: Path, tmp_path: Path) -> None:
    run_dir = killed_at(whole, 160, tmp_path / "run")
    result = resume_run(run_dir)
    assert result.metrics["global_step"] == 160 and result.exit_code == 0
    assert [line["step"] for line in read_lines(run_dir / "evaluations.jsonl")] == [64, 128, 160]


def test_a_saved_agent_continues_in_a_new_directory(tmp_path: Path) -> None:
    agent = PPO(config_in(tmp_path / "first", total_timesteps=64))
    agent.learn()
    agent.save(tmp_path / "agent")
    result = resume_run(tmp_path / "agent", total_timesteps=96)
    assert result.metrics["global_step"] == 96
    assert result.run_dir.parent == tmp_path / "first", "the agent's own output folder"


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    PPO("CartPole-v1", num_envs=1).save(tmp_path / "policy")
    with pytest.raises(UserError, match="no training state"):
        resume_run(tmp_path / "policy")
    with pytest.raises(UserError, match="does not exist"):
        resume_run(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="holds no checkpoint"):
        resume_run(tmp_path / "empty")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"env_id": "Cartpole-v1"}, EnvCreationError),
        ({"algo": "ppoo"}, ConfigError),
        ({"hyperparams": {"lr": 1}}, ConfigError),
        ({"hyperparams": {"num_minibatches": 10**6}}, ConfigError),
        ({"device": "cuda:99"}, ConfigError),
    ],
)
def test_a_run_that_cannot_start_leaves_no_folder(
    tmp_path: Path, values: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        start_run(config_in(tmp_path / "runs", **values))
    assert not (tmp_path / "runs").exists()


def test_the_resolved_config_runs_again_to_the_same_end(whole: Path, tmp_path: Path) -> None:
    import dataclasses

    cfg = load_config(whole / "config.yaml")
    assert cfg.hyperparams["gamma"] == 0.99, "every hyperparameter is written out"
    again = start_run(dataclasses.replace(cfg, output_dir=str(tmp_path)))
    assert differing_paths(final_state(again.run_dir), final_state(whole), ignore=IGNORED) == []


def test_a_run_works_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = start_run(config_in(tmp_path, total_timesteps=32))
    assert metadata_of(result.run_dir)["git"] is None


def test_a_checkpoint_of_a_run_is_not_another_algorithms(whole: Path) -> None:
    with pytest.raises(UserError, match="'ppo', not 'a2c'"):
        A2C.load(whole)


def test_an_edited_config_is_refused_unless_the_edit_leaves_the_training_alone(tmp_path: Path) -> None:
    from rl_training.experiment.config.train_config import TrainConfig
    from rl_training.experiment.run.runner import resume_run, start_run

    config = TrainConfig(
        total_timesteps=32,
        num_envs=2,
        output_dir=str(tmp_path),
        hyperparams={"num_steps": 8},
        evaluation={"every": 0},
        logging={"console": "off", "tensorboard": False},
    )
    run_dir = start_run(config).run_dir
    assert run_dir is not None
    text = (run_dir / "config.yaml").read_text()
    for old, new, message in (
        ("gamma: 0.99", "gamma: 0.5", "'hyperparams' differs from the checkpoint"),
        ("algo: ppo", "algo: a2c", "is for algorithm 'a2c', but the run's checkpoints are of 'ppo'"),
        ("num_envs: 2", "num_envs: 3", "'num_envs' differs"),
    ):
        assert old in text
        (run_dir / "config.yaml").write_text(text.replace(old, new, 1))
        with pytest.raises(UserError, match=message):
            resume_run(run_dir)
    (run_dir / "config.yaml").write_text(text.replace("total_timesteps: 32", "total_timesteps: 64"))
    assert resume_run(run_dir).metrics["global_step"] == 64
    (run_dir / "config.yaml").unlink()
    assert resume_run(run_dir, total_timesteps=96).metrics["global_step"] == 96
