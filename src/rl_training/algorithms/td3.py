"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477) and DDPG (Lillicrap et al. 2016, arXiv 1509.02971), which is TD3 with one critic
and neither delay nor smoothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.exploration import Explorer, NoisyActionExplorer
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
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import RandomSource, normal
from rl_training.execution.optimizers import FlatParameters, slow_copies
from rl_training.policies.action_noise import ActionNoise
from rl_training.policies.actors import DeterministicActor
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule


@dataclass
class TD3RuleConfig(ActorCriticConfig):
    """Hyperparameters of TD3's update rule. Noise is in units of half the action range."""

    policy_delay: Annotated[int | None, Range(ge=1)] = 2
    target_noise: Annotated[float, Range(ge=0)] = 0.2
    """Standard deviation of the noise that smooths the target over similar actions."""
    target_noise_clip: Annotated[float, Range(ge=0), Needs("target_noise", above=0)] = 0.5
    """Largest such noise."""


@dataclass
class TD3Config(ActorCriticReplayConfig, TD3RuleConfig):
    """Hyperparameters of TD3 and DDPG. Noise is in units of half the action range."""

    action_noise: Literal["gaussian", "ornstein_uhlenbeck"] = "gaussian"
    """Exploration noise: independent from step to step, or drifting."""
    exploration_noise: Annotated[float | Schedule, Range(ge=0)] = 0.1
    """Its scale σ."""
    noise_theta: Annotated[float, Range(ge=0, le=1), Needs("action_noise", "ornstein_uhlenbeck")] = 0.15
    """Share of the noise that is forgotten in each step."""

    def __post_init__(self) -> None:
        TD3RuleConfig.__post_init__(self)


TD3ConfigT = TypeVar("TD3ConfigT", bound=TD3RuleConfig)


def td3_target(rewards: Tensor, discounts: Tensor, next_q: Tensor) -> Tensor:
    """r + γ (1 − terminated) min_n Q'_n(s', ã), with next_q (N, B) → (B,)."""
    assert next_q.dim() == 2 and next_q.shape[1:] == rewards.shape == discounts.shape, next_q.shape
    return rewards + discounts * next_q.min(dim=0).values


def smoothed_actions(actions: Tensor, noise: Tensor, clip: float) -> Tensor:
    """clip(a + clip(ε, −c, c), −1, 1): the target action with limited noise, inside the action range."""
    return (actions + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


class TD3Base(OffPolicyActorCriticAlgorithm[TD3ConfigT]):
    """Deterministic actor, target networks for actor and critics, smoothed target actions."""

    action_spaces: ClassVar[tuple[str, ...]] = ("Box",)
    elsewhere: ClassVar[Mapping[str, str]] = DISCRETE_ELSEWHERE

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._make_target_critics()
        (self.target_actor,), self._target_actor_weights = slow_copies(self.policy.actor)

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> OffPolicyActorCritic:
        actions = math.prod(spec.action_space.shape or ())
        return OffPolicyActorCritic(
            spec,
            lambda features: DeterministicActor(features, actions, spec.config),
            lambda features: make_critics(spec, hyperparams, features + actions, 1),
        )

    def target_networks(self) -> Mapping[str, nn.Module]:
        return {**super().target_networks(), "actor": self.target_actor}

    def target_weights(self) -> list[FlatParameters]:
        return [*super().target_weights(), self._target_actor_weights]

    def _critic_loss(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> CriticLoss:
        config = self.config
        with torch.no_grad():
            assert self.target_critics is not None
            target_features = self._target_features(batch.next_obs)
            next_actions = self.target_actor(target_features)
            if config.target_noise > 0:
                noise = normal(next_actions.shape, random, self.device)
                next_actions = smoothed_actions(next_actions, noise * config.target_noise, config.target_noise_clip)
            next_q = self.target_critics(with_actions(target_features, next_actions)).squeeze(-1)
            targets = td3_target(batch.rewards, batch.discounts, next_q)
        q = self.policy.critics(with_actions(features, batch.actions)).squeeze(-1)
        return regression_loss(q, targets, batch.weights)

    def _update_actor(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> Metrics:
        # The first critic only, as in the paper.
        q = self.policy.critics(with_actions(features, self.policy.actor(features)), slice(0, 1))
        loss = -q.mean()
        gradient = self.actor_optimizer.gradient(loss)
        self.actor_optimizer.step(gradient, {"actor_loss": loss}, self.config.max_grad_norm)
        return {"actor_loss": loss.detach()}

    def _move_targets(self, acted: bool) -> None:
        if acted:
            self._target_actor_weights.follow(self.actor_optimizer.flat, self.config.tau)
            self._move_target_critics()


class TD3Algorithm(OffPolicyAlgorithm, TD3Base[TD3Config]):
    """Twin critics, delayed actor, smoothed targets (Fujimoto et al. 2018, arXiv 1802.09477)."""

    config_class = TD3Config

    def make_explorer(self) -> Explorer:
        config = self.config
        noise = ActionNoise(config.noise_theta if config.action_noise == "ornstein_uhlenbeck" else 1.0)
        return NoisyActionExplorer(self.policy, self.executor, self.action_space, config.exploration_noise, noise)


@dataclass
class DDPGConfig(TD3Config):
    """TD3's hyperparameters with one critic, no delay and no smoothing."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 1e-3
    num_critics: Annotated[int, Range(ge=1)] = 1
    policy_delay: Annotated[int | None, Range(ge=1)] = 1
    target_noise: Annotated[float, Range(ge=0)] = 0.0


class DDPGAlgorithm(TD3Algorithm):
    """Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv 1509.02971)."""

    config_class = DDPGConfig
    differences = (
        "Gaussian noise in place of an Ornstein-Uhlenbeck process (`action_noise` has both), which does as well.",
        "Neither batch normalisation nor weight decay; one learning rate for actor and critic.",
    )
