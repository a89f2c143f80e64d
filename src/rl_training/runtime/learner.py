"""A replica of an algorithm that learns in a process of its own.

Two threads would share one interpreter, and an update is hundreds of short calls from it: beside environments written in Python it
waits longer for its turn than it works. The replica gets rollouts and answers with its whole state, by value: nothing is shared,
so that timing decides nothing, and the algorithm it was made for is always as if it had learned itself.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import Algorithm, Metrics
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.execution.batches import mapped
from rl_training.utils.errors import AxiomError, LearnerError
from rl_training.utils.spaces import Array
from rl_training.utils.stop_signals import leave_stop_signals_to_main_process, stop_signals_blocked

AnyAlgorithm = Algorithm[Any, RolloutBuffer]


@dataclass(frozen=True)
class LearnerSpec:
    """What the other process needs to make the same algorithm again. Both makers must be picklable."""

    make_algorithm: Callable[[], AnyAlgorithm]
    make_buffer: Callable[[], RolloutBuffer]


@dataclass(frozen=True)
class Learned:
    """What an update took and told."""

    metrics: Metrics
    seconds: float


class Learner:
    """Lets the replica of an algorithm learn, and brings the algorithm up to date with it."""

    def __init__(self, algorithm: AnyAlgorithm, spec: LearnerSpec):
        self._algorithm, self._spec, self._weights = algorithm, spec, _weights(algorithm)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._outbox = Queue[Any]()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps the other process for as long as the block lasts."""
        ours, theirs = Pipe()
        # Not through multiprocessing, which would run the user's script again to find its functions. The end of the pipe is the
        # end of the process, however this one ends.
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({theirs.fileno()})"
        with stop_signals_blocked():  # until it has said that they are not for it
            self._process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()])
        self._connection, self._outbox = ours, Queue()
        theirs.close()
        # Sent by a thread: if both processes were sending, and neither reading, both would wait for ever. Here and not there,
        # because this process has the time for it.
        sender = Thread(target=_send_all, args=(self._outbox, ours), daemon=True)
        sender.start()
        try:
            self._introduce(ours)
            yield
        finally:
            self._connection = None
            self._process.kill()  # it has nothing of its own, and may be in an update that nobody waits for
            self._process.wait()
            self._outbox.put(None)
            sender.join()
            ours.close()

    def _introduce(self, connection: Connection) -> None:
        try:
            connection.send((self._spec, torch.get_num_threads(), self._weights, _arrays(self._algorithm.state_dict())))
        except ConnectionError:
            raise self._death() from None

    def begin(self, rollout: RolloutBuffer, progress: float) -> None:
        """Starts an update from a complete rollout, which may be overwritten afterwards. Updates queue up behind each other."""
        self._outbox.put((_arrays(rollout.state_dict()), progress))

    def finish(self) -> Learned:
        """Waits for the oldest update that was begun. From now on the algorithm is as it is after it."""
        assert self._connection is not None, "running() comes first"
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise self._death() from None
        if isinstance(answer, BaseException):
            raise answer
        weights, state, metrics, seconds = answer
        _copy(weights, self._weights)
        self._algorithm.load_state_dict(_tensors(state))
        return Learned(_tensors(metrics), seconds)

    def _death(self) -> LearnerError:
        assert self._process is not None
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        return LearnerError(
            f"the process that learns {how} (overlap: true).\n"
            "SIGKILL usually means that memory ran out. The newest checkpoint can be resumed; overlap: false needs less."
        )


def serve(descriptor: int) -> None:
    """The other process: makes the replica, then learns from each rollout that comes until none can come any more."""
    leave_stop_signals_to_main_process()  # which may want one more update before it saves
    connection = Connection(descriptor)
    with suppress(EOFError, ConnectionError):  # the main process has ended
        try:
            _learn_from(connection)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:  # raised again in the main process, where it says where it comes from
            if not isinstance(error, AxiomError):
                error.add_note("In the process that learns:\n" + traceback.format_exc())
            connection.send(error)
            while True:  # until it was read: the main process may be sending, and would find a broken pipe instead
                connection.recv_bytes()


def _learn_from(connection: Connection) -> None:
    spec, threads, weights, state = connection.recv()
    torch.set_num_threads(threads)
    algorithm, buffer = spec.make_algorithm(), spec.make_buffer()
    own_weights = _weights(algorithm)
    _copy(weights, own_weights)
    algorithm.load_state_dict(_tensors(state))
    while True:
        rollout, progress = connection.recv()
        buffer.load_state_dict(_tensors(rollout))
        begin = time.perf_counter()
        metrics = algorithm.update(buffer, progress)
        seconds = time.perf_counter() - begin
        connection.send((own_weights, _arrays(algorithm.state_dict()), _arrays(metrics), seconds))


def _send_all(outbox: Queue[Any], connection: Connection) -> None:
    """Sends what is put into the outbox, until None is. The end of the pipe is left to whoever reads from it to report."""
    with suppress(ConnectionError):
        while (message := outbox.get()) is not None:
            connection.send(message)


def _weights(algorithm: AnyAlgorithm) -> list[Array]:
    """All that the policy knows, as the memory itself, which every update changes in place."""
    return [tensor.detach().numpy() for tensor in (*algorithm.policy.parameters(), *algorithm.policy.buffers())]


def _copy(arrays: list[Array], to: list[Array]) -> None:
    for array, own in zip(arrays, to, strict=True):
        np.copyto(own, array)


def _arrays(tree: Any) -> Any:
    """The same with arrays in place of tensors, which travel faster."""
    return mapped(lambda tensor: tensor.detach().numpy(), tree)


def _tensors(tree: Any) -> Any:
    """The way back."""
    return mapped(
        lambda tensor: tensor, tree, lambda part: torch.from_numpy(part) if isinstance(part, np.ndarray) else part
    )
