"""Off-policy experience: a ring of transitions per environment, in order, sampled by index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.replay_ring import (
    FLAG_BITS,
    TERMINATED,
    TRUNCATED,
    WORTHLESS,
    ReplayRing,
    count_ranges,
    has_final,
    to_host,
)
from rl_training.data.replay_storage import Ints
from rl_training.data.rollout_buffer import Shape
from rl_training.data.sum_tree import SumTree
from rl_training.execution.batches import ObsTensor
from rl_training.utils.errors import NONFINITE_CAUSES, CheckpointError, ConfigError, NonFiniteError


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """B transitions over m ≤ n steps each; m < n where an episode ended or the newest step was reached."""

    obs: ObsTensor
    """(B, *obs_shape), or one such tensor per key."""
    actions: Tensor
    """(B, *action_shape) in policy form."""
    rewards: Tensor
    """(B,) float32: sum of γ^k r_k over the m steps, times the reward scale."""
    next_obs: ObsTensor
    """(B, ...) the true observation after the m-th step; of a terminal one only what is finite."""
    discounts: Tensor
    """(B,) float32: γ^m, and 0 where the m-th step terminated."""
    weights: Tensor
    """(B,) float32: importance weights divided by the batch's largest; ones without prioritisation."""
    indices: Ints
    """(B,) int64: names of the transitions for `update_priorities`, never used twice. An array: no step reads it."""


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """B sequences of L consecutive steps of one episode each. After the end `mask` is false, rewards and flags are 0, and the
    last true step is repeated."""

    obs: ObsTensor
    """(L, B, *obs_shape)"""
    actions: Tensor
    """(L, B, *action_shape)"""
    rewards: Tensor
    """(L, B) float32"""
    next_obs: ObsTensor
    """(L, B, *obs_shape) the true next observations."""
    terminated: Tensor
    """(L, B) bool"""
    truncated: Tensor
    """(L, B) bool"""
    mask: Tensor
    """(L, B) bool: true up to the episode's end or the newest stored step, and always in the first step."""


@dataclass(frozen=True)
class Prioritization:
    """Proportional prioritised replay (Schaul et al. 2016, eq. 1): P(i) ∝ (|δ_i| + ε)^α."""

    alpha: float = 0.6
    epsilon: float = 1e-6


class ReplayBuffer(ReplayRing):
    """The last `capacity // num_envs` transitions of each of N environments, drawn uniformly, by priority, or as sequences.

    Samples come from the buffer's own random stream; two buffers with the same content and stream draw the same. With `folder`
    observations and actions lie in memory-mapped files there, which may be larger than memory; `device` may be a GPU. Rewards are
    stored as they came and multiplied by `reward_scale` when sampled.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        obs_shape: Shape | Mapping[str, Shape],
        action_shape: Shape,
        *,
        obs_dtype: torch.dtype | Mapping[str, torch.dtype] = torch.float32,
        action_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        seed: int = 0,
        n_step: int = 1,
        gamma: float = 0.99,
        reward_scale: float = 1.0,
        prioritization: Prioritization | None = None,
        frame_stack: int = 1,
        folder: Path | None = None,
    ):
        per_env = capacity // num_envs
        if per_env < n_step or n_step < 1:
            raise ConfigError(
                f"a replay buffer of {capacity} transitions for {num_envs} environments keeps {per_env} steps of each, "
                f"but n_step is {n_step}: it must be at least 1 and fit, e.g. {max(n_step, 1) * num_envs} transitions"
            )
        if prioritization is not None and not (0 <= prioritization.alpha <= 1 and prioritization.epsilon > 0):
            raise ConfigError(f"prioritised replay needs alpha in [0, 1] and epsilon > 0, not {prioritization}")
        super().__init__(
            per_env,
            num_envs,
            obs_shape,
            action_shape,
            obs_dtype=obs_dtype,
            action_dtype=action_dtype,
            device=device,
            frame_stack=frame_stack,
            folder=folder,
        )
        self.n_step, self.gamma, self.prioritization = n_step, gamma, prioritization
        self._powers = np.array([gamma**k for k in range(n_step + 1)], dtype=np.float32)
        self._reward_scale = np.float32(reward_scale)
        self._in_memory = self.device.type == "cpu"
        self._ones = torch.ones(0, device=self.device)
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self._tree = SumTree(self.slots * num_envs) if prioritization is not None else None
        self._max_priority = 1.0
        self._in_tree = (self.counts.copy(), self.counts.copy())  # (first, one past the last) count with a priority

    @property
    def nbytes(self) -> int:
        return super().nbytes + (0 if self._tree is None else self._tree.nbytes)

    def sample(self, batch_size: int, beta: float = 1.0) -> TransitionBatch:
        """Draws B transitions with replacement, uniformly or in proportion to their priorities.

        With prioritisation, weights are (len · P(i))^−β divided by the batch's largest.
        """
        if self._tree is None:
            counts, envs = self._draw(batch_size)
            weights = self._equal_weights(batch_size)
        else:
            counts, envs, weighted = self._draw_prioritized(self._tree, batch_size, beta)
            weights = self._to_device(weighted)
        rows = self._rows(counts, envs)
        last, last_counts = rows, counts
        rewards, flags = self._rewards.take(rows), self._flags(rows)
        steps: Ints | int = 1
        for k in range(1, self.n_step):
            more = (flags == 0) & (counts + k < self.counts.take(envs))
            last_counts = last_counts + more
            last = self._rows(last_counts, envs)
            rewards += np.where(more, self._powers[k] * self._rewards.take(last), np.float32(0))
            flags = self._flags(last)
            steps = steps + more
        discounts = self._powers[steps] * ((flags & TERMINATED) == 0)
        return TransitionBatch(
            obs=self._obs.read(rows, self._stack_rows(counts, envs, rows)),
            actions=self._read_actions(rows),
            rewards=self._to_device(rewards if self._reward_scale == 1 else rewards * self._reward_scale),
            next_obs=self._next_obs(last_counts, envs, last, flags),
            discounts=self._to_device(discounts),
            weights=weights,
            indices=counts if self.num_envs == 1 else counts * self.num_envs + envs,
        )

    def sample_sequences(self, batch_size: int, length: int) -> SequenceBatch:
        """Draws B sequences of up to L steps whose first steps are uniform over all stored transitions."""
        start, envs = self._draw(batch_size)
        counts, mask = np.empty((length, batch_size), dtype=np.int64), np.ones((length, batch_size), dtype=np.bool_)
        counts[0], newest = start, self.counts.take(envs) - 1
        for t in range(1, length):
            inside = (self._flags(self._rows(counts[t - 1], envs)) == 0) & (counts[t - 1] < newest)
            mask[t] = mask[t - 1] & inside
            counts[t] = counts[t - 1] + mask[t]
        flat_counts, flat_envs = counts.reshape(-1), np.tile(envs, length)
        rows = self._rows(flat_counts, flat_envs)
        ends = self._flags(rows)
        flags = ends.reshape(length, batch_size) * mask

        def unflatten(obs: ObsTensor) -> ObsTensor:
            if isinstance(obs, dict):
                return {key: value.unflatten(0, (length, batch_size)) for key, value in obs.items()}
            return obs.unflatten(0, (length, batch_size))

        return SequenceBatch(
            obs=unflatten(self._obs.read(rows, self._stack_rows(flat_counts, flat_envs, rows))),
            actions=self._read_actions(rows).unflatten(0, (length, batch_size)),
            rewards=self._to_device(self._rewards.take(rows).reshape(length, batch_size) * (mask * self._reward_scale)),
            next_obs=unflatten(self._next_obs(flat_counts, flat_envs, rows, ends)),
            terminated=self._to_device((flags & TERMINATED) != 0),
            truncated=self._to_device((flags & WORTHLESS) == TRUNCATED),
            mask=self._to_device(mask),
        )

    def _draw(self, batch_size: int) -> tuple[Ints, Ints]:
        """(counts, envs) of transitions drawn uniformly."""
        lowest = self._lowest()
        lengths = self.counts - lowest
        stored = int(lengths[0] if self.num_envs == 1 else lengths.sum())
        if stored == 0:
            raise ValueError("the replay buffer is empty: add a step before sampling")
        # u · n with u < 1 in float64 never rounds up to n. It takes half of the time of `integers`.
        draws = (self._rng.random(batch_size) * stored).astype(np.int64)
        if self.num_envs == 1:
            draws += lowest
            return draws, np.zeros(batch_size, dtype=np.int64)
        ends = lengths.cumsum()
        envs = ends.searchsorted(draws, side="right")
        return draws + (lowest - ends + lengths).take(envs), envs

    def _equal_weights(self, batch_size: int) -> Tensor:
        """(B,) ones; made once, because nobody writes into a batch's weights."""
        if len(self._ones) != batch_size:
            self._ones = torch.ones(batch_size, device=self.device)
        return self._ones

    def _draw_prioritized(self, tree: SumTree, batch_size: int, beta: float) -> tuple[Ints, Ints, NDArray[np.float32]]:
        """(counts, envs, weights); one draw from each of B equal parts of the total priority (Schaul et al. 2016, app. B.2.1)."""
        if not len(self):
            raise ValueError("the replay buffer is empty: add a step before sampling")
        self._update_tree(tree)
        total = tree.total
        strata = np.arange(batch_size) + self._rng.random(batch_size)
        rows = tree.sample(strata * (total / batch_size))
        slots, envs = np.divmod(rows, self.num_envs)
        newest = self.counts.take(envs) - 1
        counts = newest - (newest - slots) % self.slots
        weights = (tree.get(rows) * (len(self) / total)) ** -beta
        return counts, envs, (weights / weights.max()).astype(np.float32)

    def _stack_rows(self, counts: Ints, envs: Ints, rows: Ints) -> Ints | None:
        """(B, k) rows of the frames of each step's observation, the oldest first; before an episode's start its first one."""
        if self._ages is None:
            return None
        back = np.minimum(np.arange(self._frame_stack - 1, -1, -1), self._ages.take(rows)[:, None])
        return self._rows(counts[:, None] - back, envs[:, None])

    def _next_obs(
        self, counts: Ints, envs: Ints, rows: Ints, flags: NDArray[np.uint16], keys: Iterable[str] | None = None
    ) -> ObsTensor:
        """The true observations (B, ...) after the given steps, of a Dict only the entries under `keys` if given."""
        next_rows = self._rows(counts + 1, envs)
        stack = self._stack_rows(counts, envs, rows)
        if stack is not None:
            stack = np.concatenate([stack[:, 1:], next_rows[:, None]], axis=1)
        ended = flags.nonzero()[0]
        if len(ended):
            ended = ended[has_final(flags[ended])]
        finals = (ended, self._ends.take(rows.take(ended)) >> FLAG_BITS) if len(ended) else None
        return self._obs.read(next_rows, stack, finals, keys)

    def _read_actions(self, rows: Ints) -> Tensor:
        return self._actions.take(rows, long=self._action_dtype is torch.int64)

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._in_memory else tensor.to(self.device)

    # Priorities ------------------------------------------------------------------------------------------------------

    def update_priorities(self, indices: Ints, td_errors: Tensor) -> None:
        """Sets the priorities of sampled transitions (B,) to (|δ| + ε)^α; those overwritten in the meantime are left out."""
        assert self._tree is not None and self.prioritization is not None, "the buffer is not prioritised"
        self._update_tree(self._tree)
        errors = np.abs(to_host(td_errors).astype(np.float64))
        if not np.isfinite(errors).all():
            raise NonFiniteError(f"a TD error became NaN or infinite.\n{NONFINITE_CAUSES}")
        priorities = (errors + self.prioritization.epsilon) ** self.prioritization.alpha
        counts, envs = np.divmod(indices, self.num_envs)
        present = counts >= self._lowest().take(envs)
        if not present.all():
            counts, envs, priorities = counts[present], envs[present], priorities[present]
        if len(counts):
            self._tree.set(self._rows(counts, envs), priorities)
            self._max_priority = max(self._max_priority, float(priorities.max()))

    def _update_tree(self, tree: SumTree) -> None:
        """Gives what was added since the last call the largest priority, and what was overwritten none.

        Done before each use instead of in `add`, so that several steps share one pass through the tree.
        """
        was_lowest, was_newest = self._in_tree
        if np.array_equal(was_newest, self.counts):
            return
        lowest = self._lowest()
        gone = self._rows(*count_ranges(was_lowest, np.minimum(lowest, was_newest)))
        new = self._rows(*count_ranges(np.maximum(was_newest, lowest), self.counts))
        # A slot may be both: those left come first, so that the new priority counts.
        priorities = np.full(len(gone) + len(new), self._max_priority)
        priorities[: len(gone)] = 0.0
        tree.set(np.concatenate([gone, new]), priorities)
        self._in_tree = (lowest, self.counts.copy())

    # State -----------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forgets all transitions and priorities, but goes on with the random stream."""
        super().clear()
        if self._tree is not None:
            self._tree.load_leaves(np.zeros(self._tree.capacity))
            self._max_priority = 1.0
            self._in_tree = (self.counts.copy(), self.counts.copy())

    def head_state(self) -> dict[str, Any]:
        """All but the rows: counts, how the newest steps continue, the random stream and the priorities."""
        state = super().head_state() | {"generator": self._rng.bit_generator.state, "priorities": None}
        if self._tree is not None:
            self._update_tree(self._tree)
            state["priorities"] = {"leaves": self._tree.leaves(), "max": self._max_priority}
        return state

    def load_head_state(self, state: dict[str, Any]) -> None:
        """Completes the import of all rows: from here on the buffer draws as the saved one would have."""
        super().load_head_state(state)
        self._rng.bit_generator.state = state["generator"]
        priorities = state["priorities"]
        if (priorities is None) != (self._tree is None):
            raise CheckpointError(
                "the replay buffer was saved with prioritised sampling on, now it is off, or the other way round"
            )
        if self._tree is not None:
            self._tree.load_leaves(priorities["leaves"])
            self._max_priority = priorities["max"]
            self._in_tree = (self._lowest(), self.counts.copy())

    def state_dict(self) -> dict[str, Any]:
        """The rows may be in several consecutive parts."""
        return {"head": self.head_state(), "rows": [self.export_rows(self.oldest(), self.counts)]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.clear()
        for rows in state["rows"]:
            self.import_rows(rows)
        self.load_head_state(state["head"])
