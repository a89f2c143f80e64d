"""The one reader of `metrics.jsonl` and `evaluations.jsonl`, for everything that looks at a run.

Lines are read as a stream, so that memory does not grow with the file. A line that is damaged (bytes that are no UTF-8, no JSON, no
step) is passed over and counted; the others stand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from io import BufferedRandom, BufferedReader
from pathlib import Path
from typing import Any, Final

from rl_training.utils.safe_files import MAX_INT, MAX_NESTING, open_regular, open_regular_to_change, parse_json

Record = dict[str, Any]

MAX_LINE_BYTES: Final = 16 * 2**20
"""A longer line is damaged: the longest that a run writes holds the returns of all episodes of one evaluation."""
_CHUNK: Final = 2**18
_LONG: Final = 2**23
_LAST_PART: Final = 2**18
"""A file with more than `_LONG` bytes to read may be sampled, up to its last part."""
_KNOWN: Final = 128
"""Bytes before the place reached by which a file is known again; every line has a time stamp near its end or start."""


def parse_record(line: bytes) -> Record | None:
    """The record in one line; None if the line is damaged. `step` is always there: a whole number of environment steps."""
    try:
        # Lines are many, so nothing is walked through that cannot be nested deep.
        flat = line.count(b"[") + line.count(b"{") <= MAX_NESTING
        record = json.loads(line.decode("utf-8")) if flat else parse_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and _is_step(record.get("step")) else None


class JsonLines:
    """The records of one file, each read once, also while the file grows.

    Attributes:
        damaged: lines passed over so far.
    """

    def __init__(self, path: Path, *, inside: Path | None = None):
        """With `inside`, the run folder that `path` lies in, no link is followed on the way."""
        self.path, self._inside = path, inside
        self.damaged = 0
        self._offset, self._inode = 0, 0
        self._known = b""

    def records(self, sample: int | None = None) -> Iterator[Record]:
        """The records of the lines finished since the last call; none if there is no file. OSError if it is no regular file.

        A last line without an end is still being written, or was cut short by a crash: it is left for later. With `sample`, of a
        long file only about so many lines are read, evenly spread, and all of its last part: enough for a curve and for the end.
        """
        try:
            file = open_regular(self.path, inside=self._inside)
        except FileNotFoundError:
            return
        with file:
            status = os.fstat(file.fileno())
            self._inode = status.st_ino
            if sample is not None and status.st_size - self._offset > _LONG:
                yield from self._spread(file, status.st_size - _LAST_PART, sample)
            file.seek(self._offset)
            for line, end in _lines(file, self._offset):
                self._offset = end
                record = parse_record(line) if line is not None else None
                if record is None:
                    self.damaged += line is None or bool(line.strip())
                else:
                    yield record
            self._known = _before(file, self._offset)

    def _spread(self, file: BufferedReader, end: int, count: int) -> Iterator[Record]:
        """About `count` records from here to `end`, evenly spread; goes on to the first line after `end`."""
        begin = self._offset
        for number in range(1, count + 1):
            place = begin + (end - begin) * number // count
            if place <= self._offset:
                continue
            file.seek(place)
            place += len(file.readline(MAX_LINE_BYTES + 1))  # the rest of the line in which it lies
            if number == count:
                self._offset = place
                return
            line = file.readline(MAX_LINE_BYTES + 1)
            self._offset = place + len(line)
            if (record := parse_record(line)) is not None:
                yield record

    def replaced(self) -> bool:
        """Whether the file no longer begins with what was read: it is another one, or a resume has cut lines off."""
        if not self._offset:
            return False
        try:
            with open_regular(self.path, inside=self._inside) as file:
                same = os.fstat(file.fileno()).st_ino == self._inode
                return not same or _before(file, self._offset) != self._known
        except FileNotFoundError:
            return True

    def rewind(self) -> None:
        """Begins again at the first line."""
        self._offset = self._inode = self.damaged = 0
        self._known = b""


def cut_after(path: Path, step: int, *, inside: Path | None = None) -> int:
    """Takes off the lines after the last sound one that is not beyond `step`; returns how many damaged ones were among them.

    Lines are in the order of their steps, so only the end of the file is read, however long it is. The file is cut in place: what
    stays is not written again.
    """
    try:
        file = open_regular_to_change(path, inside=inside)
    except FileNotFoundError:
        return 0
    with file:
        size, damaged = file.seek(0, os.SEEK_END), 0
        keep = 0
        for line, end, whole in _lines_from_end(file, size):
            record = parse_record(line) if whole else None
            if record is not None and record["step"] <= step:
                keep = end
                break
            damaged += whole and record is None and bool(line.strip())
        if keep != size:
            file.truncate(keep)
            file.flush()
            os.fsync(file.fileno())
    return damaged


def damage_note(path: Path, damaged: int) -> str:
    """The one note about damaged lines."""
    return f"{path}: {damaged:,} damaged line{'' if damaged == 1 else 's'} passed over"


def _is_step(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT


def _lines(file: BufferedReader, offset: int) -> Iterator[tuple[bytes | None, int]]:
    """(line, offset of its end) of every finished line; None instead of one that is too long, which is never held whole."""
    waiting: list[bytes] = []
    held, too_long = 0, False
    while chunk := file.read(_CHUNK):
        *finished, rest = chunk.split(b"\n")
        for part in finished:
            line = b"".join([*waiting, part]) if waiting else part
            offset += held + len(part) + 1
            yield (None if too_long or len(line) > MAX_LINE_BYTES else line), offset
            waiting, held, too_long = [], 0, False
        held += len(rest)
        too_long = held > MAX_LINE_BYTES
        waiting = [] if too_long else [*waiting, rest]


def _lines_from_end(file: BufferedRandom, size: int) -> Iterator[tuple[bytes, int, bool]]:
    """(line, offset of its end, whether it is finished) from the last line to the first; of one that is too long, a NUL byte."""
    tail, end, whole, too_long = b"", size, False, False  # the end of the line that begins before `start`
    start = size
    while start > 0:
        begin = max(0, start - _CHUNK)
        file.seek(begin)
        chunk = file.read(start - begin)
        cut, start = len(chunk), begin
        while (newline := chunk.rfind(b"\n", 0, cut)) >= 0:
            yield (b"\0" if too_long else chunk[newline + 1 : cut] + tail), end, whole
            tail, cut, end, whole, too_long = b"", newline, begin + newline + 1, True, False
        too_long = too_long or cut + len(tail) > MAX_LINE_BYTES
        tail = b"" if too_long else chunk[:cut] + tail
    if size:
        yield (b"\0" if too_long else tail), end, whole


def _before(file: BufferedReader, offset: int) -> bytes:
    """The bytes just before `offset`."""
    begin = max(0, offset - _KNOWN)
    file.seek(begin)
    return file.read(offset - begin)
