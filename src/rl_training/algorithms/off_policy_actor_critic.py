"""What the off-policy actor-critic algorithms share: an ensemble of critics, an actor updated less often, Polyak targets."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.draws import RandomSource
from rl_training.execution.optimizers import Adam, FlatOptimizer
from rl_training.execution.steps import Acting, step_runner
from rl_training.policies.critics import CriticEnsemble
from rl_training.policies.encoders import count_of
from rl_training.policies.off_policy import OffPolicyActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule, schedule_value


@dataclass
class ActorCriticConfig(OffPolicyConfig):
    """Hyperparameters every off-policy actor-critic algorithm has."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 3e-4
    actor_learning_rate: Annotated[float | Schedule, Range(ge=0)] | None = None
    """Step size of the actor; null for that of the critics."""
    batch_size: Annotated[int, Range(ge=1)] = 256
    buffer_size: Annotated[int, Range(ge=1)] = 1_000_000
    max_grad_norm: Annotated[float, Range(gt=0)] | None = None
    tau: Annotated[float, Range(gt=0, le=1)] = 0.005
    """How far each update moves the target networks towards the online ones."""
    num_critics: Annotated[int, Range(ge=1)] = 2
    """Critics, evaluated together as one ensemble."""
    policy_delay: Annotated[int, Range(ge=1)] = 1
    """Updates of the critics per update of the actor."""
    layer_norm: bool = False
    """Layer normalisation in the critics."""
    dropout: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of units dropped in the critics."""
    critic_hidden_sizes: Annotated[tuple[int, ...], Range(ge=1)] | None = None
    """Width of each hidden layer of the critics; null for `policy.hidden_sizes`."""
    adam_beta1: Annotated[float, Range(ge=0, lt=1)] = 0.9
    """β₁ of Adam, for actor and critics."""


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


class OffPolicyActorCriticAlgorithm(OffPolicyAlgorithm[ActorCriticConfigT]):
    """Each update moves the critics; every `policy_delay`-th one moves the actor too."""

    policy: OffPolicyActorCritic

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.critic_optimizer = self._optimizer(self.policy.critics.parameters(), self.config.learning_rate)
        self.actor_optimizer = self._optimizer(self.policy.actor.parameters(), self._actor_learning_rate)
        self.updates = 0
        self._actor_metrics: Metrics = {}
        self._priorities = torch.zeros(0, device=self.device)
        self._run_step = step_runner(self, self._step)
        self._sample_actions = Acting(lambda obs, random: self.policy.act(obs, generator=random), self.device)

    def _optimizer(self, parameters: Iterable[nn.Parameter], learning_rate: float | Schedule) -> FlatOptimizer:
        start = schedule_value(learning_rate, 0.0)
        config = self.config
        return Adam(parameters, start, eps=config.adam_eps, beta1=config.adam_beta1, max_grad_norm=config.max_grad_norm)

    @property
    def _actor_learning_rate(self) -> float | Schedule:
        own = self.config.actor_learning_rate
        return self.config.learning_rate if own is None else own

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {"critics": self.critic_optimizer, "actor": self.actor_optimizer}

    def explore(self, obs: Any, *, generator: torch.Generator, progress: float) -> Tensor:
        return self._sample_actions(obs, generator=generator)

    def _actions_shape(self, obs: Any) -> tuple[int, int]:
        """(N, d) of the continuous actions for a batch of observations."""
        return count_of(obs), math.prod(self.action_space.shape or ())

    def priorities(self) -> Tensor:
        return self._priorities

    def update(self, batch: TransitionBatch, progress: float) -> Metrics:
        """One gradient step of the critics, and of the actor if it is its turn."""
        learning_rate = schedule_value(self.config.learning_rate, progress)
        actor_learning_rate = schedule_value(self._actor_learning_rate, progress)
        for name, optimizer in self.optimizers().items():
            optimizer.set_learning_rate(learning_rate if name == "critics" else actor_learning_rate)
        self.updates += 1
        acts = self.updates % self.config.policy_delay == 0
        outcome = self._run_step(batch, acts)
        self._priorities = outcome.errors
        if acts:
            self._actor_metrics = outcome.actor_metrics
        return {**outcome.metrics, **self._actor_metrics, "learning_rate": self.critic_optimizer.learning_rate}

    def _step(self, batch: TransitionBatch, acts: bool, random: RandomSource) -> StepOutcome:
        """All of an update that happens on the device."""
        features, next_features = self.policy.encode(batch.obs), self.policy.encode(batch.next_obs)
        critic = self._critic_loss(batch, features, next_features, random)
        terms = {"critic_loss": critic.loss, "q": critic.q.mean(), "td_error": critic.errors.mean()}
        metrics = self.critic_optimizer.step(critic.loss, terms).metrics()
        metrics["critic_grad_norm"] = metrics.pop("grad_norm")
        actor_metrics = self._update_actor(features, random) if acts else {}
        self._move_targets(acts)
        return StepOutcome(metrics, actor_metrics, critic.errors)

    @abstractmethod
    def _critic_loss(
        self, batch: TransitionBatch, features: Tensor, next_features: Tensor, random: RandomSource
    ) -> CriticLoss:
        """The loss of the critics on one batch, whose observations are encoded as (B, F)."""

    @abstractmethod
    def _update_actor(self, features: Tensor, random: RandomSource) -> Metrics:
        """A gradient step of the actor on encoded observations (B, F)."""

    @abstractmethod
    def _move_targets(self, acted: bool) -> None:
        """Lets the target networks follow; `acted` says whether the actor has just moved."""

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
    sizes = hyperparams.critic_hidden_sizes
    return CriticEnsemble(
        hyperparams.num_critics,
        inputs,
        spec.config.hidden_sizes if sizes is None else sizes,
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
