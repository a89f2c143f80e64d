"""Numbers at the ends of what a float can hold, in the logs of two methods: every listing still ends in a listing."""

import json
from pathlib import Path

import pytest

from helpers.run_folders import write_run
from rl_training.cli.main import main
from rl_training.utils.numbers import LARGEST

METRICS = (
    "episode_return",
    "train/value_loss",
    "train/q",
    "train/approx_kl",
    "train/entropy_loss",
    "time/steps_per_second",
)


def write_runs(folder: Path, size: float) -> None:
    for seed in range(3):
        value = size * (-1) ** seed
        for algo in ("ppo", "a2c"):
            curve = [(1000, value), (2000, -value), (3000, value), (4000, value / 2)]
            run = write_run(folder / algo / f"run{seed}", algo=algo, seed=seed)
            scores = [{"step": step, "mean": mean, "ci_low": -size, "ci_high": size} for step, mean in curve]
            (run / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scores))
            lines = [
                {"step": 100 * step, **dict.fromkeys(METRICS, value), "time/elapsed": size} for step in range(1, 20)
            ]
            (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("size", [1.7e308, LARGEST, 1e-200, 5e-324])
def test_listings_survive_them(size, tmp_path, capsys):
    write_runs(tmp_path, size)
    runs = str(tmp_path)
    for command in (
        ["report", runs],
        ["report", runs, "--json"],
        ["report", runs, "--format", "csv"],
        ["report", runs, "--output", str(tmp_path / "page.html")],
        ["leaderboard", runs],
        ["leaderboard", runs, "--json"],
        ["leaderboard", runs, "--compare-to", runs],
        ["watch", str(tmp_path / "ppo"), "--once"],
        ["watch", str(tmp_path / "ppo"), "--json"],
    ):
        code = main(command)
        out, err = capsys.readouterr()
        assert "Traceback" not in err, (command, err[-2000:])
        assert code == 0 or (code == 2 and size > LARGEST and "score" in err)
        if "--json" in command and code == 0:
            json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
