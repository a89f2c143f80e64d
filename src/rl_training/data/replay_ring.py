"""What a replay buffer stores: a ring of transitions per environment, in order, each observation once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.packed_ints import PackedInts
from rl_training.data.replay_storage import Allocator, Frames, Ints, ObsStorage
from rl_training.data.rollout_buffer import Shape
from rl_training.execution.batches import ObsTensor
from rl_training.utils.errors import CheckpointError
from rl_training.utils.spaces import Array, map_obs

TERMINATED, TRUNCATED = 1, 2
WORTHLESS = TERMINATED | TRUNCATED
FLAG_BITS = 2
"""A step's end is one number: 0 inside an episode, else (row of its final observation << 2) | flags. One flag is always set. Both
together, WORTHLESS, mark a step inside an episode after which nothing is worth anything; it has no final observation."""


class ReplayRing:
    """Keeps the last `per_env` transitions of every environment.

    Step number c of an environment (`counts` says how many it has had) lies in slot c mod S of its ring; row = slot·N + env in
    all tensors. The observation after step c lies in slot c + 1, where the next step of the episode has it as its own, so each
    is stored once and the newest transition is complete at once. After an episode's last step that slot will belong to another
    episode, so the final observation lies in a pool. S is one more than the transitions, plus k − 1 with stacks of k frames, so
    that the oldest transition's frames are still there.

    Observations and actions lie on `device`; rewards and ends on the host, where indices are computed.
    """

    def __init__(
        self,
        per_env: int,
        num_envs: int,
        obs_shape: Shape | Mapping[str, Shape],
        action_shape: Shape,
        *,
        obs_dtype: torch.dtype | Mapping[str, torch.dtype],
        action_dtype: torch.dtype,
        device: torch.device | str,
        frame_stack: int,
        folder: Path | None,
    ):
        self.num_envs, self.per_env, self.device = num_envs, per_env, torch.device(device)
        self.slots = per_env + frame_stack
        rows = self.slots * num_envs
        allocator = Allocator(device, folder)
        self._obs = ObsStorage(rows, obs_shape, obs_dtype, frame_stack, allocator)
        self._action_dtype = action_dtype
        # Action numbers fit 32 bits; the policy gets its int64 back at sampling.
        stored_dtype = torch.int32 if action_dtype is torch.int64 else action_dtype
        self._actions = allocator.table("actions", rows, tuple(action_shape), stored_dtype)
        self._rewards = np.zeros(rows, dtype=np.float32)
        self._ends = PackedInts(rows, (2 * rows) << FLAG_BITS)  # the pool is at most doubled once too often
        # How many earlier frames of the same episode a step's stack has, at most k − 1.
        self._ages = np.zeros(rows, dtype=np.uint8) if frame_stack > 1 else None
        self._frame_stack = frame_stack
        self._envs = np.arange(num_envs)
        self.counts: Ints = np.zeros(num_envs, dtype=np.int64)
        """(N,) transitions ever written per environment."""
        self._first: Ints = np.zeros(num_envs, dtype=np.int64)  # the first count written here; not 0 after a load
        self._open = np.zeros(num_envs, dtype=np.bool_)  # the newest step did not end its episode

    @property
    def nbytes(self) -> int:
        """Bytes of everything that grows with the capacity."""
        ages = 0 if self._ages is None else self._ages.nbytes
        return self._obs.nbytes + self._actions.nbytes + self._rewards.nbytes + self._ends.nbytes + ages

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return int((self.counts - self._lowest()).sum())

    def oldest(self) -> Ints:
        """(N,) the first count still in the ring; with stacks of k frames, the first k − 1 of a full ring only serve as history."""
        return np.maximum(self._first, self.counts - (self.slots - 1))

    def _lowest(self) -> Ints:
        """(N,) the first count that may be sampled."""
        if self._frame_stack == 1:
            return np.maximum(self._first, self.counts - self.per_env)
        # Rows loaded from the middle of a run may lack the history of their first stacks.
        whole = self._first + (self._frame_stack - 1) * (self._first > 0)
        return np.minimum(np.maximum(whole, self.counts - self.per_env), self.counts)

    def _rows(self, counts: Ints, envs: Ints) -> Ints:
        slots = counts % self.slots
        return slots if self.num_envs == 1 else slots * self.num_envs + envs

    def _flags(self, rows: Ints) -> NDArray[np.uint16]:
        """How the steps in `rows` ended, with other bits above the flags; 0 inside an episode."""
        return self._ends.take_low(rows)

    def add(
        self,
        *,
        obs: ObsTensor,
        actions: Tensor,
        rewards: Array | Tensor,
        next_obs: ObsTensor,
        terminated: Array | Tensor,
        truncated: Array | Tensor,
        valid: Array | Tensor,
        bootstrap_ends: Array | None = None,
    ) -> None:
        """Appends one step of all environments, (N, ...), all but observations and actions on the host.

        Inside an episode `obs` is the previous `next_obs` and is not stored again. A terminal observation is stored as
        `with_finite_ends` makes it. An invalid step is not stored, and if its
        environment was inside an episode (its worker died), that episode ends with the step before, as a truncated one.
        `bootstrap_ends` says where the value after a step is zero although its episode goes on.
        """
        keep = np.asarray(valid)
        which: Ints | slice = slice(None)  # a view costs less than an index array
        ended_by, cut_by, reward = np.asarray(terminated), np.asarray(truncated), np.asarray(rewards)
        if np.count_nonzero(keep) < len(keep):  # much faster than all() and any() on few numbers
            self.cut_episodes(np.flatnonzero(~keep))
            which = np.flatnonzero(keep)
            if not len(which):
                return
            chosen = torch.from_numpy(which)
            obs, next_obs, actions = _select(obs, chosen), _select(next_obs, chosen), actions[chosen.to(actions.device)]
            ended_by, cut_by, reward = ended_by[which], cut_by[which], reward[which]
            bootstrap_ends = None if bootstrap_ends is None else bootstrap_ends[which]
        if np.count_nonzero(ended_by):
            next_obs = with_finite_ends(next_obs, obs, torch.from_numpy(ended_by))
        counts, envs, fresh = self.counts[which], self._envs[which], ~self._open[which]
        next_counts = counts + 1
        rows, next_rows = self._rows(counts, envs), self._rows(next_counts, envs)
        self._evict(next_rows)
        if np.count_nonzero(fresh):
            self._begin_episodes(obs, np.flatnonzero(fresh), rows)
        frames = self._obs.frames(next_obs)
        self._obs.write(next_rows, frames)
        self._actions.put(rows, actions)
        self._rewards[rows] = reward
        if self._ages is not None:
            self._ages[next_rows] = np.minimum(self._ages[rows] + 1, self._frame_stack - 1)
        ended = ended_by | cut_by
        if np.count_nonzero(ended):
            places = np.flatnonzero(ended)
            flags = np.where(ended_by[places], TERMINATED, TRUNCATED).astype(np.int32)
            self._end(rows[places], flags, _select_frames(frames, self._obs.on_device(places)))
        if bootstrap_ends is not None and np.count_nonzero(bootstrap_ends):
            self._ends.put(rows[bootstrap_ends & ~ended], WORTHLESS)
        self._open[which] = ~ended
        self.counts[which] = next_counts

    def cut_episodes(self, envs: Ints | None = None) -> None:
        """Ends the running episodes of `envs` (all, if None) as truncated ones; where the next step will not follow on.

        `add` does so itself at an invalid step; a resume that begins fresh episodes calls it.
        """
        envs = self._envs if envs is None else envs
        envs = envs[self._open[envs]]
        if len(envs):
            pending = self._obs.raw(self._rows(self.counts[envs], envs))
            newest = self._rows(self.counts[envs] - 1, envs)
            flags = np.where(self._ends.take(newest) == WORTHLESS, TERMINATED, TRUNCATED).astype(np.int32)
            self._end(newest, flags, pending)
            self._open[envs] = False

    def _begin_episodes(self, obs: ObsTensor, which: Ints, rows: Ints) -> None:
        """Writes first observations; later ones are there already as their predecessors' next observations."""
        chosen = torch.from_numpy(which)
        first = obs if len(which) == len(rows) else _select(obs, chosen)
        self._obs.check_first_stacks(first)
        self._obs.write(rows[which], self._obs.frames(first))
        if self._ages is not None:
            self._ages[rows[which]] = 0

    def _end(self, rows: Ints, flags: NDArray[np.int32], final: Frames) -> None:
        """Marks steps as their episodes' last."""
        self._ends.put(rows, (self._obs.keep_finals(final) << FLAG_BITS) | flags)

    def _evict(self, rows: Ints) -> None:
        """Forgets how the steps in `rows` ended; their observations are about to be overwritten."""
        if np.count_nonzero(self._flags(rows)):
            ends = self._ends.take(rows)
            self._obs.release_finals(ends[has_final(ends)] >> FLAG_BITS)
            self._ends.put(rows, 0)

    def clear(self) -> None:
        """Forgets all transitions."""
        self._obs.clear_finals()
        self._ends.clear()
        self.counts[:] = 0
        self._first[:] = 0
        self._open[:] = False

    def export_rows(self, start: Ints, stop: Ints) -> dict[str, Any]:
        """Steps [start_i, stop_i) of each environment i, still in the ring, as a state tree; rows are ordered by environment, then
        by count. Consecutive exports put together are the whole content but for what `head_state` adds."""
        start, stop = np.array(start, dtype=np.int64), np.array(stop, dtype=np.int64)
        if (start < self.oldest()).any() or (stop < start).any() or (stop > self.counts).any():
            raise ValueError(
                f"steps {start.tolist()} to {stop.tolist()} are not in the ring: {self.oldest()} to {self.counts}"
            )
        rows = self._rows(*count_ranges(start, stop))
        ends = self._ends.take(rows)
        # The step before may have been cut off since it was exported itself.
        before = np.where(start > self.oldest(), self._ends.take(self._rows(start - 1, self._envs)), 0)
        return {
            "start": start,
            "stop": stop,
            "obs": self._obs.as_obs(self._obs.raw(rows)),
            "actions": self._actions.take(rows),
            "rewards": self._rewards[rows],
            "ages": None if self._ages is None else self._ages[rows],
            **self._exported_ends("flags", "final_obs", ends),
            **self._exported_ends("flags_before", "final_obs_before", before),
        }

    def import_rows(self, rows: dict[str, Any]) -> None:
        """Appends exported steps. Where they do not follow on from an environment's newest step, its older ones are forgotten;
        `load_head_state`, without which nothing may be sampled, checks that in the end no step is missing."""
        start, stop = rows["start"], rows["stop"]
        if start.shape != self.counts.shape:
            raise CheckpointError(
                f"the replay buffer was saved with {len(start)} environments, this one has {self.num_envs}"
            )
        if (start < self.counts).any():
            raise CheckpointError(f"steps {start} of the replay buffer are already there: it is at {self.counts}")
        # Nothing of these environments follows on: they are empty, or the ring went round between two exports.
        apart = np.flatnonzero((self.counts == 0) | (start > self.counts))
        self._evict((np.arange(self.slots)[:, None] * self.num_envs + apart).reshape(-1))
        self._open[apart] = False
        self._first[apart] = start[apart]
        self.counts = start.copy()
        self._import_newest_ends(rows["flags_before"], rows["final_obs_before"])

        counts, envs = count_ranges(start, stop)
        kept = np.flatnonzero(counts >= stop[envs] - (self.slots - 1))
        target = self._rows(counts[kept], envs[kept])
        self._evict(np.concatenate([target, self._rows(stop, self._envs)]))
        chosen = torch.from_numpy(kept)
        self._obs.write(target, _select_frames(self._obs.as_frames(rows["obs"]), chosen))
        self._actions.put(target, rows["actions"][chosen])
        self._rewards[target] = rows["rewards"][kept]
        if self._ages is not None:
            self._ages[target] = rows["ages"][kept]
        ended = has_final(rows["flags"])
        which = ended[kept]
        finals = torch.from_numpy((ended.cumsum() - 1)[kept][which])
        final = _select_frames(self._obs.as_frames(rows["final_obs"]), finals)
        self._end(target[which], rows["flags"][kept][which].astype(np.int32), final)
        self._ends.put(target[rows["flags"][kept] == WORTHLESS], WORTHLESS)
        self.counts = stop.copy()
        newest = self._ends.take(self._rows(stop - 1, self._envs))
        self._open = ~has_final(newest) & (stop > self._first)

    def head_state(self) -> dict[str, Any]:
        """The small rest of the state: counts, and how each environment's newest step continues."""
        stored = self.counts > self._first
        ends = np.where(stored, self._ends.take(self._rows(self.counts - 1, self._envs)), 0)
        pending = self._obs.raw(self._rows(self.counts, self._envs))
        blank = self._obs.on_device(np.flatnonzero(~self._open))
        for frames in pending.values():
            frames.index_fill_(0, blank, 0)  # what the slot holds then means nothing, and equal states should be equal
        return {
            "slots": self.slots,
            "counts": self.counts.copy(),
            "oldest": self.oldest(),
            "pending_obs": self._obs.as_obs(pending),
            **self._exported_ends("last_flags", "last_final_obs", ends),
        }

    def load_head_state(self, state: dict[str, Any]) -> None:
        """Completes the import of all rows."""
        if state["slots"] != self.slots or not np.array_equal(state["counts"], self.counts):
            raise CheckpointError(
                f"the replay buffer was saved with rings of {state['slots']} slots at steps {state['counts']}, but this one has "
                f"{self.slots} slots and is at {self.counts}: resume with the same buffer size, n_step and num_envs"
            )
        if not np.array_equal(state["oldest"], self.oldest()):
            raise CheckpointError(
                f"the replay buffer lacks steps {state['oldest']} to {self.oldest()} of its environments"
            )
        self._import_newest_ends(state["last_flags"], state["last_final_obs"])
        pending = self._obs.as_frames(state["pending_obs"])
        self._obs.write(self._rows(self.counts, self._envs), pending)
        if self._ages is not None:
            newest, after = self._rows(self.counts - 1, self._envs), self._rows(self.counts, self._envs)
            self._ages[after] = np.minimum(self._ages[newest] + 1, self._frame_stack - 1)

    def _exported_ends(self, flags_name: str, final_name: str, ends: NDArray[np.int32]) -> dict[str, Any]:
        final_rows = (ends[has_final(ends)] >> FLAG_BITS).astype(np.int64)
        flags = (ends & (TERMINATED | TRUNCATED)).astype(np.uint8)
        return {flags_name: flags, final_name: self._obs.as_obs(self._obs.finals(final_rows))}

    def _import_newest_ends(self, flags: NDArray[np.uint8], final_obs: ObsTensor) -> None:
        """Ends the newest steps whose flags (N,) say so and that are not known to have ended."""
        ended = np.flatnonzero(has_final(flags))
        missing = self._open[ended]
        envs = ended[missing]
        if len(envs):
            final = _select_frames(self._obs.as_frames(final_obs), torch.from_numpy(np.flatnonzero(missing)))
            self._end(self._rows(self.counts[envs] - 1, envs), flags[envs].astype(np.int32), final)
            self._open[envs] = False


def has_final(ends: NDArray[Any]) -> NDArray[np.bool_]:
    """Where steps ended their episode, so that a final observation is kept."""
    flags = ends & WORTHLESS
    return (flags != 0) & (flags != WORTHLESS)


def to_host(tensor: Tensor) -> NDArray[Any]:
    return tensor.detach().cpu().numpy()


def with_finite_ends(next_obs: ObsTensor, obs: ObsTensor, terminated: Tensor) -> ObsTensor:
    """`next_obs` (B, ...) with the numbers of `obs` in place of NaN and infinities, in the rows that `terminated` (B,) bool says.

    Environments may leave their terminal observation undefined. No value is taken of it, but 0 · NaN is NaN, and a network that
    normalises over the batch would see it in every row. All that is finite stays as it is.
    """
    if isinstance(next_obs, dict):
        assert isinstance(obs, dict)
        return {key: _with_finite_ends(rows, obs[key], terminated) for key, rows in next_obs.items()}
    assert isinstance(obs, Tensor)
    return _with_finite_ends(next_obs, obs, terminated)


def _with_finite_ends(rows: Tensor, before: Tensor, terminated: Tensor) -> Tensor:
    if not rows.is_floating_point():
        return rows
    ended = terminated.to(rows.device).view(-1, *[1] * (rows.dim() - 1))
    return torch.where(ended & ~rows.isfinite(), before.to(rows.device), rows)


def count_ranges(start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """(counts, envs) of all steps in [start_i, stop_i), by environment."""
    lengths = np.maximum(stop - start, 0)
    ends = lengths.cumsum()
    envs = np.repeat(np.arange(len(start)), lengths)
    return np.arange(ends[-1]) + (start - ends + lengths)[envs], envs


def _select(obs: ObsTensor, envs: Tensor) -> ObsTensor:
    return map_obs(lambda rows: rows[envs.to(rows.device)], obs)


def _select_frames(frames: Frames, rows: Tensor) -> Frames:
    return {key: value[rows.to(value.device)] for key, value in frames.items()}
