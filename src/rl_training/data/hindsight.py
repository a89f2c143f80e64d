"""Hindsight experience replay (Andrychowicz et al. 2017): transitions learned from as if what happened later had been the goal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer, TransitionBatch
from rl_training.data.replay_ring import TERMINATED, count_ranges, has_final, to_host
from rl_training.data.replay_storage import Ints
from rl_training.execution.batches import ObsTensor

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"

GoalFunction = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
"""(achieved (B, ...), desired (B, ...)) -> (B,)."""


class HindsightReplayBuffer(ReplayBuffer):
    """A replay buffer of Dict observations that gives a share of the sampled transitions another goal.

    The strategy is "future": the new goal is what was achieved after a step drawn uniformly from the transition's own to the last
    stored one of its episode. Rewards and terminations of the n steps are computed anew: a return ends with the first step that
    is terminal for the new goal, and bootstraps where the episode ended without that, however it ended. Where terminations have no
    rule (`terminated` is None) they are as stored, because nothing says that they had to do with the goal. Transitions that
    are not chosen, and all sequences, are as they were stored. The choice comes from the buffer's own random stream.
    """

    def __init__(
        self, *args: Any, hindsight: float, reward: GoalFunction, terminated: GoalFunction | None, **options: Any
    ):
        super().__init__(*args, **options)
        assert {ACHIEVED, DESIRED} <= self._obs.columns.keys(), "observations have no goals"
        self.hindsight, self._reward, self._terminated = hindsight, reward, terminated
        # Steps left in the episode after each row's own, filled in when the episode ends. The running episodes, which begin
        # at `_start`, have rows that mean nothing yet.
        self._left = np.zeros(self.slots * self.num_envs, dtype=np.int32)
        self._start: Ints = self.counts.copy()

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._left.nbytes

    def sample(self, batch_size: int, beta: float = 1.0) -> TransitionBatch:
        """Draws B transitions, each of which gets another goal with a chance of `hindsight`."""
        batch = super().sample(batch_size, beta)
        chosen = np.flatnonzero(self._rng.random(batch_size) < self.hindsight)
        if len(chosen):
            self._relabel(batch, chosen)
        return batch

    def _relabel(self, batch: TransitionBatch, chosen: Ints) -> None:
        """Changes the K chosen rows of a batch, whose tensors are nobody else's yet."""
        assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
        counts, envs = np.divmod(batch.indices[chosen], self.num_envs)
        last = self._last_counts(counts, envs)
        target = self._obs.on_device(chosen)
        goals = self._achieved(self._rng.integers(counts, last + 1), envs).to(batch.obs[DESIRED].dtype)
        rewards, discounts, steps = self._returns(counts, envs, last, to_host(goals))
        batch.rewards.index_copy_(0, target, self._to_device(rewards * self._reward_scale))
        batch.discounts.index_copy_(0, target, self._to_device(discounts))
        shorter = np.flatnonzero(steps < np.minimum(last - counts + 1, self.n_step))
        if len(shorter):  # than the stored return, so that another observation follows
            earlier = self._after((counts + steps - 1)[shorter], envs[shorter])
            assert isinstance(earlier, dict)
            places = self._obs.on_device(chosen[shorter])
            for key, value in earlier.items():
                batch.next_obs[key].index_copy_(0, places, value)
        for obs in (batch.obs, batch.next_obs):
            obs[DESIRED].index_copy_(0, target, goals)

    def _returns(
        self, counts: Ints, envs: Ints, last: Ints, goals: NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], Ints]:
        """(rewards, discounts, steps), each (K,), of returns from the given steps towards other goals (K, ...)."""
        n = self.n_step
        counts_nK = counts + np.arange(n)[:, None]
        inside_nK = counts_nK <= last
        steps_nK = np.minimum(counts_nK, last).reshape(-1)  # behind the episode, its last step is repeated
        envs_nK = np.tile(envs, n)
        pairs = to_host(self._achieved(steps_nK, envs_nK)), np.tile(goals, (n, *[1] * (goals.ndim - 1)))
        if self._terminated is None:
            reached = (self._flags(self._rows(steps_nK, envs_nK)) & TERMINATED) != 0
        else:
            reached = self._terminated(*pairs)
        reached_nK = reached.reshape(n, -1)
        used_nK = inside_nK & (reached_nK.cumsum(axis=0) - reached_nK == 0)
        rewards_nK = np.where(used_nK, self._reward(*pairs).reshape(n, -1), 0.0).astype(np.float32)
        steps = used_nK.sum(axis=0)
        discounts = self._powers.take(steps) * ~reached_nK.any(axis=0)
        return (self._powers[:n, None] * rewards_nK).sum(axis=0), discounts, steps

    def _last_counts(self, counts: Ints, envs: Ints) -> Ints:
        """The last stored step of each step's episode."""
        running = counts >= self._start.take(envs)
        return np.where(running, self.counts.take(envs) - 1, counts + self._left.take(self._rows(counts, envs)))

    def _achieved(self, counts: Ints, envs: Ints) -> Tensor:
        """The achieved goals (B, ...) after the given steps."""
        obs = self._after(counts, envs, (ACHIEVED,))
        assert isinstance(obs, dict)
        return obs[ACHIEVED]

    def _after(self, counts: Ints, envs: Ints, keys: Iterable[str] | None = None) -> ObsTensor:
        rows = self._rows(counts, envs)
        return self._next_obs(counts, envs, rows, self._flags(rows), keys)

    # Where episodes end ----------------------------------------------------------------------------------------------

    def add(self, **step: Any) -> None:
        super().add(**step)
        self._note_ends()

    def cut_episodes(self, envs: Ints | None = None) -> None:
        super().cut_episodes(envs)
        self._note_ends()

    def _note_ends(self) -> None:
        """Fills in the episodes that have just ended, at most one of each environment."""
        ended = np.flatnonzero(~self._open & (self._start < self.counts))
        if len(ended):
            start, stop = self.counts.copy(), self.counts
            start[ended] = np.maximum(self._start, self.oldest())[ended]
            counts, envs = count_ranges(start, stop)
            self._left[self._rows(counts, envs)] = stop[envs] - 1 - counts
            self._start[ended] = stop[ended]

    def clear(self) -> None:
        super().clear()
        self._start = self.counts.copy()

    def load_head_state(self, state: dict[str, Any]) -> None:
        """Completes the import of all rows; where their episodes end follows from the stored ends."""
        super().load_head_state(state)
        counts, envs = count_ranges(self.oldest(), self.counts)
        rows = self._rows(counts, envs)
        ends = np.flatnonzero(has_final(self._flags(rows)))
        # The first end at or behind each step, if it is one of the same environment; otherwise the episode is still running.
        following = np.append(ends, len(rows))[np.searchsorted(ends, np.arange(len(rows)))]
        behind = following.clip(max=len(rows) - 1)
        running = (following == len(rows)) | (envs[behind] != envs)
        self._left[rows[~running]] = (counts[behind] - counts)[~running]
        self._start = self.counts - np.bincount(envs[running], minlength=self.num_envs)
