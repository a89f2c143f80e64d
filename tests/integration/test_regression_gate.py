"""A real training with a broken learning rate is caught by the leaderboard, a sound one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.cli.main import main


def test_a_broken_learning_rate_is_caught_with_one_seed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    short = ["train", "ppo/cartpole", "--total-timesteps", "5000", "--set", "logging.tensorboard=false"]
    assert main([*short, "--seeds", "0,1,2", "--output-dir", str(tmp_path / "baseline")]) == 0
    assert main([*short, "--seed", "3", "--output-dir", str(tmp_path / "sound")]) == 0
    broken = ["--set", "hyperparams.learning_rate=1.0", "--output-dir", str(tmp_path / "broken")]
    assert main([*short, "--seed", "3", *broken]) == 0
    capsys.readouterr()

    gate = ["--compare-to", str(tmp_path / "baseline"), "--fail-on-regression"]
    assert main(["leaderboard", str(tmp_path / "sound"), *gate]) == 0
    assert main(["leaderboard", str(tmp_path / "broken"), *gate]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith("regression: ppo on CartPole-v1: worse (")
    assert "learning_rate is 1.0, in the baseline 0.0003→0.0" in captured.out
