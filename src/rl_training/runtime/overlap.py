"""Learning from one rollout while the next one is collected, in two processes.

A rollout is thus learned from one update later than it would be. The policy of this process acts; it follows its replica's between
iterations only, observation statistics included. A rollout's log-probabilities are those of the policy that acted, which PPO's
ratio must compare with; values, advantages and returns are the current critic's. Rewards are scaled when they are learned from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rl_training.algorithms.on_policy import OnPolicyAlgorithm
from rl_training.runtime.collector import RolloutCollector
from rl_training.runtime.learner import Learned, Learner, LearnerSpec

Report = Callable[[Learned], None]


class Overlap:
    """Collects rollouts, and meanwhile lets the algorithm's replica learn from the one before."""

    def __init__(self, algorithm: OnPolicyAlgorithm[Any], collector: RolloutCollector, spec: LearnerSpec):
        self._algorithm, self._collector, self._learner = algorithm, collector, Learner(algorithm, spec)
        self._waiting = False
        """Whether the collector's buffer holds a rollout that this process knows no update from yet."""
        self._sent = False
        """Whether the replica has that rollout: then it may already be learning from it."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps the second process for as long as the block lasts. An update that nobody waited for is forgotten."""
        self._sent = False
        with self._learner.running():
            yield

    def collect(self, progress_before: float, progress: float, report: Report) -> int:
        """Collects a rollout with the policy as it is now, and learns from the one before, begun at `progress_before`, meanwhile.

        Returns the number of valid steps.
        """
        learning = self._waiting
        if learning and not self._sent:
            self._learner.begin(self._collector.buffer, progress_before)
        _, steps = self._collector.collect()
        self._waiting = self._sent = steps > 0  # none, if every environment was only reset
        if steps:
            self._complete()
            # Now, so that the replica need not wait until it is known here what it has learned from the one before.
            self._learner.begin(self._collector.buffer, progress)
        if learning:
            report(self._learner.finish())
        return steps

    def finish(self, report: Report) -> None:
        """Learns from the rollout that was collected last."""
        if self._waiting:
            report(self._learner.finish())
            self._waiting = self._sent = False

    def _complete(self) -> None:
        """Adds to a rollout what after the next update nobody could tell."""
        rollout = self._collector.buffer
        with self._collector.timer.stage("inference"):
            rollout.logprobs, rollout.has_logprobs = self._algorithm.log_probs_of(rollout), True

    def state_dict(self) -> dict[str, Any] | None:
        """The rollout that waits."""
        return self._collector.buffer.state_dict() if self._waiting else None

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        buffer = self._collector.buffer
        # A rollout of another number of environments, with which a saved agent may go on, has no place here.
        self._waiting = self._sent = False
        if state is not None and state["rewards"].shape == buffer.rewards.shape:
            buffer.load_state_dict(state)
            self._waiting = True
