"""The report reads what the training really writes: the names of metrics, stages and settings are the same on both sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_training.cli.main import main
from rl_training.zoo.report.curves import series
from rl_training.zoo.run_records import find_runs
from rl_training.zoo.values import setting

READ_BY_RULES = {
    "ppo": ["train/entropy_loss", "train/approx_kl", "train/explained_variance", "train/value_loss"],
    "dqn": ["train/q"],
    "sac": ["train/q", "train/critic_loss"],
}


@pytest.mark.parametrize(
    ("preset", "options"),
    [
        ("ppo/cartpole", []),
        ("dqn/cartpole", ["--set", "hyperparams.learning_starts=500"]),
        ("sac/pendulum", ["--set", "hyperparams.learning_starts=900"]),
    ],
)
def test_a_short_run(preset: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = ["--set", "evaluation.every=500", "--set", "evaluation.episodes=2", "--set", "logging.every=100"]
    quiet = ["--set", "logging.console=off", "--set", "logging.tensorboard=false"]
    budget = ["--total-timesteps", "1000", "--output-dir", str(tmp_path), "--seed", "3"]
    assert main(["train", preset, *budget, *every, *quiet, *options]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path), "--json"]) == 0
    (run,) = (values := json.loads(capsys.readouterr().out))["runs"]
    assert run["seed"] == 3 and run["status"] == "completed" and run["steps"] >= 1000
    assert run["last_score"] is not None and run["best_score"] >= run["last_score"]
    shares = [run[f"{stage}_share"] for stage in ("env", "inference", "buffer", "learn", "other")]
    assert sum(shares) == pytest.approx(1.0) and min(shares[:4]) > 0 and run["seconds"] > 0
    (group,) = values["environments"][0]["groups"]
    assert group["evaluation"]["steps"][-1] >= 1000 and group["flags"] == ["only 1 seed"]
    (record,), _ = find_runs([tmp_path])
    for key in ("episode_return", *READ_BY_RULES[record.algo]):
        assert len(series(record.metrics, key)) > 0, key
    for key in ("execution", "num_threads", "num_envs", "total_timesteps", "env.backend", "env.normalize_rewards"):
        assert setting(record.config, key) is not None, key
    assert {"versions", "system", "git", "stop_reason", "resumes", "created_at_utc"} <= set(record.metadata)
