"""SAC for discrete actions (Christodoulou 2019, arXiv 1910.07207): expectations over all actions instead of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.off_policy import CONTINUOUS_ELSEWHERE
from rl_training.algorithms.off_policy_actor_critic import CriticLoss, make_critics, regression_loss
from rl_training.algorithms.sac import SACBase, SACConfig, SamplingAlgorithm
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.policies.actors import CategoricalActor
from rl_training.policies.off_policy import CategoricalActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.fields import Needs, Range, Unused
from rl_training.utils.schedules import Schedule


@dataclass
class DiscreteSACConfig(SACConfig):
    """Hyperparameters of discrete SAC."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 1e-3
    batch_size: Annotated[int, Range(ge=1)] = 128
    train_frequency: Annotated[int, Range(ge=1)] = 4
    tau: Annotated[float, Range(gt=0, le=1)] = 0.01
    target_entropy: float | None = None
    """Entropy that a learned temperature keeps; null for `target_entropy_scale` times that of a uniform choice among the actions,
    or among those valid in each state."""
    target_entropy_scale: Annotated[
        float, Range(ge=0, le=1), Needs("ent_coef", "auto"), Needs("target_entropy", None)
    ] = 0.5
    """Target entropy as a share of the largest possible one, log n for n actions."""
    noise_correlation: Annotated[
        float, Range(ge=0, lt=1), Unused("a choice among actions has no noise that could go on from step to step")
    ] = 0.0


def expected_soft_value(q: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """πᵀ(Q − α log π), with values and log-probabilities of all actions (B, A) → (B,)."""
    assert q.dim() == 2 and q.shape == log_probs.shape, (q.shape, log_probs.shape)
    return (log_probs.exp() * (q - alpha * log_probs)).sum(dim=-1)


class DiscreteSACAlgorithm(SamplingAlgorithm, SACBase[DiscreteSACConfig]):
    """Soft actor-critic that chooses among n actions (Christodoulou 2019, arXiv 1910.07207)."""

    config_class = DiscreteSACConfig
    differences = ("A lower target entropy than the paper's 0.98 · log n, which is nearly a uniform choice.",)
    action_spaces: ClassVar[tuple[str, ...]] = ("Discrete",)
    elsewhere: ClassVar[Mapping[str, str]] = CONTINUOUS_ELSEWHERE
    action_masks = True
    policy: CategoricalActorCritic

    def _target_entropy(self) -> float:
        if self.config.target_entropy is not None:
            return self.config.target_entropy
        return self.config.target_entropy_scale * math.log(_choices(self.action_space))

    def _target_entropies(self, obs: ObsTensor) -> Tensor | None:
        """(B,) as many as there are states, where a mask leaves each another number of choices; None for one target for all."""
        mask = self.policy.encoder.action_mask(obs)
        if mask is None or self.config.target_entropy is not None:
            return None
        return self.config.target_entropy_scale * mask.float().sum(dim=-1).log()

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> CategoricalActorCritic:
        choices = _choices(spec.action_space)
        return CategoricalActorCritic(
            spec,
            lambda features: CategoricalActor(features, choices, spec.config),
            lambda features: make_critics(spec, hyperparams, features, choices),
        )

    def _critic_loss(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> CriticLoss:
        with torch.no_grad():
            assert self.target_critics is not None
            next_features = self.policy.encoder(batch.next_obs)
            target_features = self._target_features(batch.next_obs, next_features)
            next_q = self.target_critics(target_features, self._subset(random)).min(dim=0).values
            next_choice = self.policy.distribution(batch.next_obs, next_features)
            next_values = expected_soft_value(next_q, next_choice.log_probs, self.temperature.alpha)
            targets = batch.rewards + batch.discounts * next_values
        q = self.policy.critics(features)
        taken = q.gather(-1, batch.actions.expand(len(q), -1).unsqueeze(-1)).squeeze(-1)
        return regression_loss(taken, targets, batch.weights)

    def _update_actor(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> Metrics:
        with torch.no_grad():
            q = self._over_critics(self.policy.critics(features))
        distribution = self.policy.distribution(batch.obs, features)
        loss = -expected_soft_value(q, distribution.log_probs, self.temperature.alpha).mean()
        gradient = self.actor_optimizer.gradient(loss)
        self.actor_optimizer.step(gradient, {"actor_loss": loss}, self.config.max_grad_norm)
        # The temperature learns from the mean of log π over all actions, which is −entropy.
        targets = self._target_entropies(batch.obs)
        return {"actor_loss": loss.detach(), **self.temperature.update(-distribution.entropy(), targets)}


def _choices(space: spaces.Space[Any]) -> int:
    assert isinstance(space, spaces.Discrete)
    return int(space.n)
