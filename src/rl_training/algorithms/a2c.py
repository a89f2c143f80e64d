"""Advantage Actor-Critic, the synchronous form of A3C (Mnih et al. 2016, arXiv 1602.01783)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.on_policy import OneLossAlgorithm, OnPolicyConfig, as_metrics, normalized
from rl_training.data.rollout_buffer import RolloutBuffer, RolloutMinibatch
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import StepReport
from rl_training.execution.scalar import Scalar
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule

DEFAULT_LEARNING_RATE, DEFAULT_CRITIC_LEARNING_RATE = Schedule(2e-3, 0.0), Schedule(5e-3, 0.0)
"""With Adam. The paper has RMSprop, with which 7e-4 is usual."""


@dataclass
class A2CConfig(OnPolicyConfig):
    """Hyperparameters of A2C."""

    num_steps: Annotated[int, Range(ge=1)] = 8
    """Steps per environment in each rollout; with `gae_lambda: 1` the n of the n-step return."""
    gae_lambda: Annotated[float, Range(ge=0, le=1)] = 0.9
    """λ of generalised advantage estimation; 1 gives n-step returns."""
    learning_rate: Annotated[float | Schedule, Range(ge=0)] = DEFAULT_LEARNING_RATE
    critic_learning_rate: Annotated[float | Schedule, Range(ge=0)] | None = None
    """Step size of the critic's own layers; null for `learning_rate`. By default, where `learning_rate` is not given either, 5e-3
    falling to 0."""
    optimizer: Literal["adam", "adamw", "rmsprop"] = "adam"
    ent_coef: Annotated[float | Schedule, Range(ge=0)] = 0.01
    """Weight of the entropy bonus."""
    normalize_advantages: bool = False
    """Give each rollout's advantages mean 0 and standard deviation 1."""


def a2c_loss(
    logprobs: Tensor,
    entropy: Tensor,
    new_values: Tensor,
    advantages: Tensor,
    returns: Tensor,
    ent_coef: float | Tensor,
    vf_coef: float,
) -> Metrics:
    """L = −E[A log π] − c_H E[H] + c_V · ½ E[(V − R)²], from tensors of shape (B,)."""
    policy_loss = -(advantages * logprobs).mean()
    value_loss = 0.5 * (new_values - returns).square().mean()
    entropy_loss = entropy.mean()
    return {
        "loss": policy_loss - ent_coef * entropy_loss + vf_coef * value_loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
    }


class A2CAlgorithm(OneLossAlgorithm[A2CConfig]):
    """One policy-gradient step on each short rollout (Mnih et al. 2016, arXiv 1602.01783)."""

    config_class = A2CConfig
    default_critic_learning_rate = DEFAULT_CRITIC_LEARNING_RATE
    differences = (
        "Synchronous: environments side by side and one update for all, where A3C has many learners at once.",
        "Adam, a faster critic and λ = 0.9, where the paper has RMSprop and n-step returns: `optimizer: rmsprop` with "
        "`learning_rate: 7e-4`, `critic_learning_rate: null`, `num_steps: 5` and `gae_lambda: 1` is its usual form.",
    )

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.ent_coef = Scalar(self.config.ent_coef, self.device)

    def _optimize(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        self.ent_coef.advance(progress)
        (batch,) = rollout.minibatches(1, self.generator)
        report = self._learn(batch, usual_size=rollout.num_steps * rollout.num_envs)
        self.optimizer.raise_if_nonfinite()
        rate = self.optimizer.learning_rates[0].number
        return {**report.metrics(), **as_metrics(learning_rate=rate, ent_coef=self.ent_coef.number)}

    @recordable
    def _train_minibatch(self, minibatch: RolloutMinibatch, random: RandomSource) -> StepReport:
        config, advantages = self.config, minibatch.advantages
        with self.autocast():
            distribution, new_values = self.policy(minibatch.obs)
            losses = a2c_loss(
                distribution.log_prob(minibatch.actions),
                distribution.entropy(),
                new_values,
                normalized(advantages) if config.normalize_advantages else advantages,
                minibatch.returns,
                self.ent_coef.tensor,
                config.vf_coef,
            )
            gradient = self.optimizer.gradient(losses["loss"])
        return self.optimizer.step(gradient, losses, max_norm=config.max_grad_norm)
