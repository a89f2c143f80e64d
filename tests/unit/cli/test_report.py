"""`axiomrl report`: where it writes, what it refuses, and how quick it is."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.report_runs import change_metadata, learning_run
from rl_training.cli.main import main


def test_text_is_printed_and_html_goes_to_the_named_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learning_run(tmp_path / "runs" / "a")
    assert main(["report", str(tmp_path / "runs")]) == 0
    assert capsys.readouterr().out.startswith("AxiomRL report: 1 run in 1 group on 1 environment\n")
    assert main(["report", str(tmp_path / "runs"), "--format", "html"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/runs/report.html\n"
    assert "PPO on CartPole-v1" in (tmp_path / "runs" / "report.html").read_text()
    assert main(["report", str(tmp_path / "runs" / "a"), "--format", "html"]) == 0
    assert (tmp_path / "runs" / "a" / "report.html").exists()


def test_several_folders_share_a_page_in_the_folder_above(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        learning_run(tmp_path / name, seed=ord(name))
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "html"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/report.html\n"


def test_runs_is_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert capsys.readouterr().err == "error: runs does not exist\n"
    learning_run(tmp_path / "runs" / "a")
    assert main(["report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["run"] == "runs/a"


@pytest.mark.parametrize(
    ("name", "start"), [("r.html", "<!doctype html>"), ("r.json", "{"), ("r.csv", "run,"), ("r.txt", "Ax")]
)
def test_the_ending_of_the_output_names_the_format(tmp_path: Path, name: str, start: str) -> None:
    learning_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "new" / name)]) == 0
    assert (tmp_path / "new" / name).read_text().startswith(start)


def test_what_cannot_be_read_is_named_and_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    learning_run(tmp_path / "good")
    change_metadata(learning_run(tmp_path / "newer", seed=1), schema=99)
    (learning_run(tmp_path / "half", seed=2) / "config.yaml").unlink()
    (learning_run(tmp_path / "torn", seed=3) / "metadata.json").write_text('{"schema": 1, "sta')
    assert main(["report", str(tmp_path), "--format", "csv"]) == 0
    captured = capsys.readouterr()
    assert [row["run"] for row in csv.DictReader(captured.out.splitlines())] == [str(tmp_path / "good")]
    lines = captured.err.splitlines()
    assert len(lines) == 3 and all(line.startswith("skipped: ") for line in lines)
    assert "newer AxiomRL" in captured.err and "no config.yaml" in captured.err and "cannot be read" in captured.err
    assert main(["report", str(tmp_path), "--format", "html"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "newer AxiomRL" in page and "no config.yaml" in page


def test_nothing_to_report_on_is_one_message_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for arguments in (
        [str(tmp_path / "empty")],
        [str(tmp_path / "nowhere")],
        [str(_file(tmp_path / "file"))],
        [str(_newer(tmp_path / "newer"))],
        [str(learning_run(tmp_path / "run")), "--output", str(tmp_path), "--format", "html"],
        [str(tmp_path / "run"), "--output", str(tmp_path / "file" / "x.html")],
    ):
        assert main(["report", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("error:") == 1 and captured.err.count("\n") <= 2, captured.err


def test_fifty_runs_make_a_page_in_well_under_ten_seconds(tmp_path: Path) -> None:
    for algo in ("ppo", "dqn", "a2c", "sac", "td3"):
        for seed in range(10):
            env_id = "Pendulum-v1" if algo in ("sac", "td3") else "CartPole-v1"
            learning_run(tmp_path / f"{algo}{seed}", algo=algo, seed=seed, env_id=env_id, points=200)
    begin = time.perf_counter()
    assert main(["report", str(tmp_path), "--format", "html"]) == 0
    assert time.perf_counter() - begin < 10
    page = (tmp_path / "report.html").read_bytes()
    assert len(page) < 2_000_000 and page.count(b'id="run-') == 50


def test_the_report_needs_neither_torch_nor_gymnasium(tmp_path: Path) -> None:
    learning_run(tmp_path / "run")
    code = (
        "import sys; from rl_training.cli.main import main; code = main(sys.argv[1:]);"
        "bad = {'torch', 'gymnasium', 'tensorboard'} & set(sys.modules); sys.exit(f'{bad}' if bad else code)"
    )
    command = [sys.executable, "-c", code, "report", str(tmp_path / "run"), "--format", "html"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def _file(path: Path) -> Path:
    path.write_text("")
    return path


def _newer(path: Path) -> Path:
    change_metadata(learning_run(path / "a"), schema=99)
    return path
