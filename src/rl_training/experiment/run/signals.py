"""Ctrl-C, SIGTERM and SIGHUP: once, finish the iteration and save; twice, leave now."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rl_training.utils.stop_signals import STOP_SIGNALS


class ReceivedSignal:
    """The first stop signal of a run, if any."""

    number: int | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.number is None else 128 + self.number


def pass_on(exit_code: int) -> None:
    """Gives a signal that ended a training to whoever was there before it: KeyboardInterrupt after Ctrl-C, the end of the process
    after SIGTERM, or the caller's own handler. For calls from Python; a command says it by its exit code."""
    if exit_code > 128:
        signal.raise_signal(exit_code - 128)


@contextmanager
def stop_on_signals(stop: Callable[[str], None]) -> Iterator[ReceivedSignal]:
    """Calls `stop(name)` on the first SIGINT, SIGTERM or SIGHUP; the second raises KeyboardInterrupt at once.

    A run under `nohup`, which began with SIGHUP ignored, goes on when the terminal is gone. Only the main thread
    can receive signals; elsewhere this does nothing.
    """
    received = ReceivedSignal()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if received.number is not None:
            raise KeyboardInterrupt
        received.number = number
        stop(signal.Signals(number).name)

    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    answered = [number for number in STOP_SIGNALS if number != signal.SIGHUP or not nohup]
    previous: dict[int, Any] = {number: signal.signal(number, handle) for number in answered}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
