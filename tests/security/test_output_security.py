"""What a run's files say reaches terminals, spreadsheets and pages as text only, and `--output` replaces regular files only."""

import json
import os
from pathlib import Path

import pytest

from helpers.run_folders import write_run
from rl_training.cli.main import main

HOSTILE = "a\x1b]0;owned\x07\x1b[2J\u202eb\x9b31mc\ud800"
FORMULA = "=HYPERLINK(0)"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run all of whose texts are hostile."""
    path = write_run(tmp_path / "runs" / "x", algo="ppo", env_id="CartPole-v1", status="failed")
    config = (path / "config.yaml").read_text()
    path.joinpath("config.yaml").write_text(
        config.replace("CartPole-v1", r'"Cart\e]0;owned\x07\e[2JPole"') + 'note: "\\e[31m"\n'
    )
    metadata = json.loads((path / "metadata.json").read_text())
    metadata |= {"stop_reason": HOSTILE, "versions": {HOSTILE: HOSTILE}, "system": {"os": HOSTILE}}
    metadata["resumes"] = [{"checkpoint": HOSTILE, "grade": HOSTILE, "at_utc": HOSTILE, "notes": [HOSTILE]}]
    (path / "metadata.json").write_text(json.dumps(metadata))
    line = {"step": 1000, f"time/{HOSTILE}_share": 0.5, "time/elapsed": 1.0, "episode_return": 1.0}
    (path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return path


def raw_escapes(text: str) -> list[str]:
    return [sign for sign in text if not sign.isprintable() and sign not in "\n\t"]


@pytest.mark.parametrize(
    "command",
    [
        ["report"],
        ["report", "--format", "csv"],
        ["report", "--json"],
        ["leaderboard"],
        ["leaderboard", "--format", "csv"],
        ["leaderboard", "--compare-to", "shipped"],
        ["watch", "--once"],
        ["watch", "--json"],
        ["eval"],
        ["resume"],
    ],
    ids=" ".join,
)
def test_no_escape_sequence_of_a_run_reaches_the_terminal(command, run, capsys):
    name, *options = command
    main([name, str(run), *options])
    out, err = capsys.readouterr()
    assert not raw_escapes(out) and not raw_escapes(err)
    assert "Traceback" not in err
    assert out or err


@pytest.mark.parametrize("command", ["leaderboard", "report"])
def test_csv_holds_no_formula(command, tmp_path, capsys):
    write_run(tmp_path / "runs" / "x", algo=FORMULA, env_id="@SUM(A1)", status="completed")
    assert main([command, str(tmp_path / "runs"), "--format", "csv"]) == 0
    cells = [cell.strip('"') for line in capsys.readouterr().out.splitlines()[1:] for cell in line.split(",")]
    assert f"'{FORMULA}" in cells and "'@SUM(A1)" in cells
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]


@pytest.mark.parametrize("command", [["report"], ["report", "--format", "html"], ["leaderboard"]], ids=" ".join)
@pytest.mark.parametrize("kind", ["link", "pipe", "device", "folder"])
def test_output_never_replaces_what_is_not_a_regular_file(command, kind, tmp_path, capsys):
    write_run(tmp_path / "runs" / "x")
    private = tmp_path / "private"
    private.write_text("mine")
    target = Path(os.devnull) if kind == "device" else tmp_path / "target"
    if kind == "link":
        target.symlink_to(private)
    elif kind == "pipe":
        os.mkfifo(target)
    elif kind == "folder":
        target.mkdir()
    before = target.lstat()
    assert main([*command, str(tmp_path / "runs"), "--output", str(target)]) == 2
    assert f"is a {kind}" in capsys.readouterr().err
    assert target.lstat().st_ino == before.st_ino and private.read_text() == "mine"


def test_a_config_value_of_megabytes_gives_a_short_message(tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(f"algo: ppo\nenv_id: CartPole-v1\nnum_envs: {'x' * 900_000}\n")
    assert main(["train", "--config", str(path)]) == 2
    assert len(capsys.readouterr().err) < 500
