"""Standard output and standard error whose reader has left."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO


def abandon(stream: IO[str]) -> None:
    """Sends all further output of the stream to nowhere, so that nothing fails over it, also not Python's own flush at its exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
