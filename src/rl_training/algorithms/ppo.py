"""Proximal Policy Optimization (Schulman et al. 2017, arXiv 1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from rl_training.algorithms.base import MetricMeans, Metrics
from rl_training.algorithms.on_policy import OneLossAlgorithm, OnPolicyConfig, as_metrics, normalized
from rl_training.data.rollout_buffer import RolloutBuffer, RolloutMinibatch
from rl_training.execution.optimizers import Adam
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule, schedule_value


@dataclass
class PPOConfig(OnPolicyConfig):
    """Hyperparameters of PPO."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 2.5e-4
    """Step size of Adam; `{start: 2.5e-4, end: 0.0}` anneals it linearly."""
    num_minibatches: Annotated[int, Range(ge=1)] = 4
    """Parts that each epoch's permutation is cut into."""
    update_epochs: Annotated[int, Range(ge=1)] = 4
    """Passes over each rollout."""
    clip_coef: Annotated[float | Schedule, Range(gt=0)] = 0.2
    """ε of the clipped objective: how far the probability ratio may move from 1."""
    clip_value_loss: bool = False
    """Also clip how far the value may move from its old estimate; only sensible with normalised rewards."""
    ent_coef: Annotated[float | Schedule, Range(ge=0)] = 0.01
    """Weight of the entropy bonus."""
    normalize_advantages: bool = True
    """Give each minibatch's advantages mean 0 and standard deviation 1."""
    target_kl: Annotated[float | None, Range(gt=0)] = None
    """Stop the epochs of an update once the approximate KL divergence exceeds this; none by default."""
    recompute_advantages: bool = False
    """Compute values and advantages anew before each further epoch (Andrychowicz et al. 2021)."""
    adam_eps: Annotated[float, Range(gt=0)] = 1e-5
    """ε of Adam."""


def ppo_loss(
    minibatch: Mapping[str, Tensor],
    clip_coef: float | Tensor,
    ent_coef: float | Tensor,
    vf_coef: float,
    clip_value_loss: bool = False,
) -> Metrics:
    """PPO's loss (eq. 9) from tensors of shape (B,):

        L = −E[min(r A, clip(r, 1−ε, 1+ε) A)] − c_H E[H] + c_V · ½ E[(V − R)²],   r = exp(log π − log π_old)

    `minibatch` maps logprobs (new), old_logprobs, advantages, returns, values (old), new_values and entropy. The result also has
    `approx_kl` = E[(r − 1) − log r], the low-variance estimator, and `clip_fraction`.
    """
    advantages, returns, new_values = minibatch["advantages"], minibatch["returns"], minibatch["new_values"]
    clip_coef = torch.as_tensor(clip_coef)
    log_ratio = minibatch["logprobs"] - minibatch["old_logprobs"]
    ratio = log_ratio.exp()
    clipped_ratio = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = -torch.min(advantages * ratio, advantages * clipped_ratio).mean()

    squared_error = (new_values - returns).square()
    if clip_value_loss:
        old_values = minibatch["values"]
        clipped_values = old_values + (new_values - old_values).clamp(-clip_coef, clip_coef)
        squared_error = torch.max(squared_error, (clipped_values - returns).square())
    value_loss = 0.5 * squared_error.mean()

    entropy_loss = minibatch["entropy"].mean()
    with torch.no_grad():
        approx_kl = ((ratio - 1) - log_ratio).mean()
        clip_fraction = ((ratio - 1).abs() > clip_coef).float().mean()
    return {
        "loss": policy_loss - ent_coef * entropy_loss + vf_coef * value_loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": entropy_loss,
        "approx_kl": approx_kl,
        "clip_fraction": clip_fraction,
    }


class PPO(OneLossAlgorithm[PPOConfig]):
    """Several epochs of clipped policy gradient on each rollout (Schulman et al. 2017, arXiv 1707.06347)."""

    config_class = PPOConfig

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        learning_rate = schedule_value(self.config.learning_rate, 0.0)
        self.optimizer = Adam(
            self.policy.parameters(),
            learning_rate,
            eps=self.config.adam_eps,
            max_grad_norm=self.config.max_grad_norm,
        )
        # Tensors, because a recorded or compiled step would repeat a number for ever.
        self._clip_coef, self._ent_coef = torch.zeros(2, device=self.device)

    @classmethod
    def check_config(cls, config: PPOConfig, num_envs: int) -> None:
        if config.num_minibatches > config.num_steps * num_envs:
            raise ConfigError(
                f"hyperparams.num_minibatches is {config.num_minibatches}, but a rollout has only "
                f"num_steps × num_envs = {config.num_steps * num_envs} steps. Lower it or collect more steps."
            )

    @classmethod
    def updates_per_rollout(cls, config: PPOConfig) -> int:
        return config.update_epochs * config.num_minibatches

    def _optimize(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        config = self.config
        learning_rate = schedule_value(config.learning_rate, progress)
        clip_coef = schedule_value(config.clip_coef, progress)
        ent_coef = schedule_value(config.ent_coef, progress)
        self.optimizer.set_learning_rate(learning_rate)
        self._clip_coef.fill_(clip_coef)
        self._ent_coef.fill_(ent_coef)

        usual_size = rollout.num_steps * rollout.num_envs // config.num_minibatches
        means, epochs = MetricMeans(), 0
        for epoch in range(config.update_epochs):
            if epoch > 0 and config.recompute_advantages:
                self._preprocess_batch(rollout, update_logprobs=False)
            epoch_means = MetricMeans()
            for minibatch in rollout.minibatches(config.num_minibatches, self.generator):
                report = self._learn(minibatch, usual_size)
                means.add(report)
                if config.target_kl is not None:
                    epoch_means.add(report)
            epochs += 1
            # The only read of a device value inside the update, and only for those who ask for it.
            if config.target_kl is not None and float(epoch_means.means()["approx_kl"]) > config.target_kl:
                break
        self.optimizer.raise_if_nonfinite()
        settings = as_metrics(learning_rate=learning_rate, clip_coef=clip_coef, ent_coef=ent_coef, epochs=epochs)
        return {**means.means(), **settings}

    def _compute_losses(self, minibatch: RolloutMinibatch) -> Metrics:
        advantages = minibatch.advantages
        if self.config.normalize_advantages:
            advantages = normalized(advantages)
        distribution, new_values = self.policy(minibatch.obs)
        terms = {
            "logprobs": distribution.log_prob(minibatch.actions),
            "old_logprobs": minibatch.logprobs,
            "advantages": advantages,
            "returns": minibatch.returns,
            "values": minibatch.values,
            "new_values": new_values,
            "entropy": distribution.entropy(),
        }
        return ppo_loss(terms, self._clip_coef, self._ent_coef, self.config.vf_coef, self.config.clip_value_loss)
