"""What the on-policy algorithms share: an actor-critic, and advantages computed from a rollout."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Metrics
from rl_training.algorithms.optimization import OptimizerConfig, make_optimizer
from rl_training.data.returns import discounted_running_returns
from rl_training.data.rollout_buffer import RolloutBuffer, RolloutMinibatch
from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import FlatOptimizer, StepReport
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.coerce import check_fields
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule


@dataclass
class RolloutConfig:
    """Hyperparameters every on-policy algorithm has."""

    num_steps: Annotated[int, Range(ge=1)] = 128
    """Steps per environment in each rollout."""
    gamma: Annotated[float, Range(ge=0, le=1)] = 0.99
    """Discount factor."""
    gae_lambda: Annotated[float, Range(ge=0, le=1)] = 0.95
    """λ of generalised advantage estimation; 1 gives n-step returns."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class OnPolicyConfig(RolloutConfig, OptimizerConfig):
    """Hyperparameters of the algorithms that train actor and critic on one loss."""

    critic_learning_rate: Annotated[float | Schedule, Range(ge=0)] | None = None
    """Step size of the critic's own layers; null for `learning_rate`."""
    vf_coef: Annotated[float, Range(ge=0)] = 0.5
    """Weight of the value loss."""
    max_grad_norm: Annotated[float, Range(gt=0)] | None = 0.5
    adam_eps: Annotated[float, Range(gt=0)] = 1e-5

    def __post_init__(self) -> None:
        OptimizerConfig.__post_init__(self)


OnPolicyConfigT = TypeVar("OnPolicyConfigT", bound=RolloutConfig)
OneLossConfigT = TypeVar("OneLossConfigT", bound=OnPolicyConfig)


class OnPolicyAlgorithm(Algorithm[OnPolicyConfigT, RolloutBuffer]):
    """An algorithm that learns from complete rollouts of the current policy."""

    action_spaces: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")
    action_masks: ClassVar[bool] = True
    normalizes_rewards: ClassVar[bool] = True
    default_rollout: ClassVar[int | None] = None
    """Steps of a rollout over all environments where `num_steps` is not given; None for the default `num_steps` in each."""
    unwatched = frozenset({"_running_returns"})
    policy: ActorCritic

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._running_returns: Tensor | None = None

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> ActorCritic:
        return ActorCritic(spec)

    @classmethod
    def with_derived_defaults(cls, config: OnPolicyConfigT, given: Collection[str], num_envs: int) -> OnPolicyConfigT:
        if cls.default_rollout is None or "num_steps" in given:
            return config
        return replace(config, num_steps=max(1, cls.default_rollout // num_envs))

    @staticmethod
    def _check_minibatches(name: str, count: int, steps: int) -> None:
        """Raises ConfigError if a rollout of so many steps cannot be cut into so many parts."""
        if count > steps:
            raise ConfigError(
                f"hyperparams.{name} is {count}, but a rollout has only num_steps × num_envs = {steps} steps. "
                "Lower it or collect more steps."
            )

    @classmethod
    def updates_per_step(cls, config: OnPolicyConfigT, num_envs: int) -> float:
        return cls.updates_per_rollout(config) / (config.num_steps * num_envs)

    @classmethod
    def updates_per_rollout(cls, config: OnPolicyConfigT) -> int:
        """Gradient steps on each rollout."""
        return 1

    def _update(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        """One update from one rollout: scale rewards, estimate advantages, optimise, then let the normaliser see the data."""
        self._scale_rewards(rollout)
        self._preprocess_batch(rollout, update_logprobs=not rollout.has_logprobs)
        fit = explained_variance(rollout.of_valid(rollout.values), rollout.of_valid(rollout.returns))
        metrics = self._optimize(rollout, progress)
        self._postprocess_batch(rollout)
        return {**metrics, "explained_variance": fit}

    @abstractmethod
    def _optimize(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        """The gradient steps of one update, on a rollout with advantages and returns filled in."""

    @torch.no_grad()
    def _scale_rewards(self, rollout: RolloutBuffer) -> None:
        scaler = self.policy.reward_scaler
        if scaler is None:
            return
        start = self._running_returns
        if start is None or start.shape != (rollout.num_envs,):
            start = torch.zeros(rollout.num_envs, device=self.device)
        returns, self._running_returns = discounted_running_returns(
            rollout.rewards, rollout.dones, rollout.valid, start, self.config.gamma
        )
        scaler.update(rollout.of_valid(returns))
        rollout.rewards.copy_(scaler(rollout.rewards))

    @torch.no_grad()
    def _preprocess_batch(self, rollout: RolloutBuffer, *, update_logprobs: bool = True) -> None:
        """Fills in values, log-probabilities, advantages and returns with the current weights.

        Unless the rollout has log-probabilities already, the weights have not changed since it was collected, so one large
        forward pass here gives what the many small ones during collection would have given.
        """
        shape = (rollout.num_steps, rollout.num_envs)
        flat_obs = rollout.flat_obs()
        if update_logprobs:
            logprobs, values = self.evaluate_actions(flat_obs, rollout.actions.flatten(0, 1), self.generator)
            rollout.logprobs = logprobs.view(shape)
        else:
            values = self.policy.value(flat_obs)
        rollout.values = values.view(shape)
        final = rollout.final_obs()
        if final is not None:
            obs, index = final
            rollout.final_values.view(-1)[index] = self.policy.value(obs)
        assert rollout.last_obs is not None, "the collector sets last_obs"
        last_value = self.policy.value(rollout.last_obs)
        rollout.compute_returns_and_advantages(last_value, self.config.gamma, self.config.gae_lambda)

    @recordable
    def evaluate_actions(self, obs: ObsTensor, actions: Tensor, random: RandomSource) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values (B,) of observations and actions (B, ...)."""
        # In the precision of the updates, or the ratio of new to old would not start at 1.
        with self.autocast():
            distribution, values = self.policy(obs)
        return distribution.log_prob(actions), values

    def log_probs_of(self, rollout: RolloutBuffer) -> Tensor:
        """(T, N) log-probabilities of a rollout's actions under the current policy, in the precision of the updates."""
        with torch.no_grad(), self.autocast():
            distribution = self.policy.distribution(rollout.flat_obs())
        return distribution.log_prob(rollout.actions.flatten(0, 1)).view(rollout.num_steps, rollout.num_envs)

    def _postprocess_batch(self, rollout: RolloutBuffer) -> None:
        """Updates the observation statistics only now: during a rollout and its update they must not move, or the ratio
        between new and old policy would differ from 1 before any step was taken."""
        if self.policy.encoder.normalizer is not None:
            self.policy.encoder.update_statistics(rollout.valid_obs())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "running_returns": self._running_returns}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        running = state["running_returns"]
        self._running_returns = None if running is None else running.to(self.device)


class OneLossAlgorithm(OnPolicyAlgorithm[OneLossConfigT]):
    """Trains encoder, actor and critic together, on one loss of each minibatch and by one optimiser."""

    can_overlap = True
    default_critic_learning_rate: ClassVar[Schedule | None] = None
    """Step size of the critic's own layers where neither it nor `learning_rate` is given; None for `learning_rate`."""

    @classmethod
    def with_derived_defaults(cls, config: OneLossConfigT, given: Collection[str], num_envs: int) -> OneLossConfigT:
        config = super().with_derived_defaults(config, given, num_envs)
        if cls.default_critic_learning_rate is None or {"learning_rate", "critic_learning_rate"} & {*given}:
            return config
        return replace(config, critic_learning_rate=cls.default_critic_learning_rate)

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config, policy = self.config, self.policy
        shared, critic_rate = policy.critic_body is None, config.critic_learning_rate
        if shared and critic_rate not in (None, self.default_critic_learning_rate):
            raise ConfigError(
                "hyperparams.critic_learning_rate: with policy.shared actor and critic are one network. Leave it out."
            )
        self.optimizer: FlatOptimizer = make_optimizer(
            config,
            [
                (policy.encoder, config.encoder_learning_rate),
                (policy.actor_parts(), None),
                (policy.critic_parts(), None if shared else critic_rate),
            ],
            together=policy,
        )

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {"policy": self.optimizer}

    def _learn(self, minibatch: RolloutMinibatch, usual_size: int) -> StepReport:
        """One gradient step. Only minibatches of the usual size are recorded; invalid steps make others."""
        if len(minibatch.advantages) == usual_size:
            return self._train_minibatch(minibatch, self.generator)
        with self.executor.as_written():
            return self._train_minibatch(minibatch, self.generator)

    @abstractmethod
    def _train_minibatch(self, minibatch: RolloutMinibatch, random: RandomSource) -> StepReport:
        """Loss, gradient, clipping and step on one minibatch; a recordable method."""


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 − Var(returns − values) / Var(returns): 1 is a perfect critic, 0 no better than a constant; never NaN."""
    variance = returns.var(correction=0)
    unexplained = (returns - values).var(correction=0)
    return torch.where(variance > 0, 1 - unexplained / variance.clamp_min(1e-12), torch.zeros_like(variance))


def masked_mean(numbers: Tensor, valid: Tensor | None) -> Tensor:
    """The mean of the numbers that count, where `valid` is true (of all, where it is None); 0 if none does."""
    if valid is None:
        return numbers.mean()
    return numbers.masked_fill(~valid, 0.0).sum() / valid.sum().clamp_min(1)


def normalized(advantages: Tensor, valid: Tensor | None = None) -> Tensor:
    """Mean 0, standard deviation 1, of those where `valid` is true or of all; a single advantage is left as it is."""
    if valid is None:
        if advantages.numel() < 2:
            return advantages
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    count = valid.sum()
    centred = (advantages - masked_mean(advantages, valid)).masked_fill(~valid, 0.0)
    deviation = (centred.square().sum() / (count - 1).clamp_min(1)).sqrt()
    return torch.where(count < 2, advantages, centred / (deviation + 1e-8))


def as_metrics(**settings: float) -> Metrics:
    """Numbers that go beside the losses in the log."""
    return {name: torch.tensor(value) for name, value in settings.items()}
