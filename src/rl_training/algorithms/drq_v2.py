"""DrQ-v2 (Yarats et al. 2022, arXiv 2107.09645): control from pixels with a deterministic actor and randomly shifted images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

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
from rl_training.algorithms.td3 import smoothed_actions, td3_target
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import RandomSource, normal
from rl_training.execution.optimizers import slow_copies
from rl_training.execution.scalar import Scalar
from rl_training.policies.action_noise import ActionNoise
from rl_training.policies.actors import DeterministicActor
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.policies.trunks import TrunkedActor, TrunkedCritics
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule

DEFAULT_NOISE = Schedule(1.0, 0.1, 0.5)


@dataclass
class DrQv2Config(ActorCriticReplayConfig, ActorCriticConfig):
    """Hyperparameters of DrQ-v2. Noise is in units of half the action range."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 1e-4
    tau: Annotated[float, Range(gt=0, le=1)] = 0.01
    buffer_size: Annotated[int, Range(ge=1)] = 100_000
    learning_starts: Annotated[int, Range(ge=0)] = 2_000
    train_frequency: Annotated[int, Range(ge=1)] = 2
    n_step: Annotated[int, Range(ge=1)] = 3
    random_shift: Annotated[int, Range(ge=0)] = 4
    exploration_noise: Annotated[float | Schedule, Range(ge=0)] = DEFAULT_NOISE
    """σ of the noise in actions: while collecting, in the targets and where the actor learns."""
    target_noise_clip: Annotated[float, Range(ge=0)] = 0.3
    """Largest noise in the targets and where the actor learns."""
    trunk_size: Annotated[int, Range(ge=1)] = 50
    """Numbers that actor and critics each make of the encoder's features, before their hidden layers."""

    def __post_init__(self) -> None:
        ActorCriticConfig.__post_init__(self)


class DrQv2Algorithm(OffPolicyAlgorithm, OffPolicyActorCriticAlgorithm[DrQv2Config]):
    """Twin critics and a deterministic actor on shifted images; the critics train the encoder (Yarats et al. 2022, arXiv
    2107.09645)."""

    config_class = DrQv2Config
    action_spaces: ClassVar[tuple[str, ...]] = ("Box",)
    elsewhere: ClassVar[Mapping[str, str]] = DISCRETE_ELSEWHERE
    differences = (
        "The noise falls over the first half of the training; the paper has numbers of steps, by the difficulty of the task.",
        "The encoder takes images of any size; frames are stacked and actions repeated by wrappers of the environment.",
    )

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # The encoder has no slow copy: targets read the online one, as in the authors' code.
        (self.target_critics,), self._target_weights = slow_copies(self.policy.critics)
        self.noise = Scalar(self.config.exploration_noise, self.device)

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: DrQv2Config) -> OffPolicyActorCritic:
        actions, size = math.prod(spec.action_space.shape or ()), hyperparams.trunk_size
        return OffPolicyActorCritic(
            spec,
            lambda features: TrunkedActor(features, size, DeterministicActor(size, actions, spec.config)),
            lambda features: TrunkedCritics(features, size, make_critics(spec, hyperparams, size + actions, 1)),
        )

    def make_explorer(self) -> Explorer:
        noise = self.config.exploration_noise
        return NoisyActionExplorer(self.policy, self.executor, self.action_space, noise, ActionNoise(1.0))

    def _update(self, batch: TransitionBatch, progress: float) -> Metrics:
        self.noise.advance(progress)
        return {**super()._update(batch, progress), "exploration_noise": self.noise.tensor}

    def _noisy_actions(self, features: Tensor, random: RandomSource) -> Tensor:
        """The actor's actions (B, d) with limited noise; gradients pass through to the actor."""
        actions = self.policy.actor(features)
        noise = normal(actions.shape, random, self.device) * self.noise.tensor
        return smoothed_actions(actions, noise, self.config.target_noise_clip)

    def _critic_loss(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> CriticLoss:
        with torch.no_grad():
            assert self.target_critics is not None
            next_features = self.policy.encoder(batch.next_obs)
            next_actions = self._noisy_actions(next_features, random)
            next_q = self.target_critics(with_actions(next_features, next_actions)).squeeze(-1)
            targets = td3_target(batch.rewards, batch.discounts, next_q)
        q = self.policy.critics(with_actions(features, batch.actions)).squeeze(-1)
        return regression_loss(q, targets, batch.weights)

    def _update_actor(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> Metrics:
        actions = self._noisy_actions(features, random)
        q = self.policy.critics(with_actions(features, actions)).squeeze(-1)
        loss = -q.min(dim=0).values.mean()
        gradient = self.actor_optimizer.gradient(loss)
        self.actor_optimizer.step(gradient, {"actor_loss": loss}, self.config.max_grad_norm)
        return {"actor_loss": loss.detach()}

    def _move_targets(self, acted: bool) -> None:
        assert self._target_weights is not None
        self._target_weights.follow(self.critic_optimizer.flat, self.config.tau)  # whose first weights are the critics'
