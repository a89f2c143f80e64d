"""Replayed experience on disk, written once: a checkpoint names the segments it is made of and adds only what is new.

A segment is a folder in the checkpoint format (checksums, atomic rename) with the transitions of one stretch of steps; it never
changes. So a checkpoint of a large buffer costs as much as what was collected since the last one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.checkpoint.store import Checkpoint, read_checkpoint, write_checkpoint
from rl_training.utils.disk import discard, standing_in, sweep, writing
from rl_training.utils.errors import CheckpointError
from rl_training.utils.printable import quoted
from rl_training.utils.safe_files import MAX_INT

FOLDER = "segments"
INFO = "replay_segments"
MAX_SEGMENTS = 64


class ReplaySegments:
    """The segments of one run, in `checkpoints/segments/`."""

    def __init__(self, checkpoints: Path):
        self.folder = checkpoints / FOLDER
        self._segments: list[dict[str, Any]] = []

    def save(self, buffer: ReplayBuffer) -> list[dict[str, Any]]:
        """Writes what is new since the last call; returns the segments that make up the whole buffer, for the checkpoint."""
        oldest, counts = buffer.oldest(), buffer.counts
        self._segments = [segment for segment in self._segments if (np.array(segment["stop"]) > oldest).any()]
        if len(self._segments) >= MAX_SEGMENTS:
            self._segments = []  # merge: many small segments become one
        # What an environment has overwritten since the last save is not in the buffer any more.
        start = np.maximum(self._segments[-1]["stop"], oldest) if self._segments else oldest
        if (counts > start).any():
            name = f"rows_{int(start.sum()):012d}_{int(counts.sum()):012d}"
            write_checkpoint(self.folder / name, {"rows": buffer.export_rows(start, counts)}, {})
            self._segments.append({"name": name, "start": start.tolist(), "stop": counts.tolist()})
        return list(self._segments)

    def adopt(self, checkpoint: Checkpoint) -> None:
        """Continues the list of a checkpoint that was loaded."""
        self._segments = _listed(checkpoint)

    def recover(self) -> None:
        """Clears away what a crash left half-written. For the run's one writer."""
        with writing(self.folder):
            sweep(self.folder)

    def verify(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if a segment the checkpoint needs is missing or damaged."""
        for segment in _listed(checkpoint):
            path = self.folder / segment["name"]
            if not standing_in(path).is_dir():
                raise CheckpointError(f"checkpoint {checkpoint.path}: its replay segment {path} is missing")
            read_checkpoint(path)

    def collect_garbage(self, checkpoints: Iterable[Path]) -> None:
        """Removes segments that none of the checkpoints needs, and what a crash left half-written."""
        needed = {segment["name"] for segment in self._segments}
        for path in checkpoints:
            try:
                needed |= {segment["name"] for segment in _listed(read_checkpoint(path, ()))}
            except CheckpointError:
                return  # what it needs is not known, and a disk that cannot be read now may be readable tomorrow
        with writing(self.folder):
            sweep(self.folder)
            for path in self.folder.glob("rows_*"):
                if path.name not in needed:
                    discard(path)


def saved_replay(checkpoint: Checkpoint) -> dict[str, Any]:
    """The buffer's state in a checkpoint, its rows read from the segments beside it unless they are in the checkpoint itself."""
    group = checkpoint.groups["replay"]
    if "rows" in group:
        if _listed(checkpoint):
            raise CheckpointError("its replayed experience is there twice, in it and in segments")
        return dict(group)
    folder = checkpoint.path.parent / FOLDER
    return {"head": group["head"], "rows": [_rows(folder, segment) for segment in _listed(checkpoint)]}


def _rows(folder: Path, segment: dict[str, Any]) -> Any:
    """A segment's steps, which must be those that the checkpoint lists: the next save begins where they end."""
    rows = read_checkpoint(folder / segment["name"]).groups["rows"]
    if any(not np.array_equal(rows[bound], segment[bound]) for bound in ("start", "stop")):
        raise CheckpointError(f"the replay segment {segment['name']} holds other steps than the checkpoint says")
    return rows


def _listed(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    segments = checkpoint.info.get(INFO, [])
    if not isinstance(segments, list) or len(segments) > MAX_SEGMENTS:
        raise CheckpointError(f"checkpoint {checkpoint.path}: {quoted(segments)} is not a list of replay segments")
    for segment in segments:
        sound = isinstance(segment, dict) and set(segment) == {"name", "start", "stop"}
        if not (sound and re.fullmatch(r"rows_\d{1,20}_\d{1,20}", str(segment["name"])) and _are_steps(segment)):
            raise CheckpointError(f"checkpoint {checkpoint.path}: {quoted(segment)} is not a replay segment")
    return list(segments)


def _are_steps(segment: dict[str, Any]) -> bool:
    start, stop = segment["start"], segment["stop"]
    if not (isinstance(start, list) and isinstance(stop, list) and len(start) == len(stop)):
        return False
    return all(type(step) is int and 0 <= step <= MAX_INT for step in (*start, *stop))
