"""From an exception that nobody expected to a message: whose code raised it, and where."""

from __future__ import annotations

import errno
import os
import traceback

from rl_training.utils.printable import quoted
from rl_training.utils.user_code import any_place, summary, user_place

_BAD_NAMES = (errno.ENAMETOOLONG, errno.EILSEQ, errno.ELOOP, errno.ENOTDIR)
"""What a file system answers to a path that cannot exist."""


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
