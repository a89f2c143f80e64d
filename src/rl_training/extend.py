"""What an algorithm of one's own is made from: docs/extending.md builds one.

This is the public side of the base classes. What they call inside may change; the names here do not.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, TypeVar

from rl_training.algorithms.base import MetricMeans
from rl_training.algorithms.base import Metrics as Metrics
from rl_training.algorithms.on_policy import OneLossAlgorithm, OnPolicyConfig
from rl_training.algorithms.on_policy import normalized as normalized
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.rollout_buffer import RolloutMinibatch as RolloutMinibatch
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import StepReport
from rl_training.utils.fields import Needs as Needs
from rl_training.utils.fields import Range as Range
from rl_training.utils.schedules import Schedule as Schedule


@dataclass
class PolicyGradientConfig(OnPolicyConfig):
    """Hyperparameters of a policy-gradient algorithm; a subclass adds its own."""

    update_epochs: Annotated[int, Range(ge=1)] = 1
    """Passes over each rollout."""
    num_minibatches: Annotated[int, Range(ge=1)] = 1
    """Minibatches per pass; each is one gradient step."""


PolicyGradientConfigT = TypeVar("PolicyGradientConfigT", bound=PolicyGradientConfig)


class PolicyGradientAlgorithm(OneLossAlgorithm[PolicyGradientConfigT]):
    """An on-policy algorithm that is one loss, on which actor and critic descend together. A subclass states `losses`.

    Advantages and returns (GAE), normalisers, gradient clipping, schedules, checkpoints and every action space come with it.
    """

    @abstractmethod
    def losses(self, minibatch: RolloutMinibatch) -> Metrics:
        """`loss`, and what else is worth reporting, all of shape (). `distribution, values = self.policy(minibatch.obs)`."""

    @classmethod
    def check_config(cls, config: PolicyGradientConfigT, num_envs: int) -> None:
        cls._check_minibatches("num_minibatches", config.num_minibatches, config.num_steps * num_envs)

    @classmethod
    def updates_per_rollout(cls, config: PolicyGradientConfigT) -> int:
        return config.update_epochs * config.num_minibatches

    def _optimize(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        usual_size = rollout.num_steps * rollout.num_envs // self.config.num_minibatches
        means = MetricMeans()
        for _ in range(self.config.update_epochs):
            for minibatch in rollout.minibatches(self.config.num_minibatches, self.generator):
                means.add(self._learn(minibatch, usual_size))
        self.optimizer.raise_if_nonfinite()
        return means.means()

    @recordable
    def _train_minibatch(self, minibatch: RolloutMinibatch, random: RandomSource) -> StepReport:
        with self.autocast():
            losses = self.losses(minibatch)
            gradient = self.optimizer.gradient(losses["loss"])
        return self.optimizer.step(gradient, losses, max_norm=self.config.max_grad_norm)
