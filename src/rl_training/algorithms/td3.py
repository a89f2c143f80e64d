"""TD3 (Fujimoto et al. 2018, arXiv 1802.09477) and DDPG (Lillicrap et al. 2016, arXiv 1509.02971), which is TD3 with one critic
and neither delay nor smoothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.off_policy import DISCRETE_ELSEWHERE
from rl_training.algorithms.off_policy_actor_critic import (
    ActorCriticConfig,
    CriticLoss,
    OffPolicyActorCriticAlgorithm,
    make_critics,
    regression_loss,
    with_actions,
)
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import RandomSource, normal
from rl_training.execution.optimizers import slow_copy
from rl_training.execution.steps import Acting
from rl_training.policies.action_noise import ActionNoise
from rl_training.policies.actors import DeterministicActor
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule, schedule_value


@dataclass
class TD3Config(ActorCriticConfig):
    """Hyperparameters of TD3 and DDPG. Noise is in units of half the action range."""

    policy_delay: Annotated[int, Range(ge=1)] = 2
    target_noise: Annotated[float, Range(ge=0)] = 0.2
    """Standard deviation of the noise that smooths the target over similar actions."""
    target_noise_clip: Annotated[float, Range(ge=0)] = 0.5
    """Largest such noise."""
    action_noise: Literal["gaussian", "ornstein_uhlenbeck"] = "gaussian"
    """Exploration noise: independent from step to step, or drifting."""
    exploration_noise: Annotated[float | Schedule, Range(ge=0)] = 0.1
    """Its scale σ."""
    noise_theta: Annotated[float, Range(ge=0, le=1)] = 0.15
    """Ornstein-Uhlenbeck: share of the noise that is forgotten in each step."""


def td3_target(rewards: Tensor, discounts: Tensor, next_q: Tensor) -> Tensor:
    """r + γ (1 − terminated) min_n Q'_n(s', ã), with next_q (N, B) → (B,)."""
    assert next_q.dim() == 2 and next_q.shape[1:] == rewards.shape == discounts.shape, next_q.shape
    return rewards + discounts * next_q.min(dim=0).values


def smoothed_actions(actions: Tensor, noise: Tensor, clip: float) -> Tensor:
    """clip(a + clip(ε, −c, c), −1, 1): the target action with limited noise, inside the action range."""
    return (actions + noise.clamp(-clip, clip)).clamp(-1.0, 1.0)


class TD3(OffPolicyActorCriticAlgorithm[TD3Config]):
    """Twin critics, delayed actor, smoothed targets (Fujimoto et al. 2018, arXiv 1802.09477)."""

    config_class = TD3Config
    action_spaces: ClassVar[tuple[str, ...]] = ("Box",)
    elsewhere: ClassVar[Mapping[str, str]] = DISCRETE_ELSEWHERE

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.target_actor, self._target_actor_weights = slow_copy(self.policy.actor)
        self.target_critics, self._target_critic_weights = slow_copy(self.policy.critics)
        theta = self.config.noise_theta if self.config.action_noise == "ornstein_uhlenbeck" else 1.0
        self.noise = ActionNoise(theta)
        self._act_with_noise = Acting(
            lambda obs, noise, random: (self.policy.act(obs, generator=random) + noise).clamp(-1.0, 1.0), self.device
        )

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> OffPolicyActorCritic:
        actions = math.prod(spec.action_space.shape or ())
        return OffPolicyActorCritic(
            spec,
            lambda features: DeterministicActor(features, actions, spec.config),
            lambda features: make_critics(spec, hyperparams, features + actions, 1),
        )

    def target_networks(self) -> Mapping[str, nn.Module]:
        return {"actor": self.target_actor, "critics": self.target_critics}

    def explore(self, obs: Any, *, generator: torch.Generator, progress: float) -> Tensor:
        scale = schedule_value(self.config.exploration_noise, progress)
        noise = self.noise.sample(self._actions_shape(obs), scale, generator)
        return self._act_with_noise(obs, noise, generator=generator)

    def observe(self, obs: Any, ended: Tensor) -> None:
        super().observe(obs, ended)
        self.noise.reset(ended)

    def _critic_loss(
        self, batch: TransitionBatch, features: Tensor, next_features: Tensor, random: RandomSource
    ) -> CriticLoss:
        config = self.config
        with torch.no_grad():
            next_actions = self.target_actor(next_features)
            if config.target_noise > 0:
                noise = normal(next_actions.shape, random, self.device)
                next_actions = smoothed_actions(next_actions, noise * config.target_noise, config.target_noise_clip)
            next_q = self.target_critics(with_actions(next_features, next_actions)).squeeze(-1)
            targets = td3_target(batch.rewards, batch.discounts, next_q)
        q = self.policy.critics(with_actions(features, batch.actions)).squeeze(-1)
        return regression_loss(q, targets, batch.weights)

    def _update_actor(self, features: Tensor, random: RandomSource) -> Metrics:
        # The first critic only, as in the paper.
        q = self.policy.critics(with_actions(features, self.policy.actor(features)), slice(0, 1))
        loss = -q.mean()
        self.actor_optimizer.step(loss, {"actor_loss": loss})
        return {"actor_loss": loss.detach()}

    def _move_targets(self, acted: bool) -> None:
        if acted:
            self._target_actor_weights.follow(self.actor_optimizer.flat, self.config.tau)
            self._target_critic_weights.follow(self.critic_optimizer.flat, self.config.tau)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "noise": self.noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.noise.load_state_dict(state["noise"])


@dataclass
class DDPGConfig(TD3Config):
    """TD3's hyperparameters with one critic, no delay and no smoothing."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 1e-3
    num_critics: Annotated[int, Range(ge=1)] = 1
    policy_delay: Annotated[int, Range(ge=1)] = 1
    target_noise: Annotated[float, Range(ge=0)] = 0.0


class DDPG(TD3):
    """Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv 1509.02971)."""

    config_class = DDPGConfig
