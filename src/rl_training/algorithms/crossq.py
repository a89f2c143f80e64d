"""CrossQ (Bhatt et al. 2024, arXiv 1902.05605): SAC with batch renormalisation in place of target networks.

The critics see the transitions of a batch from both ends at once, [(s, a); (s', a')], so that one set of batch statistics fits
both. The running statistics serve wherever the paper's code is in evaluation mode: for acting, for the next actions, and for the
critics in the loss of the actor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.off_policy_actor_critic import CriticLoss, make_critics, regression_loss, with_actions
from rl_training.algorithms.sac import SACBase, SACConfig, SamplingAlgorithm, soft_target
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import RandomSource
from rl_training.policies.actors import GaussianActor
from rl_training.policies.batch_renorm import BatchRenorm, RenormConfig, batch_statistics
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.fields import Range, Unused
from rl_training.utils.schedules import Schedule


@dataclass
class CrossQConfig(SACConfig):
    """Hyperparameters of CrossQ."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 1e-3
    policy_delay: Annotated[int | None, Range(ge=1)] = 3
    adam_beta1: Annotated[float, Range(ge=0, lt=1)] = 0.5
    tau: Annotated[float, Range(gt=0, le=1), Unused("there are no target networks to move")] = 1.0
    renorm_momentum: Annotated[float, Range(ge=0, lt=1)] = 0.99
    """Share of the running statistics that each batch leaves in place."""
    renorm_warmup: Annotated[int, Range(ge=0)] = 100_000
    """Updates with plain batch normalisation, before the running statistics take part."""


class CrossQAlgorithm(SamplingAlgorithm, SACBase[CrossQConfig]):
    """SAC without target networks, by batch renormalisation over both ends of each transition.

    (Bhatt et al. 2024, arXiv 1902.05605)
    """

    config_class = CrossQConfig
    differences = ("Narrower critics than the paper's, which have 2048 units.",)

    def _make_targets(self) -> None:
        """There are none."""

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> OffPolicyActorCritic:
        actions = math.prod(spec.action_space.shape or ())
        renorm = RenormConfig(hyperparams.renorm_momentum, hyperparams.renorm_warmup)
        return OffPolicyActorCritic(
            spec,
            lambda features: GaussianActor(
                features, actions, spec.config, make_norm=lambda width: BatchRenorm(width, renorm)
            ),
            lambda features: make_critics(
                spec,
                hyperparams,
                features + actions,
                1,
                make_norm=lambda width: BatchRenorm(width, renorm, hyperparams.num_critics),
            ),
        )

    def _critic_loss(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> CriticLoss:
        next_features = self.policy.encoder(batch.next_obs)
        with torch.no_grad():
            next_actions, next_log_probs = self.policy.actor(next_features).rsample_with_log_prob(random)
        both_ends = torch.cat([with_actions(features, batch.actions), with_actions(next_features, next_actions)])
        with batch_statistics(self.policy.critics):
            q, next_q = self.policy.critics(both_ends).squeeze(-1).chunk(2, dim=1)
        next_q = next_q.detach()[self._subset(random)]
        targets = soft_target(batch.rewards, batch.discounts, next_q, next_log_probs, self.temperature.alpha)
        return regression_loss(q, targets, batch.weights)

    def _update_actor(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> Metrics:
        with batch_statistics(self.policy.actor):
            return super()._update_actor(batch, features, random)
