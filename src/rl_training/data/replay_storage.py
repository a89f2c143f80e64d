"""Where a replay buffer's observations and actions lie: memory, a GPU, or memory-mapped files; final observations kept aside."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.rollout_buffer import Shape
from rl_training.execution.batches import ObsTensor
from rl_training.utils.disk import FULL, open_to_write, write_failure, writing
from rl_training.utils.errors import ConfigError, WriteError

Ints = NDArray[np.int64]
Frames = dict[str, Tensor]
"""One stored row per environment and key: the observation, or its newest frame where frames are stacked."""

PLAIN = ""
"""The key of an observation that is a single tensor."""


class Table:
    """Rows of numbers in main memory, in files or on a GPU, read and written by their numbers."""

    def __init__(self, tensor: Tensor):
        self.tensor, self.device, self.dtype, self.nbytes = tensor, tensor.device, tensor.dtype, tensor.nbytes
        # In main memory NumPy gathers a batch in less than half of torch's time.
        self._array = tensor.numpy() if tensor.device.type == "cpu" else None

    def take(self, rows: NDArray[np.integer[Any]], *, long: bool = False) -> Tensor:
        """(B, ...) copies of the rows (B,), as int64 if `long`."""
        if self._array is not None:
            found = self._array.take(rows, axis=0)
            return torch.from_numpy(found.astype(np.int64) if long else found)
        taken = self.tensor.index_select(0, torch.from_numpy(rows).to(self.device))
        return taken.long() if long else taken

    def put(self, rows: Ints, values: Tensor) -> None:
        """Overwrites the rows (B,) with values (B, ...) from any device."""
        if self._array is not None:
            self._array[rows] = values.detach().cpu().numpy()
        else:
            values = values.detach().to(self.device, self.dtype)
            self.tensor.index_copy_(0, torch.from_numpy(rows).to(self.device), values)


class Allocator:
    """Makes tables on a device, or in memory-mapped files where a folder is given."""

    def __init__(self, device: torch.device | str, folder: Path | None):
        self.device, self.folder = torch.device(device), folder
        if folder is not None:
            if self.device.type != "cpu":
                raise ConfigError(
                    f"a memory-mapped replay buffer lies in files, not on {self.device}: use device cpu or no folder"
                )
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)

    def table(self, name: str, count: int, shape: Shape, dtype: torch.dtype) -> Table:
        """(count, *shape), not initialised. Pages of memory are taken up as rows are written, a file has all of its own at once:

        on a disk that fills up meanwhile, writing to a page that it has no room for would kill the process without a word.
        """
        if self.folder is None:
            return Table(torch.empty((count, *shape), dtype=dtype, device=self.device))
        path = self.folder / f"{name}.bin"
        size = count * math.prod(shape)
        self._reserve(path, size * dtype.itemsize)
        return Table(torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(count, *shape))

    def _reserve(self, path: Path, size: int) -> None:
        try:
            # A tensor that still maps the old file, e.g. one that is being enlarged, keeps it.
            path.unlink(missing_ok=True)
            descriptor = open_to_write(path, os.O_EXCL)
            try:
                if size and hasattr(os, "posix_fallocate"):  # macOS has none
                    os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in FULL:
                raise write_failure(path, error) from error
            free = shutil.disk_usage(path.parent).free
            path.unlink(missing_ok=True)
            raise WriteError(
                f"replay_storage: disk needs {size / 2**30:.2f} GiB for {path}, and the disk has {free / 2**30:.2f} GiB left. "
                "Free some space, choose a smaller hyperparams.buffer_size, or an output_dir on a larger disk"
            ) from error


class ObsStorage:
    """Observations by row, each stored once, and a pool of final observations that grows by doubling.

    With `frame_stack` k > 1 an observation is a stack of k frames, the newest last, of which only the newest is stored. In a
    Dict, the uint8 entries of three and more dimensions are stacks and the others are stored whole.
    """

    def __init__(
        self,
        rows: int,
        obs_shape: Shape | Mapping[str, Shape],
        obs_dtype: torch.dtype | Mapping[str, torch.dtype],
        frame_stack: int,
        allocator: Allocator,
    ):
        self.frame_stack, self.allocator, self.device = frame_stack, allocator, allocator.device
        self.single = not isinstance(obs_shape, Mapping)
        shapes = {k: tuple(s) for k, s in obs_shape.items()} if isinstance(obs_shape, Mapping) else {PLAIN: obs_shape}
        dtypes = dict(obs_dtype) if isinstance(obs_dtype, Mapping) else dict.fromkeys(shapes, obs_dtype)
        self.stacked: frozenset[str] = frozenset()
        if frame_stack > 1:
            images = (key for key in shapes if dtypes[key] is torch.uint8 and len(shapes[key]) >= 3)
            self.stacked = frozenset([PLAIN] if self.single else images)
            if not self.stacked or any(shapes[key][:1] != (frame_stack,) for key in self.stacked):
                raise ConfigError(
                    f"frame_stack {frame_stack} needs observations of {frame_stack} frames, e.g. ({frame_stack}, 84, 84); "
                    f"these have the shape {shapes[PLAIN] if self.single else shapes}"
                )
        # Files are numbered, because a Dict's keys need not be file names.
        self.columns = {
            key: allocator.table(f"obs_{number}", rows, shape[1:] if key in self.stacked else shape, dtypes[key])
            for number, (key, shape) in enumerate(shapes.items())
        }
        self.clear_finals()

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (*self.columns.values(), *self._pool.values())) + self._free.nbytes

    def frames(self, obs: ObsTensor) -> Frames:
        """What is stored of observations (B, ...): the newest frame of a stack, all of anything else."""
        entries = obs if isinstance(obs, dict) else {PLAIN: obs}
        return {
            key: (entries[key][:, -1] if key in self.stacked else entries[key]).to(table.device, table.dtype)
            for key, table in self.columns.items()
        }

    def check_first_stacks(self, obs: ObsTensor) -> None:
        """Refuses stacks (B, k, ...) of episodes' first observations that do not repeat one frame: they could not be rebuilt."""
        entries = obs if isinstance(obs, dict) else {PLAIN: obs}
        for key in self.stacked:
            if not bool((entries[key] == entries[key][:, -1:]).all()):
                raise ConfigError(
                    "frame_stack rebuilds an episode's first observation as its first frame repeated, but this environment "
                    'begins otherwise; stack with gymnasium.wrappers.FrameStackObservation(padding_type="reset")'
                )

    def write(self, rows: Ints, frames: Frames) -> None:
        for key, table in self.columns.items():
            table.put(rows, frames[key])

    def raw(self, rows: Ints) -> Frames:
        """The stored rows as they are, stacks not rebuilt."""
        return {key: table.take(rows) for key, table in self.columns.items()}

    def read(
        self,
        rows_B: Ints,
        stack_rows_BK: Ints | None,
        finals: tuple[Ints, NDArray[np.int32]] | None = None,
        keys: Iterable[str] | None = None,
    ) -> ObsTensor:
        """Observations (B, ...) from the newest frames' rows and, with stacking, all frames' rows; `finals` = (positions in
        the batch, rows of the pool) puts final observations in place of what the ring holds; `keys` are those of a Dict's
        entries that are wanted."""
        out: Frames = {}
        for key in self.columns if keys is None else keys:
            table = self.columns[key]
            if key in self.stacked:
                assert stack_rows_BK is not None
                values = table.take(stack_rows_BK.reshape(-1)).view(
                    len(rows_B), self.frame_stack, *table.tensor.shape[1:]
                )
                newest = values[:, -1]
            else:
                values = newest = table.take(rows_B)
            if finals is not None:
                Table(newest).put(finals[0], self._pool[key].take(finals[1]))
            out[key] = values
        return out[PLAIN] if self.single else out

    def keep_finals(self, frames: Frames) -> NDArray[np.int32]:
        """Stores final observations (K, ...) in the pool and returns their rows there (K,)."""
        count = len(next(iter(frames.values())))
        if count > self._free_count:
            self._grow(count - self._free_count)
        self._free_count -= count
        rows = self._free[self._free_count : self._free_count + count].copy()
        for key, pool in self._pool.items():
            pool.put(rows.astype(np.int64), frames[key])
        return rows

    def finals(self, rows: Ints) -> Frames:
        """Rows (K,) of the pool."""
        return {key: pool.take(rows) for key, pool in self._pool.items()}

    def release_finals(self, rows: NDArray[np.int32]) -> None:
        """Gives rows (K,) of the pool back."""
        self._free[self._free_count : self._free_count + len(rows)] = rows
        self._free_count += len(rows)

    def clear_finals(self) -> None:
        self._pool: dict[str, Table] = {}
        # The first `_free_count` of these are free rows of the pool; it is as long as the pool.
        self._free, self._free_count = np.empty(0, dtype=np.int32), 0
        self._grow(16)

    def _grow(self, missing: int) -> None:
        before = len(self._free)
        count = max(2 * before, before + missing)
        old, self._pool = self._pool, {}
        for number, (key, column) in enumerate(self.columns.items()):
            shape = tuple(column.tensor.shape[1:])
            self._pool[key] = self.allocator.table(f"final_obs_{number}", count, shape, column.dtype)
            if before:
                self._pool[key].tensor[:before] = old[key].tensor
        new = np.arange(count - 1, before - 1, -1, dtype=np.int32)  # the lowest on top
        self._free = np.concatenate([self._free[: self._free_count], new, self._free[self._free_count :]])
        self._free_count += len(new)

    def on_device(self, indices: Ints) -> Tensor:
        return torch.from_numpy(indices).to(self.device)

    def as_obs(self, frames: Frames) -> ObsTensor:
        return frames[PLAIN] if self.single else frames

    def as_frames(self, stored: ObsTensor) -> Frames:
        return stored if isinstance(stored, dict) else {PLAIN: stored}
