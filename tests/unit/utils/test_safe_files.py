import json
import os
import socket
from pathlib import Path

import pytest

from rl_training.utils.errors import UserError
from rl_training.utils.safe_files import (
    MAX_INT,
    SpecialFileError,
    open_regular,
    open_regular_to_change,
    read_json,
    read_limited,
    require_replaceable,
    special_kind,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder beside a file that does not belong to it."""
    folder = tmp_path / "run"
    (folder / "videos").mkdir(parents=True)
    (folder / "metadata.json").write_text("{}")
    (folder / "videos" / "x.gif").write_bytes(b"GIF")
    (tmp_path / "private").write_text("secret")
    return folder


def make_special(kind: str, path: Path) -> None:
    if kind == "link":
        path.symlink_to(path.parent.parent / "private")
    elif kind == "endless device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))


@pytest.mark.parametrize("kind", ["link", "endless device", "pipe", "folder", "socket"])
@pytest.mark.parametrize(
    "read", [open_regular, open_regular_to_change, lambda path: read_limited(path, 100), read_json]
)
def test_only_regular_files_are_opened_and_nothing_waits(read, kind, run):
    path = run / "metrics.jsonl"
    make_special(kind, path)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        read(path)
    with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
        read_limited(path, 100, inside=run)


def test_no_folder_on_the_way_is_a_link(run, tmp_path):
    assert read_limited(run / "videos" / "x.gif", 10, inside=run) == b"GIF"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.gif").write_bytes(b"private")
    (run / "more").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SpecialFileError, match="a link"):
        read_limited(run / "more" / "x.gif", 10, inside=run)
    with pytest.raises(OSError, match="outside"):
        read_limited(run / "videos" / ".." / ".." / "private", 10, inside=run)
    with pytest.raises(ValueError, match="is not in the subpath"):
        read_limited(tmp_path / "private", 10, inside=run)


def test_the_folder_itself_may_be_reached_by_a_link(run, tmp_path):
    (tmp_path / "newest").symlink_to(run)
    assert read_json(tmp_path / "newest" / "metadata.json", inside=tmp_path / "newest") == {}


def test_a_missing_file_is_missing(run):
    for inside in (None, run):
        with pytest.raises(FileNotFoundError):
            open_regular(run / "none", inside=inside)


def test_a_file_beyond_the_limit_is_not_read(run):
    path = run / "long"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse: it would fill the memory
    with pytest.raises(OSError, match="more than the 1,000 allowed"):
        read_limited(path, 1000)
    path.write_bytes(b"x" * 1000)
    assert len(read_limited(path, 1000)) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        "[" * 52 + "]" * 52,
        json.dumps({"step": MAX_INT + 1}),
        '{"step": ' + "9" * 5000 + "}",
        b'{"step": "\xff"}',
        "",
        "{",
    ],
    ids=["deep", "too deep", "64 bits", "5000 digits", "bytes", "empty", "cut"],
)
def test_json_that_could_trip_a_reader_is_a_value_error(text, run):
    path = run / "metadata.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match="."):
        read_json(path)


def test_only_regular_files_may_be_replaced(run, tmp_path):
    require_replaceable(run / "new.html")
    require_replaceable(run / "metadata.json")
    for kind, word in {"link": "a link", "pipe": "a pipe", "folder": "a folder"}.items():
        path = run / f"report-{kind}"
        make_special(kind, path)
        assert special_kind(path) == word
        with pytest.raises(UserError, match=word):
            require_replaceable(path)
    with pytest.raises(UserError, match="a device"):
        require_replaceable(Path(os.devnull))
