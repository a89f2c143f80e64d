"""Videos on disk: what a browser plays, whole or not there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.videos import decoded
from rl_training.utils import video_file
from rl_training.utils.errors import UserError, WriteError
from rl_training.utils.video_file import VideoFile, check_video_path, require_encoder

RED, GREEN = (200, 30, 60), (10, 220, 120)


def picture(height: int = 64, width: int = 96) -> Any:
    """Red above, green below."""
    frame = np.empty((height, width, 3), np.uint8)
    frame[: height // 2], frame[height // 2 :] = RED, GREEN
    return frame


def write(path: Path, count: int = 7, fps: float = 25.0, frame: Any = None) -> None:
    with VideoFile(path, fps) as video:
        for _ in range(count):
            video.write(picture() if frame is None else frame)


def test_it_is_h264_that_a_browser_plays_before_all_of_it_is_there(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4")
    video = decoded(tmp_path / "a.mp4")
    assert (len(video.frames), video.fps, video.codec, video.pixels) == (7, 25.0, "h264", "yuv420p")
    data = (tmp_path / "a.mp4").read_bytes()
    assert 0 < data.find(b"moov") < data.find(b"mdat"), "the index comes first"
    assert [path.name for path in tmp_path.iterdir()] == ["a.mp4"]


def test_the_colours_are_those_of_the_frames(tmp_path: Path) -> None:
    for name, tolerance in (("a.mp4", 6), ("a.gif", 64)):
        write(tmp_path / name)
        frame = decoded(tmp_path / name).frames[-1].astype(int)
        assert np.abs(frame[10, 48] - RED).max() <= tolerance and np.abs(frame[50, 48] - GREEN).max() <= tolerance


def test_a_gif_is_no_faster_than_browsers_play_it(tmp_path: Path) -> None:
    write(tmp_path / "a.gif", fps=100.0)
    video = decoded(tmp_path / "a.gif")
    assert (len(video.frames), video.fps, video.codec) == (7, 50.0, "gif")


def test_a_picture_that_is_too_large_is_scaled_down_to_an_even_size(tmp_path: Path) -> None:
    write(tmp_path / "a.mp4", 2, frame=picture(1000, 2560))
    assert decoded(tmp_path / "a.mp4").frames[0].shape == (500, 1280, 3)


ENCODE = """
import hashlib, sys
from pathlib import Path
import numpy as np
from rl_training.utils.video_file import VideoFile
path = Path(sys.argv[1])
with VideoFile(path, 50.0) as video:
    for step in range(12):  # a bar that moves and leans, as poles do
        frame = np.full((424, 604, 3), 255, np.uint8)
        for row in range(200, 324):
            left = 280 + step + (324 - row) * step // 40
            frame[row, left : left + 12] = (202, 152, 101)
        frame[310:350, 250 + step : 330 + step] = 0
        video.write(frame)
print(hashlib.sha256(path.read_bytes()).hexdigest())
"""


def test_the_same_frames_are_the_same_bytes_whatever_was_in_memory_before(tmp_path: Path) -> None:
    """glibc fills memory with a byte of our choice: an encoder that reads what it has not written shows itself."""
    digests = set()
    for fill in ("0", "1", "85", "255"):
        environment = {**os.environ, "MALLOC_PERTURB_": fill}
        command = [sys.executable, "-c", ENCODE, str(tmp_path / "a.mp4")]
        digests.add(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["a.mp4", "a.gif"])
def test_an_error_leaves_what_was_there_before(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"before")

    def fail() -> None:
        with VideoFile(tmp_path / name, 25.0) as video:
            video.write(picture())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: b"before"}


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4])
def test_a_full_disk_is_one_message_and_leaves_nothing(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever write the disk refuses, also those of moving the index to the front."""
    real, calls = os.write, []

    def full(descriptor: int, data: Any) -> int:
        calls.append(1)
        if len(calls) > at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    noise = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
    write(tmp_path / "whole.mp4", 60, frame=noise)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(WriteError, match=r"disk full while writing .*a\.mp4"):
        write(tmp_path / "a.mp4", 60, frame=noise)
    monkeypatch.undo()
    assert len(calls) > at and [path.name for path in tmp_path.iterdir()] == ["whole.mp4"]


@pytest.mark.parametrize(("module", "package"), [("av", "av"), ("PIL", "pillow")])
def test_a_missing_package_is_named_with_the_command(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = video_file.importlib.util.find_spec  # type: ignore[attr-defined]
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == module else real(name, *more))
    with pytest.raises(UserError, match=rf"need the package {package}, .*: pip install \"axiomrl\[video\]\""):
        require_encoder()
    with pytest.raises(UserError, match="axiomrl"):
        VideoFile(tmp_path / "a.mp4", 1.0)


def test_names_that_no_video_can_have(tmp_path: Path) -> None:
    check_video_path(tmp_path / "a.mp4")
    with pytest.raises(UserError, match=r"ends in \.mp4 or \.gif, got .*a\.mkv"):
        check_video_path(tmp_path / "a.mkv")
    with pytest.raises(UserError, match="there is no folder"):
        check_video_path(tmp_path / "no" / "a.mp4")
    (tmp_path / "b.mp4").symlink_to("a.mp4")
    with pytest.raises(UserError, match="is a link; only a regular file can be replaced"):
        check_video_path(tmp_path / "b.mp4")
