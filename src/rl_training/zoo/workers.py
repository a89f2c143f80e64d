"""Runs side by side, each in a process of its own that ends with its parent: those of a benchmark, and of several seeds."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol, TypeVar

from rl_training.experiment.run.signals import ReceivedSignal, stop_on_signals
from rl_training.utils.errors import AxiomError, UserError
from rl_training.utils.stop_signals import stop_signals_blocked


class Task(Protocol):
    """One run; it is handed to the process that does it."""

    @property
    def log(self) -> Path:
        """Where everything goes that the run prints."""

    @property
    def lock(self) -> Path:
        """Held while the run is being done: two must never write to one run."""

    @property
    def begun(self) -> bool:
        """Whether an earlier process has done a part of it."""

    def work(self) -> None:
        """Does the run; an AxiomError is a failure, or a stop by a signal if its exit code says so."""

    def ending(self) -> str | None:
        """What is said of a run that ended well, or was stopped by a signal; None for nothing."""


TaskT = TypeVar("TaskT", bound=Task)


def run_tasks(tasks: Iterable[TaskT], jobs: int, say: Callable[[str], None]) -> tuple[dict[TaskT, str], ReceivedSignal]:
    """Runs the tasks, at most `jobs` at a time; returns what failed and why, and the signal that stopped it, if any.

    After the first Ctrl-C or SIGTERM nothing new is started and the running processes save and leave; after the second they are
    killed. Either way they continue where they were when the same tasks are run again.
    """
    pending, running, failed = deque(tasks), dict[int, tuple[TaskT, SpawnProcess]](), dict[TaskT, str]()

    def stop(name: str) -> None:
        pending.clear()
        say(f"stopping ({name}): {len(running)} runs are saving; once more to leave at once")
        for _, process in list(running.values()):
            process.terminate()

    with stop_on_signals(stop) as received:
        resource_tracker.ensure_running()  # starting it later would unblock the signals
        try:
            while pending or running:
                while len(running) < jobs:
                    # A signal in here is handled when the process is on the list; the child begins with them blocked.
                    with stop_signals_blocked():
                        if not pending:
                            break
                        task = pending.popleft()
                        say(f"{task}: {'continued' if task.begun else 'started'}")
                        task.log.unlink(missing_ok=True)
                        process = SpawnProcess(target=_work, args=(task,))
                        process.start()
                        running[process.sentinel] = task, process
                ended = set(wait(list(running))) if running else set()
                for sentinel in [sentinel for sentinel in running if sentinel in ended]:
                    task, process = running.pop(sentinel)
                    process.join()
                    if process.exitcode and received.number is None:
                        failed[task] = _reason(task, process.exitcode)
                        say(f"{task}: FAILED: {failed[task]} (log: {task.log})")
                    elif (text := task.ending()) is not None:
                        say(text)
        finally:
            for _, process in running.values():
                process.kill()
    return failed, received


@contextmanager
def locked(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Holds a file's lock, which ends with the process however it ends; waits for it, or raises a UserError saying `busy`."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            raise UserError(str(busy)) from None
        yield


def _work(task: Task) -> None:
    """The body of a process."""
    # Ctrl-C reaches the whole process group, but SIGINT stays blocked here: the parent answers it, and sends SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    task.lock.parent.mkdir(parents=True, exist_ok=True)
    # A process whose parent was killed may still be about to leave.
    with locked(task.lock):
        log = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        try:
            task.work()
        except AxiomError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            sys.exit(error.exit_code)
        except Exception:
            traceback.print_exc()
            sys.exit(1)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _reason(task: Task, exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {signal.Signals(-exit_code).name}"
    text = task.log.read_text(encoding="utf-8", errors="replace") if task.log.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [f"exit code {exit_code}"])[-1]
