"""Deep Q-learning (Mnih et al. 2015) and its improvements, each a switch: double, dueling, noisy, distributional, Munchausen.

Prioritised replay and n-step returns are the replay buffer's: the update sees them as weights and discounts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.base import Metrics
from rl_training.algorithms.exploration import EpsilonGreedyExplorer, Explorer
from rl_training.algorithms.off_policy import CONTINUOUS_ELSEWHERE, OffPolicyAlgorithm, OffPolicyConfig
from rl_training.algorithms.optimization import Role, make_optimizer
from rl_training.algorithms.value_losses import (
    bellman_target,
    categorical_cross_entropy,
    categorical_projection,
    greedy_outputs,
    huber_loss,
    munchausen_target,
    quantile_huber_loss,
    take_actions,
)
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import FlatOptimizer, FlatParameters, StepReport, slow_copies
from rl_training.policies.q_network import ACTING_TAUS, HeadConfig, QNetwork, ReturnDistribution
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule

DEFAULT_EPSILON = Schedule(1.0, 0.05, 0.1)
DEFAULT_LEARNING_RATE = Schedule(1e-3, 0.0)
"""It falls to zero, because the last network is the one that counts, and Q-learning does not settle by itself."""


@dataclass
class DQNConfig(OffPolicyConfig):
    """Hyperparameters of DQN and of all its variants."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = DEFAULT_LEARNING_RATE
    batch_size: Annotated[int, Range(ge=1)] = 64
    train_frequency: Annotated[int, Range(ge=1)] = 4
    epsilon: Annotated[float | Schedule | None, Range(ge=0, le=1)] = None
    """Share of random actions while training. By default 0 with noisy networks, else from 1 to 0.05 over the first tenth."""
    target_update_interval: Annotated[int, Range(ge=0)] = 0
    """Environment steps between updates of the target network; 0 updates it after every gradient step."""
    tau: Annotated[float, Range(gt=0, le=1)] = 0.01
    """How far each update moves the target network towards the online one: 1 copies it, less is Polyak averaging. With a
    `target_update_interval` the default is 1."""
    double: bool = False
    """Let the online network choose the next action that the target network values (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Separate streams for state value and advantages (Wang et al. 2016)."""
    noisy: bool = False
    """Explore with learned noise in the weights of the head (Fortunato et al. 2018)."""
    noisy_sigma: Annotated[float, Range(gt=0), Needs("noisy", True)] = 0.5
    """Initial scale σ₀ of that noise."""
    distribution: ReturnDistribution = "none"
    """Learn the distribution of returns: as probabilities (C51), as quantiles (QR-DQN) or as a quantile function (IQN)."""
    num_atoms: Annotated[int, Range(ge=2), Needs("distribution", "categorical")] = 101
    """Number of returns, evenly spaced from `v_min` to `v_max`."""
    v_min: Annotated[float, Needs("distribution", "categorical")] = -100.0
    """Smallest return it can represent; with rewards between −1 and 1 no discounted return is below −1 / (1 − γ)."""
    v_max: Annotated[float, Needs("distribution", "categorical")] = 100.0
    """Largest return it can represent; with rewards between −1 and 1 no discounted return is above 1 / (1 − γ)."""
    num_quantiles: Annotated[int, Range(ge=1), Needs("distribution", "quantile")] = 50
    """Number of quantiles."""
    num_taus: Annotated[int, Range(ge=1), Needs("distribution", "implicit")] = 64
    """Fractions drawn per prediction."""
    num_target_taus: Annotated[int, Range(ge=1), Needs("distribution", "implicit")] = 64
    """Fractions drawn per target."""
    kappa: Annotated[float, Range(gt=0), Needs("distribution", "quantile", "implicit")] = 1.0
    """Error at which the Huber loss turns from quadratic to linear."""
    munchausen: bool = False
    """Add the scaled log-policy to the reward and bootstrap softly (Vieillard et al. 2020)."""
    munchausen_alpha: Annotated[float, Range(ge=0, le=1), Needs("munchausen", True)] = 0.9
    """Weight of the log-policy."""
    munchausen_tau: Annotated[float, Range(gt=0), Needs("munchausen", True)] = 0.03
    """Temperature of the softmax policy."""
    munchausen_clip: Annotated[float, Range(lt=0), Needs("munchausen", True)] = -1.0
    """Least value of temperature × log-policy."""

    def head(self) -> HeadConfig:
        """What the network puts out."""
        return HeadConfig(
            distribution=self.distribution,
            dueling=self.dueling,
            noisy_sigma=self.noisy_sigma if self.noisy else None,
            num_atoms=self.num_atoms,
            v_min=self.v_min,
            v_max=self.v_max,
            num_quantiles=self.num_quantiles,
        )

    @property
    def exploration(self) -> float | Schedule:
        """The share of random actions."""
        if self.epsilon is not None:
            return self.epsilon
        return 0.0 if self.noisy else DEFAULT_EPSILON


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What is left of a step once it is done."""

    report: StepReport
    priorities: Tensor
    """(B,) errors for prioritised replay."""


@dataclass(frozen=True, slots=True)
class _Losses:
    """What an update learns from each transition, all (B,)."""

    loss: Tensor
    q: Tensor
    """Value of the action taken."""
    target: Tensor
    """The value it should have."""


class DQNAlgorithm(OffPolicyAlgorithm):
    """Q-learning from replayed transitions against a slowly moving target network (Mnih et al. 2015, doi 10.1038/nature14236).

    Each improvement is a switch, so that the named variants are this algorithm with other defaults.
    """

    config_class = DQNConfig
    action_spaces: ClassVar[tuple[str, ...]] = ("Discrete",)
    action_masks = True
    elsewhere: ClassVar[Mapping[str, str]] = CONTINUOUS_ELSEWHERE
    differences: ClassVar[tuple[str, ...]] = (
        "Adam in place of RMSprop, and gradients clipped to a norm in place of errors clipped one by one.",
        "Rewards are not clipped to ±1; `reward_scale` scales them.",
        "The target network follows a little after every update; the paper copies it at intervals (`target_update_interval`).",
    )
    unused_policy_keys = (*OffPolicyAlgorithm.unused_policy_keys, "actor_hidden_sizes", "critic_hidden_sizes")
    config: DQNConfig
    policy: QNetwork

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        (self.target,), self._target_weights = slow_copies(self.policy)
        heads = [part for part in (self.policy.body, self.policy.embedding, self.policy.head) if part is not None]
        roles: list[Role] = [(self.policy.encoder, self.config.encoder_learning_rate), (heads, None)]
        self.optimizer: FlatOptimizer = make_optimizer(self.config, roles, together=self.policy)

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> QNetwork:
        return QNetwork(spec, hyperparams.head())

    @classmethod
    def with_derived_defaults(cls, config: DQNConfig, given: Collection[str], num_envs: int) -> DQNConfig:
        if config.target_update_interval > 0 and "tau" not in given:
            return replace(config, tau=1.0)
        return config

    @classmethod
    def check_config(cls, config: DQNConfig, num_envs: int) -> None:
        super().check_config(config, num_envs)
        if config.v_min >= config.v_max:
            raise ConfigError(
                f"hyperparams.v_min is {config.v_min}, not below v_max, {config.v_max}.\n"
                "They are the smallest and the largest return to expect, e.g. v_min: 0, v_max: 100."
            )
        if config.munchausen and config.distribution != "none":
            raise ConfigError(
                f"hyperparams.munchausen is for plain values, but distribution is {config.distribution!r}: "
                "set distribution: none, or munchausen: false."
            )
        if config.munchausen and config.double:
            raise ConfigError(
                "hyperparams.munchausen averages over the next actions, so double has no choice to make: turn one of them off."
            )
        if config.tau == 1.0 and config.target_update_interval == 0:
            raise ConfigError(
                "hyperparams.target_update_interval: 0 with tau: 1 copies the network after every gradient step, which is no "
                "target network at all.\nSet tau below 1 (0.005), or an interval in environment steps (1000)."
            )

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {"policy": self.optimizer}

    def target_networks(self) -> Mapping[str, QNetwork]:
        return {"policy": self.target}

    def target_weights(self) -> list[FlatParameters]:
        return [self._target_weights]

    def make_explorer(self) -> Explorer:
        return EpsilonGreedyExplorer(self.policy, self.executor, self.config.exploration)

    def _update(self, batch: TransitionBatch, progress: float) -> Metrics:
        """One gradient step on the importance-weighted mean loss."""
        outcome = self._train_batch(batch, self.generator)
        self._priorities = outcome.priorities
        return {**outcome.report.metrics(), "learning_rate": self.optimizer.learning_rate}

    @recordable
    def _train_batch(self, batch: TransitionBatch, random: RandomSource) -> _Outcome:
        with self.autocast():
            losses = self._compute_losses(batch, random)
            loss = (batch.weights * losses.loss).mean()
            q = losses.q.detach()
            errors = (losses.target - q).abs()
            gradient = self.optimizer.gradient(loss)
            terms = {"loss": loss, "td_error": errors.mean(), "q": q.mean()}
            report = self.optimizer.step(gradient, terms, self.config.max_grad_norm)
            if self.config.target_update_interval == 0:
                self._move_target(1)
        return _Outcome(report, errors if self.config.distribution == "none" else losses.loss.detach())

    def on_steps(self, before: int, now: int) -> None:
        interval = self.config.target_update_interval
        if interval > 0:
            self._move_target(now // interval - before // interval)

    def _move_target(self, times: int) -> None:
        """θ' ← τ θ + (1 − τ) θ', that many times at once."""
        if times == 0:
            return
        rate = 1.0 - (1.0 - self.config.tau) ** times
        self._target_weights.follow(self.optimizer.flat, rate)

    def _compute_losses(self, batch: TransitionBatch, random: RandomSource) -> _Losses:
        match self.config.distribution:
            case "none":
                return self._value_losses(batch, random)
            case "categorical":
                return self._categorical_losses(batch, random)
            case _:
                return self._quantile_losses(batch, random)

    def _value_losses(self, batch: TransitionBatch, random: RandomSource) -> _Losses:
        config = self.config
        with torch.no_grad():
            if config.munchausen:
                target = munchausen_target(
                    batch.rewards,
                    batch.discounts,
                    self._valid_outputs(batch.obs, random),
                    batch.actions,
                    self._valid_outputs(batch.next_obs, random),
                    tau=config.munchausen_tau,
                    alpha=config.munchausen_alpha,
                    clip=config.munchausen_clip,
                )
            else:
                target = bellman_target(batch.rewards, batch.discounts, self._next_outputs(batch, random))
        q = take_actions(self._outputs(self.policy, batch.obs, random), batch.actions)
        return _Losses(huber_loss(target - q), q, target)

    def _categorical_losses(self, batch: TransitionBatch, random: RandomSource) -> _Losses:
        policy = self.policy
        with torch.no_grad():
            next_probs = self._next_outputs(batch, random).exp()
            target_probs = categorical_projection(next_probs, batch.rewards, batch.discounts, policy.support)
            target = target_probs @ policy.support
        log_probs = take_actions(self._outputs(policy, batch.obs, random), batch.actions)
        loss = categorical_cross_entropy(target_probs, log_probs)
        return _Losses(loss, policy.expectation(log_probs.detach()), target)

    def _quantile_losses(self, batch: TransitionBatch, random: RandomSource) -> _Losses:
        config, policy = self.config, self.policy
        with torch.no_grad():
            targets = bellman_target(batch.rewards, batch.discounts, self._next_outputs(batch, random))
        taus = policy.sample_taus(len(batch.actions), config.num_taus, random)
        quantiles = take_actions(self._outputs(policy, batch.obs, random, taus), batch.actions)
        loss = quantile_huber_loss(quantiles, targets, policy.taus if taus is None else taus, config.kappa)
        return _Losses(loss, quantiles.detach().mean(dim=-1), targets.mean(dim=-1))

    def _next_outputs(self, batch: TransitionBatch, random: RandomSource) -> Tensor:
        """The target network's outputs for the greedy next action, (B,) or (B, N)."""
        config, size = self.config, len(batch.actions)
        taus = self.target.sample_taus(size, config.num_target_taus, random)
        outputs = self._outputs(self.target, batch.next_obs, random, taus)
        if not config.double and config.distribution != "implicit":
            next_q = self.target.expectation(outputs)
            return greedy_outputs(outputs, self.target.valid_values(next_q, batch.next_obs))
        # IQN chooses with fractions of its own, whichever network it asks (arXiv 1806.06923, algorithm 1).
        chooser = self.policy if config.double else self.target
        taus = chooser.sample_taus(size, ACTING_TAUS, random)
        next_q = chooser.expectation(self._outputs(chooser, batch.next_obs, random, taus))
        return greedy_outputs(outputs, chooser.valid_values(next_q, batch.next_obs))

    def _valid_outputs(self, obs: ObsTensor, random: RandomSource) -> Tensor:
        """The target network's values (B, A), of valid actions only, so that its softmax policy takes no other."""
        return self.target.valid_values(self._outputs(self.target, obs, random), obs)

    def _outputs(self, network: QNetwork, obs: ObsTensor, random: RandomSource, taus: Tensor | None = None) -> Tensor:
        """A forward pass with noise of its own."""
        network.sample_noise(random)
        return network(obs, taus)
