"""From an exception that nobody expected to a message: whose code raised it, and where."""

from __future__ import annotations

import errno
import os
import sysconfig
import traceback
from pathlib import Path

from rl_training.utils.printable import quoted

PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})
_BAD_NAMES = (errno.ENAMETOOLONG, errno.EILSEQ, errno.ELOOP, errno.ENOTDIR)
"""What a file system answers to a path that cannot exist."""


def user_place(error: BaseException) -> str | None:
    """`file.py:12` of the innermost line that is neither ours nor of an installed package; None if no such code took part."""
    if isinstance(error, SyntaxError) and error.filename is not None and _is_users(error.filename):
        return f"{_short(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f"{_short(frame.filename)}:{frame.lineno}"
    return None


def any_place(error: BaseException) -> str:
    """The innermost line of all, in whosever code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown place"


def summary(error: BaseException) -> str:
    """`ValueError: what it says`, on one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, SyntaxError):
        text = error.msg
    name = type(error).__name__
    return f"{name}: {text[:200]}" if text else name


def unexpected(error: Exception) -> tuple[str, int]:
    """(message, exit code) for an exception that is not one of ours; a bug's traceback has been printed then."""
    if isinstance(error, OSError) and error.filename is not None:
        name = os.fsdecode(error.filename) if isinstance(error.filename, bytes | str) else str(error.filename)
        return f"{quoted(name)}: {error.strerror}", 2 if error.errno in _BAD_NAMES else 1
    traceback.print_exception(error)
    if (place := user_place(error)) is not None:
        return f"the code at {place}, which AxiomRL called, failed: {summary(error)}", 1
    return "this is a bug in AxiomRL: please report it with the lines above", 1


def left(error: SystemExit) -> str:
    """The message for a sys.exit() in the middle of a command: that would end a run as if it had gone well."""
    place = user_place(error) or any_place(error)
    return (
        f"the code at {place} called sys.exit({error.code!r}) in the middle of the command; raise an exception instead"
    )


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):  # <frozen importlib>, <string>
        return False
    path = Path(filename).resolve()
    return not path.is_relative_to(PACKAGE) and not str(path).startswith(_LIBRARIES)


def _short(filename: str) -> str:
    """Relative to the current folder where it lies in it."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
