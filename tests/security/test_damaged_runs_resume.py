"""Damage beside the checkpoints: a run whose checkpoints are sound goes on, and one note says what was mended."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.run_dir import read_lines
from rl_training.experiment.run.runner import resume_run, start_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    config = TrainConfig(
        num_envs=2,
        total_timesteps=32,
        output_dir=tmp_path_factory.mktemp("runs"),
        hyperparams={"num_steps": 8},
        policy={"hidden_sizes": [4]},
        evaluation={"every": 16, "episodes": 1},
        logging={"console": "plain", "tensorboard": False, "every": 8},
    )
    run_dir = start_run(config).run_dir
    assert run_dir is not None
    return run_dir


def bad_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] = 0xFF
    path.write_bytes(data)


def bad_step(path: Path) -> None:
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), "step": "soon"}), *rest, ""]))


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def foreign(path: Path) -> None:
    path.write_text('{"resumes": 7}')


@pytest.mark.parametrize("damage", [bad_byte, bad_step, pipe, endless], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
def test_a_damaged_log_does_not_stop_a_resume(name, damage: Callable[[Path], None], trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    damage(run / name)
    special = damage in (pipe, endless)
    result = resume_run(run, total_timesteps=64)
    assert result.resume_grade == "exact"
    assert [record["step"] for record in read_lines(run / name)][-1] == 64
    assert (run / name).is_file() and not (run / name).is_symlink()
    assert [note for note in result.notes if name in note and "set aside as" in note] if special else True


@pytest.mark.parametrize("damage", [bad_byte, deep, foreign, pipe, endless], ids=lambda damage: damage.__name__)
def test_damaged_metadata_is_set_aside_and_made_anew(damage: Callable[[Path], None], trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    damage(run / "metadata.json")
    result = resume_run(run, total_timesteps=64)
    assert len([note for note in result.notes if "set aside as damaged-metadata.json" in note]) == 1
    metadata = json.loads((run / "metadata.json").read_text())
    assert (metadata["algo"], metadata["seed"], metadata["status"]) == ("ppo", 0, "completed")
    assert metadata["best_checkpoint"] is not None and len(metadata["resumes"]) == 1
