"""What the off-policy actor-critic algorithms share: an ensemble of critics, an actor updated less often, Polyak targets.

The critics train the observation encoder, where it has weights; the actor reads its features without changing it, and targets
have an encoder of their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.off_policy import BatchAlgorithm, BatchConfig, ReplayConfig
from rl_training.algorithms.optimization import Role, make_optimizer
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import FlatOptimizer, FlatParameters, slow_copies
from rl_training.policies.critics import CriticEnsemble
from rl_training.policies.encoders import ObservationEncoder
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.random_shift import RandomShift
from rl_training.policies.spec import PolicySpec
from rl_training.utils.action_masks import visible_space
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule


@dataclass
class ActorCriticConfig(BatchConfig):
    """Hyperparameters of every such update rule."""

    batch_size: Annotated[int, Range(ge=1)] = 256
    actor_learning_rate: Annotated[float | Schedule, Range(ge=0)] | None = None
    """Step size of the actor; null for that of the critics."""
    tau: Annotated[float, Range(gt=0, le=1)] = 0.005
    """How far each update moves the target networks towards the online ones."""
    num_critics: Annotated[int, Range(ge=1)] = 2
    """Critics, evaluated together as one ensemble."""
    policy_delay: Annotated[int | None, Range(ge=1)] = 1
    """Updates of the critics per update of the actor; null for as many as there are per environment step, so that the actor moves
    once per step however often the critics do."""
    layer_norm: bool = False
    """Layer normalisation in the critics."""
    dropout: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of units dropped in the critics."""
    random_shift: Annotated[int, Range(ge=0), Needs("the observations", "images")] = 0
    """Pixels by which images are moved at most, at random and anew in every update (DrQ, Kostrikov et al. 2021)."""


@dataclass
class ActorCriticReplayConfig(ReplayConfig):
    """How such an algorithm collects, if it does."""

    buffer_size: Annotated[int, Range(ge=1)] = 1_000_000


ActorCriticConfigT = TypeVar("ActorCriticConfigT", bound=ActorCriticConfig)


@dataclass(frozen=True, slots=True)
class CriticLoss:
    """What an update of the critics learns from."""

    loss: Tensor
    """() the importance-weighted loss, summed over the critics."""
    q: Tensor
    """(N, B) values of the actions taken."""
    errors: Tensor
    """(B,) absolute TD errors, averaged over the critics."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What is left of a step once it is done."""

    metrics: Metrics
    actor_metrics: Metrics
    """Empty unless the actor moved."""
    errors: Tensor
    """(B,) absolute TD errors."""


class OffPolicyActorCriticAlgorithm(BatchAlgorithm[ActorCriticConfigT]):
    """Each update moves the critics; every `policy_delay`-th one moves the actor too."""

    unwatched = BatchAlgorithm.unwatched | {"updates", "_actor_metrics"}
    policy: OffPolicyActorCritic

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config, policy = self.config, self.policy
        roles: list[Role] = [(policy.critics, None)]
        if policy.encoder.trainable:
            roles.append((policy.encoder, config.encoder_learning_rate))
        self.critic_optimizer: FlatOptimizer = make_optimizer(config, roles)
        self.actor_optimizer: FlatOptimizer = make_optimizer(config, [(policy.actor, config.actor_learning_rate)])
        self._shift = RandomShift(visible_space(self.observation_space), config.random_shift)
        self.target_critics: nn.Module | None = None
        self.target_encoder: ObservationEncoder | None = None
        self._target_weights: FlatParameters | None = None
        self.policy_delay = config.policy_delay or max(1, round(self.updates_per_step(config, num_envs=1)))
        self.updates = 0
        self._actor_metrics: Metrics = {}

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {"critics": self.critic_optimizer, "actor": self.actor_optimizer}

    def _update(self, batch: TransitionBatch, progress: float) -> Metrics:
        """One gradient step of the critics, and of the actor if it is its turn."""
        self.updates += 1
        acts = self.updates % self.policy_delay == 0
        outcome = self._train_batch(batch, acts, self.generator)
        self._priorities = outcome.errors
        if acts:
            self._actor_metrics = outcome.actor_metrics
        return {**outcome.metrics, **self._actor_metrics, "learning_rate": self.critic_optimizer.learning_rate}

    @recordable
    def _train_batch(self, batch: TransitionBatch, acts: bool, random: RandomSource) -> StepOutcome:
        """All of an update that happens on the device."""
        batch = self._augmented(batch, random)
        with self.autocast():
            features = self.policy.encoder(batch.obs)
            critic = self._critic_loss(batch, features, random)
            terms = {"critic_loss": critic.loss, "q": critic.q.mean(), "td_error": critic.errors.mean()}
            gradient = self.critic_optimizer.gradient(critic.loss)
            metrics = self.critic_optimizer.step(gradient, terms, self.config.max_grad_norm).metrics()
            metrics["critic_grad_norm"] = metrics.pop("grad_norm")
            # The actor reads what the encoder gave before the critics' step, and does not train it.
            actor_metrics = self._update_actor(batch, features.detach(), random) if acts else {}
            self._move_targets(acts)
        return StepOutcome(metrics, actor_metrics, critic.errors)

    def _augmented(self, batch: TransitionBatch, random: RandomSource) -> TransitionBatch:
        """The batch as the networks get to see it: with shifted images, if that is asked for."""
        if self.config.random_shift == 0 or not self._shift.images:
            return batch
        return replace(batch, obs=self._shift(batch.obs, random), next_obs=self._shift(batch.next_obs, random))

    @abstractmethod
    def _critic_loss(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> CriticLoss:
        """The loss of the critics on one batch, whose observations are encoded as (B, F)."""

    @abstractmethod
    def _update_actor(self, batch: TransitionBatch, features: Tensor, random: RandomSource) -> Metrics:
        """A gradient step of the actor on one batch, whose observations are encoded as (B, F) without gradient."""

    @abstractmethod
    def _move_targets(self, acted: bool) -> None:
        """Lets the target networks follow; `acted` says whether the actor has just moved."""

    def _make_target_critics(self) -> None:
        """Slow copies of what the critics' optimiser moves: the critics, and the encoder if there are weights in it."""
        networks = [self.policy.critics, *([self.policy.encoder] if self.policy.encoder.trainable else [])]
        (self.target_critics, *encoders), self._target_weights = slow_copies(*networks)
        self.target_encoder = encoders[0] if encoders else None

    def _move_target_critics(self) -> None:
        if self._target_weights is not None:
            self._target_weights.follow(self.critic_optimizer.flat, self.config.tau)

    def _target_features(self, obs: ObsTensor, features: Tensor | None = None) -> Tensor:
        """Observations as the targets see them, (B, F): where the encoder has no weights, as the policy does, which may have
        encoded them already."""
        if self.target_encoder is not None:
            return self.target_encoder(obs)
        return self.policy.encoder(obs) if features is None else features

    def target_networks(self) -> Mapping[str, nn.Module]:
        targets = {"critics": self.target_critics, "encoder": self.target_encoder}
        return {name: network for name, network in targets.items() if network is not None}

    def target_weights(self) -> list[FlatParameters]:
        return [] if self._target_weights is None else [self._target_weights]

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "updates": self.updates, "actor_metrics": dict(self._actor_metrics)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = int(state["updates"])
        # Reported again until the actor's next turn, as in a run that was never stopped.
        self._actor_metrics = {name: value.to(self.device) for name, value in state["actor_metrics"].items()}


def make_critics(
    spec: PolicySpec,
    hyperparams: ActorCriticConfig,
    inputs: int,
    outputs: int,
    make_norm: Callable[[int], nn.Module] | None = None,
) -> CriticEnsemble:
    """The critics that hyperparameters and policy settings describe."""
    return CriticEnsemble(
        hyperparams.num_critics,
        inputs,
        spec.config.critic_sizes,
        outputs,
        activation=spec.config.activation,
        orthogonal_init=spec.config.orthogonal_init,
        layer_norm=hyperparams.layer_norm,
        dropout=hyperparams.dropout,
        make_norm=make_norm,
    )


def with_actions(features: Tensor, actions: Tensor) -> Tensor:
    """What critics of state and action read: (B, F) and (B, d) → (B, F + d)."""
    return torch.cat([features, actions], dim=-1)


def regression_loss(q: Tensor, targets: Tensor, weights: Tensor) -> CriticLoss:
    """Squared errors: (N, B), targets and weights (B,). ½ Σ_n mean_b w_b (q_nb − y_b)²."""
    assert q.dim() == 2 and targets.shape == weights.shape == q.shape[1:], (q.shape, targets.shape, weights.shape)
    errors = q - targets
    loss = 0.5 * (weights * errors.square()).mean(dim=1).sum()
    return CriticLoss(loss, q, errors.detach().abs().mean(dim=0))
