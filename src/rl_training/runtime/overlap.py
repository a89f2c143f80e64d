"""Learning from one rollout while the next one is collected: two threads of one process.

The calling thread collects, a second one learns, and neither reads what the other writes, so that timing decides nothing:

* The collector acts with a copy of the policy, observation statistics included, which follows the policy between iterations only.
* Two rollout buffers take turns.
* Actions, environments and updates have random streams of their own, and the process-wide generators are left to environments.

A rollout is thus learned from one update later than it would be. Its log-probabilities are those of the copy that acted, so that
PPO's ratio compares with the policy that chose the actions; values, advantages and returns are the current critic's. Both use
the observation statistics they come with: the copy's are one update older. Rewards are scaled when they are learned from.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.policies.actor_critic import ActorCritic
from rl_training.runtime.collector import RolloutCollector
from rl_training.utils.spaces import map_obs

Learn = Callable[[RolloutBuffer], None]

SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread hands the interpreter over to one that waits for it, while two of them work."""


class Overlap:
    """Collects with a copy of the policy into two buffers in turn, and learns from the one that waits meanwhile."""

    def __init__(self, policy: ActorCritic, collector: RolloutCollector, second_buffer: RolloutBuffer):
        self._policy, self._collector, self._other_buffer = policy, collector, second_buffer
        self._acting = copy.deepcopy(policy).requires_grad_(False)
        collector.policy = self._acting
        self._waiting: RolloutBuffer | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._warm = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps the second thread for as long as the block lasts."""
        threads, interval = torch.get_num_threads(), sys.getswitchinterval()
        # Between two compiled steps the learner needs the interpreter for microseconds, and would wait for it ten times as long
        # as such a step takes.
        sys.setswitchinterval(SWITCH_INTERVAL)
        try:
            with ThreadPoolExecutor(1, "learn", initializer=torch.set_num_threads, initargs=(threads,)) as self._pool:
                yield
        finally:
            sys.setswitchinterval(interval)

    def collect(self, learn: Learn) -> int:
        """Collects a rollout with the policy as it is now, and learns from the one before at the same time.

        Returns the number of valid steps. Nothing runs any more when this returns or raises.
        """
        assert self._pool is not None, "running() comes first"
        collector, waiting = self._collector, self._waiting
        self._waiting = None
        self._refresh_copy()
        collector.buffer, self._other_buffer = self._other_buffer, collector.buffer
        if waiting is not None and not self._warm:
            # The first time one after the other: compiling changes process-wide settings, and must hear Ctrl-C.
            learn(waiting)
            self._warm, waiting = True, None
        learning = None if waiting is None else self._pool.submit(learn, waiting)
        try:
            rollout, steps = collector.collect()
            self._complete(rollout)
        finally:
            if learning is not None:
                wait([learning])
        if learning is not None:
            learning.result()
        self._waiting = rollout if steps else None  # no steps, if every environment was only reset
        return steps

    def finish(self, learn: Learn) -> None:
        """Learns from the rollout that waits, if there is one."""
        if self._waiting is not None:
            learn(self._waiting)
            self._waiting = None

    @torch.no_grad()
    def _refresh_copy(self) -> None:
        for mine, theirs in (
            (self._acting.parameters(), self._policy.parameters()),
            (self._acting.buffers(), self._policy.buffers()),
        ):
            for target, source in zip(mine, theirs):
                target.copy_(source)

    @torch.no_grad()
    def _complete(self, rollout: RolloutBuffer) -> None:
        """Adds what later only the copy could have told, and lets go of what the collector will write to."""
        with self._collector.timer.stage("inference"):
            distribution = self._acting.distribution(rollout.flat_obs())
            rollout.logprobs = distribution.log_prob(rollout.actions.flatten(0, 1)).view(rollout.actions.shape[:2])
        rollout.has_logprobs = True
        assert rollout.last_obs is not None, "the collector sets last_obs"
        rollout.last_obs = map_obs(torch.clone, rollout.last_obs)

    def state_dict(self) -> dict[str, Any] | None:
        """The rollout that waits. The copy is no part of it: it is brought up to date before it acts again."""
        return None if self._waiting is None else self._waiting.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        self._waiting, buffer = None, self._collector.buffer
        # A rollout of another number of environments, with which a saved agent may go on, has no place here.
        if state is not None and state["rewards"].shape == buffer.rewards.shape:
            buffer.load_state_dict(state)
            self._waiting = buffer
