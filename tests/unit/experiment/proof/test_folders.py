"""What counts as a difference between two run folders."""

import json
import shutil
from pathlib import Path

import pytest

from rl_training.cli.main import main
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.proof import resume as proof
from rl_training.experiment.proof.folders import differing_files
from rl_training.experiment.proof.resume import VerifyReport
from rl_training.experiment.run.runner import resume_run, start_run


def train(folder: Path, **changes) -> Path:
    result = start_run(
        TrainConfig(
            env_id="CartPole-v1",
            total_timesteps=96,
            num_envs=2,
            output_dir=str(folder),
            hyperparams={"num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
            evaluation={"every": 48, "episodes": 2},
            checkpoint={"every": 32, "keep": 5},
            logging={"console": "off", "every": 32},
            **changes,
        )
    )
    assert result.run_dir is not None
    return result.run_dir


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def other(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "other"))


def test_the_same_run_at_another_time_and_place_leaves_the_same(whole, tmp_path):
    assert differing_files(whole, train(tmp_path)) == []
    assert differing_files(whole, train(tmp_path / "seed", seed=1)) != []


def change_json(path: Path, key: str, value) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))


CHANGES = {
    "a temporary file": (lambda run: (run / ".tmp-metadata.json-1").touch(), ".tmp-metadata.json-1: only in"),
    "a checkpoint more": (
        lambda run: shutil.copytree(run / "checkpoints/step_000000096", run / "checkpoints/step_000000097"),
        "checkpoints/step_000000097: only in",
    ),
    "a checkpoint less": (lambda run: shutil.rmtree(run / "checkpoints/step_000000032"), "step_000000032: not in"),
    "another best": (lambda run: (run / "checkpoints/best").write_text("step_000000000\n"), "checkpoints/best"),
    "another word on the best": (
        lambda run: change_json(run / "metadata.json", "best_checkpoint", None),
        "metadata.json: best_checkpoint",
    ),
    "another status": (lambda run: change_json(run / "metadata.json", "status", "running"), "metadata.json: status"),
    "a line twice": (
        lambda run: (run / "evaluations.jsonl").write_text(2 * (run / "evaluations.jsonl").read_text()),
        "evaluations.jsonl: ",
    ),
    "another state": (
        lambda run: (
            shutil.rmtree(run / "checkpoints/step_000000096"),
            shutil.copytree(run / "checkpoints/step_000000064", run / "checkpoints/step_000000096"),
        ),
        "checkpoints/step_000000096: policy.weights",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_difference_is_named(change, whole, other):
    act, expected = CHANGES[change]
    act(other)
    assert any(expected in found for found in differing_files(whole, other)), differing_files(whole, other)


def test_a_stop_by_a_rule_outlives_a_kill(tmp_path):
    """A kill after the checkpoint of the last step, before the end of the run: the resume must not go on."""
    whole = train(tmp_path / "whole", stopping={"reward": -1.0})
    killed = Path(shutil.copytree(whole, tmp_path / "killed"))
    change_json(killed / "metadata.json", "status", "running")
    result = resume_run(killed)
    assert result.stop_reason is not None and result.metrics["global_step"] == 64
    assert differing_files(whole, killed) == []
    # Whoever asks for more gets it.
    assert resume_run(killed, changes={"stopping.reward": None}).metrics["global_step"] == 96


def test_fewer_kills_than_asked_prove_nothing(monkeypatch, capsys):
    report = VerifyReport(True, 2, 0, (), (), 42, (), 1.0)
    assert not report.proved and report.to_dict()["proved"] is False
    monkeypatch.setattr(proof, "verify_resume", lambda *args, **options: report)
    assert main(["verify-resume", "ppo/cartpole", "--kills", "2"]) == 1
    assert "0 kills: NOT PROVED, 2 were asked for" in capsys.readouterr().out
