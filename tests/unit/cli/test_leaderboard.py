"""`axiomrl leaderboard`: exit codes, messages, and what it imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.run_folders import write_result, write_run
from rl_training.cli.main import main


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed, score in enumerate((480.0, 490.0, 500.0)):
        write_run(tmp_path / "runs" / f"ppo{seed}", seed=seed, curve=[(500, 500.0), (1000, score)])
    write_run(tmp_path / "runs" / "a2c", algo="a2c", curve=[(1000, 200.0)])
    return tmp_path / "runs"


def test_runs_are_ranked(runs: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["leaderboard", str(runs)]) == 0
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()[2:4]]
    assert rows[0][:4] == ["1", "ppo", "3!", "490.0"] and rows[0][-2:] == ["500.0", "1k"]
    assert rows[1][:4] == ["2", "a2c", "1!", "200.0"]


def test_with_nothing_named_it_shows_the_shipped_results(capsys: pytest.CaptureFixture) -> None:
    assert main(["leaderboard", "--env", "CartPole-v1", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["source"] == "shipped" and [task["task"] for task in values["tasks"]] == ["CartPole-v1"]
    entries = {entry["preset"]: entry for entry in values["tasks"][0]["entries"]}
    assert entries["ppo/cartpole"]["last_mean"] == 500.0 and entries["ppo/cartpole"]["algo"] == "ppo"


def test_a_regression_has_its_own_exit_code(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_run(tmp_path / "now" / "run", seed=9, curve=[(1000, 20.0)], hyperparams={"learning_rate": 1.0})
    gate = ["leaderboard", str(tmp_path / "now"), "--compare-to", str(runs)]
    assert main(gate) == 0, "without the option the comparison is only shown"
    assert "worse" in capsys.readouterr().out
    assert main([*gate, "--fail-on-regression"]) == 3
    captured = capsys.readouterr()
    assert captured.err == "regression: ppo on CartPole-v1: worse (20 against 490)\n"
    assert "learning_rate is 1.0, in the baseline 0.001" in captured.out
    assert main([*gate, "--fail-on-regression", "--tolerance", "480"]) == 0
    assert main(["leaderboard", str(runs), "--compare-to", str(runs), "--fail-on-regression"]) == 0


def test_a_run_that_failed_does_not_pass_the_gate(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write_run(tmp_path / "now" / "run", status="failed", curve=[(500, 500.0)])
    assert main(["leaderboard", str(tmp_path / "now"), "--compare-to", str(runs), "--fail-on-regression"]) == 3
    assert capsys.readouterr().err == "regression: ppo on CartPole-v1: no score\n"


@pytest.mark.parametrize("kind", ["file", "folder", "run", "shipped"])
def test_a_baseline_may_be_anything_with_scores(
    kind: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    write_result(tmp_path / "results" / "ppo.json", [500.0] * 5)
    baseline = {"file": tmp_path / "results/ppo.json", "folder": tmp_path / "results", "run": runs / "ppo0"}
    arguments = ["--compare-to", str(baseline.get(kind, "shipped")), "--algo", "ppo", "--json"]
    assert main(["leaderboard", str(runs), *arguments]) == 0
    (group,) = json.loads(capsys.readouterr().out)["comparison"]["groups"]
    assert group["baseline_mean"] == {"run": 480.0}.get(kind, 500.0)


def test_bad_runs_are_named_and_skipped(runs: Path, capsys: pytest.CaptureFixture) -> None:
    (runs / "ppo0" / "metadata.json").unlink()
    newer = runs / "ppo1" / "metadata.json"
    newer.write_text(newer.read_text().replace('"schema": 1', '"schema": 9'))
    assert main(["leaderboard", str(runs), "--json"]) == 0
    captured = capsys.readouterr()
    notes = [line for line in captured.err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 2 and "half-written run" in notes[0] and "newer AxiomRL" in notes[1]
    assert len(json.loads(captured.out)["notes"]) == 2


def test_mistakes_are_exit_2_with_one_message(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "begun" / "run", curve=[], status="running")
    empty = str(tmp_path / "empty")
    for arguments, message in [
        ([empty], "no run and no result found in"),
        ([str(tmp_path / "missing")], "does not exist"),
        ([str(tmp_path / "begun")], "no run has a score: ppo on CartPole-v1"),
        ([str(runs), "--compare-to", empty], "no run and no result found in"),
        (
            [str(runs), "--compare-to", str(runs), "--env", "Hopper-v5"],
            "no run of environment 'Hopper-v5'; there are CartPole-v1",
        ),
        ([str(runs), "--algo", "sac"], "no run of algorithm 'sac'; there are a2c, ppo"),
        ([str(runs), "--fail-on-regression"], "--fail-on-regression needs a baseline"),
        ([str(runs), "--tolerance", "3"], "--tolerance needs a baseline"),
        ([str(runs), "--compare-to", str(runs), "--tolerance", "-3"], "must be a score of 0 or more"),
        (["--compare-to", "shipped"], "name the runs to compare"),
        ([str(runs), "--min-seeds", "0"], "--min-seeds must be at least 1"),
        ([str(runs), "--json", "--format", "csv"], "not both"),
        ([str(runs), "--output", str(tmp_path / "no" / "file")], "cannot write --output"),
    ]:
        assert main(["leaderboard", *arguments]) == 2, arguments
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ") and message in captured.err and captured.err.count("\n") == 1
        assert captured.out == ""


def test_output_goes_to_a_file(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["leaderboard", str(runs), "--format", "csv", "--output", str(tmp_path / "board.csv")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "board.csv").read_text().startswith("task,rank,tied,algo,")


def test_fewer_seeds_than_asked_are_flagged(runs: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["leaderboard", str(runs), "--algo", "ppo", "--min-seeds", "3"]) == 0
    assert "!" not in capsys.readouterr().out


def test_it_starts_without_torch_and_gymnasium(runs: Path) -> None:
    code = (
        "import sys\nfrom rl_training.cli.main import main\n"
        "assert main(sys.argv[1:]) == 0\nprint('MODULES', *sys.modules)"
    )
    command = [sys.executable, "-c", code, "leaderboard", str(runs), "--compare-to", "shipped"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not set(result.stdout.rsplit("MODULES", 1)[1].split()) & {"torch", "gymnasium", "scipy", "matplotlib"}
