"""One run, one writer: the lock of a run folder.

It is the operating system's lock on the file `.lock`, so it ends with the process that holds it, however that ends, and blocks no
later resume. The text in the file only names the holder. Readers do not ask for it. A file system without locks (some network
disks) is said so, and trusted to the user; so are two machines whose shared disk keeps each one's locks to itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import weakref
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from rl_training.utils.disk import write_all, writing
from rl_training.utils.errors import UserError

LOCK = ".lock"

_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Held by the process that trains in `run_dir`; a context manager. Taking it again while it is held changes nothing."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.unsupported = False
        """Whether the file system has no locks."""
        self._file: FileIO | None = None

    def acquire(self) -> None:
        """Takes the lock. UserError with host and process if somebody else has it."""
        if self._file is not None:
            return
        path = self.run_dir / LOCK
        with writing(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            file = FileIO(os.open(path, flags, 0o666), "r+")
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise UserError(
                    f"{self.run_dir} is being trained by {_holder(file)}. A run has one writer: wait until it has ended, "
                    "or stop it; eval, report and watch can read it meanwhile"
                ) from None
        except OSError:
            self.unsupported = True
        self._file = file
        _HELD.add(self)
        with writing(path):
            holder = json.dumps({"host": socket.gethostname(), "process": os.getpid()})
            os.ftruncate(file.fileno(), 0)
            write_all(file.fileno(), holder.encode() + b"\n")

    def release(self) -> None:
        """Gives it back; without effect if it is not held."""
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), 0)
            self._forget()

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _holder(file: FileIO) -> str:
    """Host and process as the holder has written them; whatever else is in the file is not shown."""
    try:
        text = json.loads(os.pread(file.fileno(), 1000, 0))
        host, process = str(text["host"]), int(text["process"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    return f"process {process} on {''.join(filter(str.isprintable, host))[:100]}"


def _forget_all() -> None:
    for lock in list(_HELD):
        lock._forget()


# A forked worker must not keep the lock of a run that was killed.
os.register_at_fork(after_in_child=_forget_all)
