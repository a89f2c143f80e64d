"""Advantage Actor-Critic, the synchronous form of A3C (Mnih et al. 2016, arXiv 1602.01783)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.on_policy import OneLossAlgorithm, OnPolicyConfig, as_metrics, normalized
from rl_training.data.rollout_buffer import RolloutBuffer, RolloutMinibatch
from rl_training.execution.optimizers import RMSpropTF
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule, schedule_value


@dataclass
class A2CConfig(OnPolicyConfig):
    """Hyperparameters of A2C."""

    num_steps: Annotated[int, Range(ge=1)] = 5
    """Steps per environment in each rollout (n of the n-step return)."""
    gae_lambda: Annotated[float, Range(ge=0, le=1)] = 1.0
    """λ of generalised advantage estimation; 1 gives n-step returns."""
    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 7e-4
    """Step size of RMSprop; `{start: 7e-4, end: 0.0}` anneals it linearly."""
    ent_coef: Annotated[float | Schedule, Range(ge=0)] = 0.0
    """Weight of the entropy bonus."""
    normalize_advantages: bool = False
    """Give each rollout's advantages mean 0 and standard deviation 1."""
    rmsprop_alpha: Annotated[float, Range(ge=0, lt=1)] = 0.99
    """Decay of RMSprop's mean of squared gradients."""
    rmsprop_eps: Annotated[float, Range(gt=0)] = 1e-5
    """ε of RMSprop, inside the square root as in TensorFlow."""


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


class A2C(OneLossAlgorithm[A2CConfig]):
    """One policy-gradient step on each short rollout (Mnih et al. 2016, arXiv 1602.01783)."""

    config_class = A2CConfig

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.optimizer = RMSpropTF(
            self.policy.parameters(),
            schedule_value(self.config.learning_rate, 0.0),
            alpha=self.config.rmsprop_alpha,
            eps=self.config.rmsprop_eps,
            max_grad_norm=self.config.max_grad_norm,
        )
        self._ent_coef = torch.zeros((), device=self.device)  # a compiled step would repeat a number for ever

    def _optimize(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        learning_rate = schedule_value(self.config.learning_rate, progress)
        ent_coef = schedule_value(self.config.ent_coef, progress)
        self.optimizer.set_learning_rate(learning_rate)

        self._ent_coef.fill_(ent_coef)
        (batch,) = rollout.minibatches(1, self.generator)
        report = self._learn(batch, usual_size=rollout.num_steps * rollout.num_envs)
        self.optimizer.raise_if_nonfinite()
        return {**report.metrics(), **as_metrics(learning_rate=learning_rate, ent_coef=ent_coef)}

    def _compute_losses(self, batch: RolloutMinibatch) -> Metrics:
        distribution, new_values = self.policy(batch.obs)
        advantages = normalized(batch.advantages) if self.config.normalize_advantages else batch.advantages
        return a2c_loss(
            distribution.log_prob(batch.actions),
            distribution.entropy(),
            new_values,
            advantages,
            batch.returns,
            self._ent_coef,
            self.config.vf_coef,
        )
