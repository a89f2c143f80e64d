"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor

from rl_training.algorithms.base import MetricMeans, Metrics
from rl_training.algorithms.on_policy import OneLossAlgorithm, OnPolicyConfig, as_metrics, masked_mean, normalized
from rl_training.data.rollout_buffer import RolloutBuffer, RolloutMinibatch
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import StepReport
from rl_training.execution.scalar import Scalar
from rl_training.policies.distributions import Distribution
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule

DEFAULT_MINIBATCH = 64
"""Steps per minibatch where `num_minibatches` is not given."""


@dataclass
class PPOConfig(OnPolicyConfig):
    """Hyperparameters of PPO."""

    num_steps: Annotated[int, Range(ge=1)] = 256
    """Steps per environment in each rollout; by default 2,048 are shared out among the environments."""
    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 3e-4
    num_minibatches: Annotated[int, Range(ge=1)] = 32
    """Parts that each epoch's permutation is cut into; by default parts of about 64 steps."""
    update_epochs: Annotated[int, Range(ge=1)] = 10
    """Passes over each rollout."""
    clip_coef: Annotated[float | Schedule, Range(gt=0)] = 0.2
    """ε of the clipped objective: how far the probability ratio may move from 1."""
    clip_value_loss: bool = False
    """Also clip how far the value may move from its old estimate; only sensible with normalised rewards."""
    ent_coef: Annotated[float | Schedule, Range(ge=0)] = 0.0
    """Weight of the entropy bonus."""
    normalize_advantages: bool = True
    """Give each minibatch's advantages mean 0 and standard deviation 1."""
    target_kl: Annotated[float | None, Range(gt=0)] = None
    """Stop the epochs of an update once the approximate KL divergence exceeds this; none by default."""
    recompute_advantages: Annotated[bool, Needs("update_epochs", above=1)] = False
    """Compute values and advantages anew before each further epoch (Andrychowicz et al. 2021)."""


def ppo_loss(
    minibatch: Mapping[str, Tensor],
    clip_coef: float | Tensor,
    ent_coef: float | Tensor,
    vf_coef: float,
    clip_value_loss: bool = False,
) -> Metrics:
    """PPO's loss (eq. 9) from tensors of shape (B,), or any other:

        L = −E[min(r A, clip(r, 1−ε, 1+ε) A)] − c_H E[H] + c_V · ½ E[(V − R)²],   r = exp(log π − log π_old)

    `minibatch` maps logprobs (new), old_logprobs, advantages, returns, values (old), new_values and entropy; if it has `valid`
    (bool), every mean is over the steps where that is true. The result also has `approx_kl` = E[(r − 1) − log r], the low-variance
    estimator, and `clip_fraction`.
    """
    valid = minibatch.get("valid")
    advantages, returns, new_values = minibatch["advantages"], minibatch["returns"], minibatch["new_values"]
    clip_coef = torch.as_tensor(clip_coef)
    log_ratio = minibatch["logprobs"] - minibatch["old_logprobs"]
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -masked_mean(torch.min(advantages * ratio, advantages * clipped_ratio), valid)

    squared_error = (new_values - returns).square()
    if clip_value_loss:
        old_values = minibatch["values"]
        clipped_values = old_values + (new_values - old_values).clamp(-clip_coef, clip_coef)
        squared_error = torch.max(squared_error, (clipped_values - returns).square())
    value_loss = 0.5 * masked_mean(squared_error, valid)

    entropy_loss = masked_mean(minibatch["entropy"], valid)
    with torch.no_grad():
        approx_kl = masked_mean((ratio - 1) - log_ratio, valid)
        clip_fraction = masked_mean(((ratio - 1).abs() > clip_coef).float(), valid)
    return {
        "loss": policy_loss - ent_coef * entropy_loss + vf_coef * value_loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "approx_kl": approx_kl,
        "clip_fraction": clip_fraction,
    }


PPOConfigT = TypeVar("PPOConfigT", bound=PPOConfig)


class PPOBase(OneLossAlgorithm[PPOConfigT]):
    """Several epochs of clipped policy gradient on each rollout, for any kind of minibatch."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.clip_coef = Scalar(self.config.clip_coef, self.device)
        self.ent_coef = Scalar(self.config.ent_coef, self.device)

    @classmethod
    def updates_per_rollout(cls, config: PPOConfigT) -> int:
        return config.update_epochs * config.num_minibatches

    def _optimize(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        config = self.config
        self.clip_coef.advance(progress)
        self.ent_coef.advance(progress)
        usual_size = rollout.num_steps * rollout.num_envs // config.num_minibatches
        means, epochs = MetricMeans(), 0
        for epoch in range(config.update_epochs):
            if epoch > 0 and config.recompute_advantages:
                self._preprocess_batch(rollout, update_logprobs=False)
            epoch_means = MetricMeans()
            for minibatch in self._minibatches(rollout):
                report = self._learn(minibatch, usual_size)
                means.add(report)
                if config.target_kl is not None:
                    epoch_means.add(report)
            epochs += 1
            # The only read of a device value inside the update, and only for those who ask for it.
            if config.target_kl is not None and float(epoch_means.means()["approx_kl"]) > config.target_kl:
                break
        self.optimizer.raise_if_nonfinite()
        settings = as_metrics(
            learning_rate=self.optimizer.learning_rates[0].number,
            clip_coef=self.clip_coef.number,
            ent_coef=self.ent_coef.number,
            epochs=epochs,
        )
        return {**means.means(), **settings}

    def _minibatches(self, rollout: RolloutBuffer) -> Iterator[RolloutMinibatch]:
        """One epoch."""
        return rollout.minibatches(self.config.num_minibatches, self.generator)

    def _evaluate(self, minibatch: RolloutMinibatch) -> tuple[Distribution, Tensor]:
        """The current policy's distributions and values for the steps of a minibatch."""
        return self.policy(minibatch.obs)

    @recordable
    def _train_minibatch(self, minibatch: RolloutMinibatch, random: RandomSource) -> StepReport:
        config = self.config
        valid, advantages = minibatch.valid, minibatch.advantages
        with self.autocast():
            distribution, new_values = self._evaluate(minibatch)
            terms = {
                "logprobs": distribution.log_prob(minibatch.actions),
                "old_logprobs": minibatch.logprobs,
                "advantages": normalized(advantages, valid) if config.normalize_advantages else advantages,
                "returns": minibatch.returns,
                "values": minibatch.values,
                "new_values": new_values,
                "entropy": distribution.entropy(),
            }
            if valid is not None:
                terms["valid"] = valid
            losses = ppo_loss(
                terms, self.clip_coef.tensor, self.ent_coef.tensor, config.vf_coef, config.clip_value_loss
            )
            gradient = self.optimizer.gradient(losses["loss"])
        return self.optimizer.step(gradient, losses, max_norm=config.max_grad_norm)


class PPOAlgorithm(PPOBase[PPOConfig]):
    """Several epochs of clipped policy gradient on each rollout (Schulman et al. 2017, arXiv 1707.06347)."""

    config_class = PPOConfig
    differences = (
        "Advantages are normalised in each minibatch and gradients clipped, as in OpenAI's code and not in the paper.",
        "Actor and critic have a body each, not a common one; `policy.shared: true` gives them one.",
    )
    default_rollout = 2048

    @classmethod
    def with_derived_defaults(cls, config: PPOConfig, given: Collection[str], num_envs: int) -> PPOConfig:
        config = super().with_derived_defaults(config, given, num_envs)
        if "num_minibatches" in given:
            return config
        return replace(config, num_minibatches=max(1, config.num_steps * num_envs // DEFAULT_MINIBATCH))

    @classmethod
    def check_config(cls, config: PPOConfig, num_envs: int) -> None:
        cls._check_minibatches("num_minibatches", config.num_minibatches, config.num_steps * num_envs)
