"""Writing to disk: whole or not at all, and a message where the disk has no more to give.

Every file of a run is written through here, by the calls of `os` alone: a test can therefore stop a run at each of them, and no
buffer is left whose writing fails later, where nobody expects it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from rl_training.utils.errors import AxiomError, UserError, WriteError

FULL = (errno.ENOSPC, errno.EDQUOT)
_THE_USERS = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP)
_MOST_AT_ONCE = 2**30
"""Linux writes at most 2 GiB with one call."""

Kind = Literal["tmp", "old", "del"]


def write_failure(target: Path, error: OSError) -> AxiomError:
    """The error to show for a failure of the file system while writing `target`."""
    if error.errno in FULL:
        return WriteError(
            f"disk full while writing {target}; what was saved before is untouched. Free some space, then resume the run"
        )
    if error.errno in _THE_USERS:
        cause = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        return UserError(f"cannot write {target} ({cause}); choose a folder that you may write to")
    return WriteError(
        f"cannot write {target}: {error.strerror or error}; what was saved before is untouched. "
        "Look at the disk, then resume the run"
    )


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turns what the file system says while `target` is written into one message."""
    try:
        yield
    except OSError as error:
        raise write_failure(target, error) from error


def open_to_write(path: Path, flags: int) -> int:
    """A descriptor for writing, without following a link or waiting for a pipe's reader; `flags` are added."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | flags, 0o666)


def set_aside(path: Path) -> Path:
    """Renames what is damaged to `damaged-NAME`, with a number where that is taken; returns the new name."""
    count, target = 0, path.with_name(f"damaged-{path.name}")
    while os.path.lexists(target):
        count += 1
        target = path.with_name(f"damaged-{path.name}-{count}")
    path.rename(target)
    return target


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Writes every byte; the system may take fewer at a time."""
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(descriptor, left[:_MOST_AT_ONCE]) :]


def create_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """A new file, durable when this returns. FileExistsError if there is one already."""
    descriptor = open_to_write(path, os.O_EXCL)
    try:
        for chunk in chunks:
            write_all(descriptor, chunk)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a small file so that a reader, or a crash, sees the old content or the new one."""
    # The process is in the name, because files outside a run folder have no lock: two may write them at once.
    temporary = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        create_file(temporary, [data])
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def overwrite_file(path: Path, text: str) -> None:
    """Writes over a small file of JSON in the room that it has already: the last word on a disk that has none for a new one.

    Not atomic, but one call; spaces fill what the text leaves of the old one.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        data = text.encode().ljust(status.st_size)
        if len(data) > status.st_blocks * 512:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.pwrite(descriptor, data, 0)
    finally:
        os.close(descriptor)


def append(path: Path, data: bytes) -> None:
    """Adds to the end of a file, which is made if it is not there."""
    descriptor = open_to_write(path, os.O_APPEND)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


def fsync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sibling(kind: Kind, target: Path) -> Path:
    """A hidden working name beside `target`: `tmp` (being written), `old` (until its replacement is there) or `del`."""
    return target.with_name(f".{kind}-{target.name}")


def standing_in(target: Path) -> Path:
    """`target`, or the one it was to replace if a crash fell between the two. For readers, which mend nothing."""
    if os.path.lexists(target) or not (old := sibling("old", target)).is_dir():
        return target
    return old


def discard(folder: Path) -> None:
    """Removes a folder. Renamed first, so that nobody meets it with half of its files; what cannot be removed is swept later."""
    doomed = sibling("del", folder)
    _remove(doomed)
    folder.rename(doomed)
    _remove(doomed)


def sweep(parent: Path, name: str | None = None) -> None:
    """Clears away what writers that ended early left in `parent` (only for `name`, where given).

    Only for whoever knows that nobody else is writing there. A folder that was moved aside for a replacement that never came is
    moved back.
    """
    if not parent.is_dir():
        return
    for entry in sorted(parent.iterdir()):
        kind, _, target = entry.name.partition("-")
        if kind not in (".tmp", ".old", ".del") or not target or name not in (None, target):
            continue
        if kind == ".old" and not os.path.lexists(parent / target):
            entry.rename(parent / target)
        else:
            _remove(entry)


def _remove(path: Path) -> None:
    # Errors are passed over: a folder on NFS cannot go while somebody reads a file in it, and that must not end a run.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """One writer at a time in `folder`, where the file system has locks for folders (NFS has none). Ends with the process."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
