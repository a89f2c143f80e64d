"""Pipes, devices and links in the place of a run's files: readers neither wait, nor fill the memory, nor show other files."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.run_folders import write_run
from rl_training.cli.main import main

FILES = ("metadata.json", "config.yaml", "metrics.jsonl", "evaluations.jsonl", "reference.json", "checkpoints/latest")


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """A reader that waits for a pipe would wait for ever."""

    def too_long(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put_special(path: Path, kind: str, private: Path) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "endless device" else private)


@pytest.mark.parametrize(
    "command", [["report"], ["report", "--json"], ["leaderboard"], ["watch", "--once"]], ids=" ".join
)
@pytest.mark.parametrize("kind", ["pipe", "endless device", "link to a private file"])
@pytest.mark.parametrize("file", FILES)
def test_a_special_file_neither_hangs_nor_is_shown(file, kind, command, tmp_path, capsys):
    run = write_run(tmp_path / "runs" / "x", curve=[(1000, 20.0), (2000, 30.0)])
    private = tmp_path / "private"
    private.write_text(json.dumps({"step": 1, "mean": 123456789.0, "schema": 1, "secret": "123456789"}) + "\n")
    put_special(run / file, kind, private)
    with at_most(20):
        code = main([command[0], str(run), *command[1:]])
    out, err = capsys.readouterr()
    assert code in (0, 2) and "Traceback" not in err
    assert "123456789" not in out.replace(",", "") and "123456789" not in err.replace(",", "")


@pytest.mark.parametrize("way", ["the file is a link", "its folder is a link"])
def test_a_linked_file_is_never_put_into_the_page(way, tmp_path, capsys):
    run = write_run(tmp_path / "runs" / "x")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "x.gif").write_bytes(b"PRIVATE BYTES")
    if way == "the file is a link":
        (run / "videos").mkdir()
        (run / "videos" / "x.gif").symlink_to(tmp_path / "private" / "x.gif")
    else:
        (run / "videos").symlink_to(tmp_path / "private")
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--output", str(page)]) == 0
    assert "UFJJVkFURSBCWVRFUw" not in page.read_text() and "x.gif" not in page.read_text()
    capsys.readouterr()


def test_a_video_of_the_run_itself_is_put_into_the_page(tmp_path, capsys):
    run = write_run(tmp_path / "runs" / "x")
    (run / "videos").mkdir()
    (run / "videos" / "x.gif").write_bytes(b"PRIVATE BYTES")
    page = tmp_path / "page.html"
    assert main(["report", str(run), "--output", str(page)]) == 0
    assert "UFJJVkFURSBCWVRFUw" in page.read_text()
    capsys.readouterr()


def test_a_pointer_cannot_name_a_file_elsewhere(tmp_path, capsys):
    """The size of an action is looked up in the newest checkpoint: `latest` may name nothing but a checkpoint of this run."""
    run = write_run(tmp_path / "runs" / "x")
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, 30):
            file.write(json.dumps({"step": step, "train/entropy_loss": -float(step)}) + "\n")
    for name in ("../../../private", "/etc", "step_1/../../../private", "step_000000001", "\x00", "x" * 200):
        (run / "checkpoints" / "latest").write_text(name)
        assert main(["report", str(run)]) == 0
    (run / "checkpoints" / "step_000000001").symlink_to(tmp_path)
    (tmp_path / "state.json").write_text("[")
    assert main(["report", str(run)]) == 0
    capsys.readouterr()
