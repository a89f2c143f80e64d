"""A TensorBoard event file, written at once and by the thread that trains.

TensorBoard's own writer has a thread of its own, where a full disk shows too late and as a traceback. A run writes one event per
report, which costs less than handing it over.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.utils.disk import append, writing


class EventFile:
    """One more file in a TensorBoard folder. With `purge_step`, TensorBoard forgets what older ones say from that step on."""

    def __init__(self, folder: Path, purge_step: int | None = None):
        from tensorboard.compat.proto.event_pb2 import SessionLog

        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        with writing(self.path):
            folder.mkdir(parents=True, exist_ok=True)
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            self._write(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """Numbers of one moment, as one event."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(step=step, summary=Summary(value=values))

    def _write(self, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

        data = Event(wall_time=time.time(), **content).SerializeToString()
        # TFRecord: the length, the data, and a checksum of each.
        length = struct.pack("<Q", len(data))
        record = [length, struct.pack("<I", masked_crc32c(length)), data, struct.pack("<I", masked_crc32c(data))]
        with writing(self.path):
            append(self.path, b"".join(record))
