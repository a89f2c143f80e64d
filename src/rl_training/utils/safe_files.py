"""Reading files that somebody else may have made or damaged.

A run folder can be downloaded, shared, half-written or tampered with. So whatever reads one opens regular files only, follows no
link, stays inside the folder and reads no more than a limit: a pipe cannot make it wait, an endless device cannot fill the memory,
and a link cannot make it show what lies elsewhere. All failures are OSError, or ValueError for what is in the file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any, Final

from rl_training.utils.errors import UserError

MAX_JSON_BYTES: Final = 64 * 2**20
"""Longest JSON document that is read whole; a run's own are a few kilobytes."""
MAX_NESTING: Final = 50
"""Deepest nesting of values from a file; far below Python's recursion limit."""
MAX_INT: Final = 2**63 - 1
"""Largest size of an integer from a file: nothing that is counted or seeded needs more, and every one of them fits a float."""

_FLAGS = (
    os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
)  # O_NONBLOCK: opening a pipe must not wait for a writer
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class SpecialFileError(OSError):
    """Something other than a regular file where one was expected."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(errno.EINVAL, f"is {kind}, not a regular file", str(path))


def open_regular(path: Path, *, inside: Path | None = None) -> BufferedReader:
    """Opens a regular file for reading; a link, a pipe or a device in its place is refused.

    With `inside`, a folder that `path` lies in, none of the folders between the two may be a link either.
    """
    return os.fdopen(_open(path, os.O_RDONLY, inside), "rb")


def open_regular_to_change(path: Path, *, inside: Path | None = None) -> BufferedRandom:
    """The same for reading and writing a file that is there already; nothing is created."""
    kind = special_kind(path)  # before it is opened: opening a device for writing can have effects of its own
    if kind is not None:
        raise SpecialFileError(path, kind)
    return os.fdopen(_open(path, os.O_RDWR, inside), "r+b")


def special_kind(path: Path) -> str | None:
    """`a link`, `a folder`, `a pipe`, `a socket` or `a device`; None for a regular file or nothing at all."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "a special file")


def require_replaceable(path: Path, option: str = "--output") -> None:
    """UserError unless `path` is free or a regular file: links, pipes and devices are never replaced or written through."""
    kind = special_kind(path)
    if kind is not None:
        raise UserError(f"{path} is {kind}; only a regular file can be replaced. Name another file with {option}")


def read_limited(path: Path, limit: int, *, inside: Path | None = None) -> bytes:
    """The whole of a file of at most `limit` bytes; a longer one is refused before anything is read."""
    with open_regular(path, inside=inside) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(limit + 1) if size <= limit else b""
    if max(size, len(data)) > limit:
        raise OSError(errno.EFBIG, f"has {max(size, len(data)):,} bytes, more than the {limit:,} allowed", str(path))
    return data


def read_json(path: Path, *, limit: int = MAX_JSON_BYTES, inside: Path | None = None) -> Any:
    """A JSON document whose values are small enough for everything that looks at them later; ValueError if it is none."""
    return parse_json(read_limited(path, limit, inside=inside))


def parse_json(data: bytes) -> Any:
    """The value of a JSON text in UTF-8; ValueError for nesting or integers beyond the limits too."""
    try:
        value = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels") from None
    check_values(value)
    return value


def check_values(value: Any, depth: int = 0) -> None:
    """ValueError for values from a file that are nested too deep or hold an integer too large to compute with."""
    if depth > MAX_NESTING:
        raise ValueError(f"nested deeper than {MAX_NESTING} levels")
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            check_values(item, depth + 1)
    elif isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
        raise ValueError("an integer of more than 63 bits")


def _open(path: Path, mode: int, inside: Path | None) -> int:
    descriptor = _open_below(path, mode, inside) if inside is not None else _open_last(str(path), mode, path, None)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise SpecialFileError(path, _KINDS.get(stat.S_IFMT(status.st_mode), "a special file"))
    return descriptor


def _open_below(path: Path, mode: int, inside: Path) -> int:
    *folders, name = path.relative_to(inside).parts or ("",)
    if not name or ".." in (*folders, name):
        raise OSError(errno.EINVAL, f"lies outside {inside}", str(path))
    # Step by step from one open folder to the next: nobody can put a link in the way between a check and the opening.
    place = os.open(inside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            following = _open_last(folder, os.O_RDONLY | os.O_DIRECTORY, path, place)
            os.close(place)
            place = following
        return _open_last(name, mode, path, place)
    finally:
        os.close(place)


def _open_last(name: str, mode: int, path: Path, place: int | None) -> int:
    try:
        return os.open(name, mode | _FLAGS, dir_fd=place)
    except OSError as error:
        # ELOOP says so itself; a link to a folder where a folder must be opened is reported as ENOTDIR.
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(name, place):
            raise SpecialFileError(path, "a link") from None
        if error.errno == errno.ENXIO:
            raise SpecialFileError(path, "a socket or a device") from None
        raise type(error)(error.errno, error.strerror, str(path)) from None


def _is_link(name: str, place: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
    except OSError:
        return False
