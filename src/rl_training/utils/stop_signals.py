"""The signals that ask a run to save and leave: Ctrl-C, SIGTERM, and SIGHUP for a terminal that is gone.

All of them are the main process's to answer. Its helpers may get them too, because a terminal and many schedulers send them to
every process of a job; a helper that died of one could not help to save.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Keeps them waiting. A process started meanwhile begins with them blocked, so that they cannot hit it while it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_stop_signals_to_main_process() -> None:
    """Called by a helper process as soon as it runs: ignores them, also those that have come while they were blocked."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
