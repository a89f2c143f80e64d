"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for any number of critics.

The parts that its relatives replace are methods of their own: the target, the critics' loss, the value the actor climbs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.exploration import CorrelatedSamplingExplorer, Explorer, SamplingExplorer
from rl_training.algorithms.off_policy import DISCRETE_ELSEWHERE, OffPolicyAlgorithm
from rl_training.algorithms.off_policy_actor_critic import (
    ActorCriticConfig,
    ActorCriticReplayConfig,
    CriticLoss,
    OffPolicyActorCriticAlgorithm,
    make_critics,
    regression_loss,
    with_actions,
)
from rl_training.algorithms.temperature import Temperature
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import RandomSource, permutation
from rl_training.execution.optimizers import FlatOptimizer
from rl_training.policies.actors import GaussianActor
from rl_training.policies.critics import Members
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule


@dataclass
class SACRuleConfig(ActorCriticConfig):
    """Hyperparameters of SAC's update rule."""

    critic_subset: Annotated[int, Range(ge=1)] | None = None
    """Critics drawn anew for each target, whose smallest value counts; null for all of them."""
    actor_value: Literal["min", "mean"] = "min"
    """What of the critics' values the actor climbs."""
    ent_coef: Annotated[float, Range(ge=0)] | Literal["auto"] = "auto"
    """Entropy temperature α; `auto` learns it."""
    initial_ent_coef: Annotated[float, Range(gt=0), Needs("ent_coef", "auto")] = 1.0
    """First value of a learned temperature."""
    temperature_learning_rate: Annotated[float | Schedule | None, Range(ge=0), Needs("ent_coef", "auto")] = None
    """Step size of a learned temperature; null for `learning_rate`."""
    target_entropy: Annotated[float | None, Needs("ent_coef", "auto")] = None
    """Entropy that a learned temperature keeps; null for −1 per action dimension."""

    @property
    def critic_outputs(self) -> int:
        """Numbers that each critic predicts."""
        return 1


@dataclass
class SACConfig(ActorCriticReplayConfig, SACRuleConfig):
    """Hyperparameters of SAC."""

    noise_correlation: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Correlation of the noise in the actions from step to step. Raise it where independent noise cancels itself out before it
    gets anywhere, e.g. to 0.97 (Eberhard et al. 2023, arXiv 2210.07205 has the idea)."""

    def __post_init__(self) -> None:
        SACRuleConfig.__post_init__(self)


SACConfigT = TypeVar("SACConfigT", bound=SACRuleConfig)


def soft_target(rewards: Tensor, discounts: Tensor, next_q: Tensor, next_log_probs: Tensor, alpha: Tensor) -> Tensor:
    """r + γ (1 − terminated) (min_n Q'_n(s', a') − α log π(a'|s')), with next_q (N, B) → (B,)."""
    assert next_q.dim() == 2 and next_q.shape[1:] == rewards.shape == discounts.shape == next_log_probs.shape, (
        next_q.shape
    )
    return rewards + discounts * (next_q.min(dim=0).values - alpha * next_log_probs)


class SACBase(OffPolicyActorCriticAlgorithm[SACConfigT]):
    """Maximises return plus α times entropy."""

    action_spaces: ClassVar[tuple[str, ...]] = ("Box",)
    elsewhere: ClassVar[Mapping[str, str]] = DISCRETE_ELSEWHERE

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config, rate = self.config, self.config.temperature_learning_rate
        self.temperature = Temperature(
            config.initial_ent_coef if config.ent_coef == "auto" else config.ent_coef,
            self._target_entropy() if config.ent_coef == "auto" else None,
            config.learning_rate if rate is None else rate,
            config.adam_eps,
            self.device,
        )
        self._make_targets()

    def _target_entropy(self) -> float:
        if self.config.target_entropy is not None:
            return self.config.target_entropy
        return -float(math.prod(self.action_space.shape or ()))

    def _make_targets(self) -> None:
        self._make_target_critics()

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> OffPolicyActorCritic:
        actions = math.prod(spec.action_space.shape or ())
        return OffPolicyActorCritic(
            spec,
            lambda features: GaussianActor(features, actions, spec.config),
            lambda features: make_critics(spec, hyperparams, features + actions, hyperparams.critic_outputs),
        )

    @classmethod
    def check_config(cls, config: SACConfigT, num_envs: int) -> None:
        super().check_config(config, num_envs)
        if config.critic_subset is not None and config.critic_subset > config.num_critics:
            raise ConfigError(
                f"hyperparams.critic_subset is {config.critic_subset}, more than num_critics, {config.num_critics}: "
                "lower it, or set null for all critics."
            )

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {**super().optimizers(), **self.temperature.optimizers()}

    def _critic_loss(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> CriticLoss:
        with torch.no_grad():
            next_q, next_log_probs = self._next_values(batch, random)
            targets = soft_target(
                batch.rewards, batch.discounts, next_q.squeeze(-1), next_log_probs, self.temperature.alpha
            )
        q = self.policy.critics(with_actions(features, batch.actions)).squeeze(-1)
        return regression_loss(q, targets, batch.weights)

    def _next_values(self, batch: TransitionBatch, random: RandomSource) -> tuple[Tensor, Tensor]:
        """What the target critics say of the policy's next actions, (M, B, outputs), and their log-probabilities (B,)."""
        next_features = self.policy.encoder(batch.next_obs)
        next_actions, next_log_probs = self.policy.actor(next_features).rsample_with_log_prob(random)
        assert self.target_critics is not None
        target_features = self._target_features(batch.next_obs, next_features)
        return self.target_critics(with_actions(target_features, next_actions), self._subset(random)), next_log_probs

    def _subset(self, random: RandomSource) -> Members:
        """The critics whose smallest value makes the target (REDQ, arXiv 2101.05982, algorithm 1)."""
        size, total = self.config.critic_subset, self.config.num_critics
        if size is None or size == total:
            return slice(None)
        return permutation(total, random, self.device)[:size]

    def _update_actor(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> Metrics:
        actions, log_probs = self.policy.actor(features).rsample_with_log_prob(random)
        loss = (self.temperature.alpha * log_probs - self._actor_value(features, actions)).mean()
        gradient = self.actor_optimizer.gradient(loss)
        self.actor_optimizer.step(gradient, {"actor_loss": loss}, self.config.max_grad_norm)
        return {"actor_loss": loss.detach(), **self.temperature.update(log_probs)}

    def _actor_value(self, features: Tensor, actions: Tensor) -> Tensor:
        """The value (B,) of the actor's own actions, for it to climb."""
        q = self.policy.critics(with_actions(features, actions)).squeeze(-1)
        return self._over_critics(q)

    def _over_critics(self, q: Tensor) -> Tensor:
        """The critics' values (N, B, ...) as one, (B, ...), for the actor."""
        return q.min(dim=0).values if self.config.actor_value == "min" else q.mean(dim=0)

    def _move_targets(self, acted: bool) -> None:
        self._move_target_critics()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "temperature": self.temperature.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.temperature.load_state_dict(state["temperature"])


class SamplingAlgorithm(OffPolicyAlgorithm):
    """Collects with actions sampled from a squashed Gaussian policy, mixed into SAC's update rule."""

    policy: OffPolicyActorCritic

    def make_explorer(self) -> Explorer:
        correlation = self.config.noise_correlation
        if correlation == 0:
            return SamplingExplorer(self.policy, self.executor)
        return CorrelatedSamplingExplorer(self.policy, self.executor, self.action_space, correlation)


class SACAlgorithm(SamplingAlgorithm, SACBase[SACConfig]):
    """Soft actor-critic: a stochastic policy that maximises return plus entropy (Haarnoja et al. 2018, arXiv 1812.05905)."""

    config_class = SACConfig
    differences = ("The loss of the temperature is taken of log α, as in the authors' code; the paper has α.",)
