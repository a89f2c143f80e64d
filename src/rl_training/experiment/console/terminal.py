"""The terminal that a run is shown on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console


class RunConsole(Console):
    """stderr. rich itself would end the process when the reader of a pipe has left."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@contextmanager
def keys_unseen() -> Iterator[None]:
    """Keeps the terminal from writing `^C` where the cursor is: that breaks the frame of a panel which is drawn in place."""
    try:
        import termios  # here, because not every system has it
    except ImportError:
        yield
        return
    try:
        before = termios.tcgetattr(sys.stdin)
    except (termios.error, OSError, ValueError):  # no terminal, or none at all
        yield
        return
    control, local = before[3], before[3] & ~termios.ECHOCTL
    termios.tcsetattr(sys.stdin, termios.TCSANOW, [*before[:3], local, *before[4:]])
    try:
        yield
    finally:
        with suppress(termios.error, OSError, ValueError):  # it has gone in the meantime
            termios.tcsetattr(sys.stdin, termios.TCSANOW, [*before[:3], control, *before[4:]])
