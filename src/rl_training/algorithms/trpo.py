"""Trust Region Policy Optimization (Schulman et al. 2015, arXiv 1502.05477)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.algorithms.base import MetricMeans, Metrics
from rl_training.algorithms.on_policy import OnPolicyAlgorithm, RolloutConfig, as_metrics, normalized
from rl_training.data.rollout_buffer import RolloutBuffer, RolloutMinibatch
from rl_training.execution.batches import ObsTensor
from rl_training.execution.optimizers import Adam, FlatOptimizer, flat, split_as
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.distributions import Distribution
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import NONFINITE_CAUSES, ConfigError, NonFiniteError
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule, schedule_value

CG_TOLERANCE = 1e-10
"""Conjugate gradient stops where the squared residual has shrunk by this factor."""


@dataclass
class TRPOConfig(RolloutConfig):
    """Hyperparameters of TRPO."""

    num_steps: Annotated[int, Range(ge=1)] = 128
    """Steps per environment in each rollout; by default 1,024 are shared out among the environments."""
    target_kl: Annotated[float | Schedule, Range(gt=0)] = 0.01
    """δ, the trust region: the largest mean KL divergence between the old and the new policy."""
    cg_iterations: Annotated[int, Range(ge=1)] = 15
    """Iterations of conjugate gradient for the natural gradient."""
    cg_damping: Annotated[float, Range(gt=0)] = 0.1
    """Multiple of the identity that is added to the Fisher matrix."""
    fisher_fraction: Annotated[float, Range(gt=0, le=1)] = 1.0
    """Share of the rollout's steps, drawn anew for each update, that the Fisher matrix is estimated from; less is faster."""
    backtrack_coef: Annotated[float, Range(gt=0, lt=1), Needs("backtrack_steps", above=1)] = 0.8
    """Factor by which a refused step is shortened."""
    backtrack_steps: Annotated[int, Range(ge=1)] = 10
    """Step lengths tried before the policy is left as it was."""
    critic_learning_rate: Annotated[float | Schedule, Range(ge=0)] = 1e-3
    """Step size of the critic's Adam; `{start: 1e-3, end: 0.0}` anneals it linearly."""
    critic_epochs: Annotated[int, Range(ge=1)] = 10
    """The critic's passes over each rollout."""
    critic_minibatches: Annotated[int, Range(ge=1)] = 8
    """Parts that each of these passes is cut into."""
    max_grad_norm: Annotated[float, Range(gt=0)] = 0.5
    """The critic's gradients are scaled down to this norm; the policy's step has the trust region."""
    adam_eps: Annotated[float, Range(gt=0)] = 1e-5
    """ε of Adam."""


def surrogate_advantage(log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
    """E[exp(log π − log π_old) A] (eq. 14), from tensors of shape (B,)."""
    assert log_probs.shape == old_log_probs.shape == advantages.shape, (log_probs.shape, advantages.shape)
    return ((log_probs - old_log_probs).exp() * advantages).mean()


def fisher_vector_product(kl: Tensor, parameters: Sequence[Tensor], damping: float) -> Callable[[Tensor], Tensor]:
    """The function v (P,) → (H + λI) v (P,), with H the Hessian of `kl` at the parameters (appendix C).

    Where both policies are the same, the Hessian of their mean KL divergence () is the Fisher matrix. It is never formed:
    H v = ∇((∇ KL)·v).
    """
    gradient = flat(torch.autograd.grad(kl, parameters, create_graph=True))

    def product(vector: Tensor) -> Tensor:
        return flat(torch.autograd.grad(gradient @ vector, parameters, retain_graph=True)) + damping * vector

    return product


def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> Tensor:
    """Solves A x = b, (P,), for the symmetric positive definite A behind `product`.

    Always runs all iterations, so that nothing has to be read from the device; once converged, they change nothing.
    """
    x, residual, direction = torch.zeros_like(b), b, b
    squared = residual @ residual
    goal = CG_TOLERANCE * squared
    for _ in range(iterations):
        along = product(direction)
        # A comparison with NaN is false: what is not finite stays in x and is found there.
        alpha = torch.where(squared <= goal, 0.0, squared / (direction @ along))
        x = x + alpha * direction
        residual = residual - alpha * along
        previous, squared = squared, residual @ residual
        beta = torch.where(previous <= goal, 0.0, squared / previous)
        direction = residual + beta * direction
    return x


def step_length(curvature: Tensor, target_kl: float) -> Tensor:
    """β = √(2δ / xᵀHx): the multiple of x where the quadratic model of the KL divergence, ½ (βx)ᵀH(βx), reaches δ.

    `curvature` () is xᵀHx; 0, the curvature of no direction at all, gives 0.
    """
    return torch.where(curvature == 0, 0.0, (2.0 * target_kl / curvature).sqrt())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy on the way from the old one to the end of the full step."""

    improvement: Tensor
    """() surrogate advantage over that of the old policy."""
    kl: Tensor
    """() mean KL(old ‖ new)."""


def line_search(
    evaluate: Callable[[float], Candidate], coef: float, steps: int, target_kl: float
) -> tuple[float, Candidate | None]:
    """The first fraction 1, c, c², … of the full step whose policy is inside the trust region and better; 0 if none is.

    A candidate that is not finite is neither.
    """
    for attempt in range(steps):
        fraction = coef**attempt
        candidate = evaluate(fraction)
        improvement, kl = torch.stack([candidate.improvement, candidate.kl]).tolist()
        if kl <= target_kl and 0.0 < improvement < float("inf"):
            return fraction, candidate
    return 0.0, None


class TRPOAlgorithm(OnPolicyAlgorithm[TRPOConfig]):
    """One natural-gradient step per rollout, inside a trust region (Schulman et al. 2015, arXiv 1502.05477).

    The critic is trained apart.
    """

    config_class = TRPOConfig
    differences = (
        "Advantages by GAE from a critic, trained by Adam, where the paper has returns of whole episodes.",
        "A step must improve the surrogate at all, not by a share of what its gradient promises.",
    )
    default_rollout = 1024
    other_precisions = False

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        policy, config = self.policy, self.config
        assert policy.critic_body is not None, "make_policy refuses a shared body"
        self._actor = _Actor(policy)
        # An encoder with weights is the actor's: the trust region bounds its steps, and the critic reads what it is given.
        critic = [policy.critic_body, policy.value_head]
        self.critic_optimizer = Adam(critic, config.critic_learning_rate, eps=config.adam_eps)

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> ActorCritic:
        if spec.config.shared:
            raise ConfigError(
                "TRPO trains actor and critic apart, so they cannot share a body: the critic's steps would move the policy "
                "out of its trust region.\nSet policy.shared to false, or use PPO or A2C."
            )
        return OnPolicyAlgorithm.make_policy(spec, hyperparams)

    @classmethod
    def check_config(cls, config: TRPOConfig, num_envs: int) -> None:
        cls._check_minibatches("critic_minibatches", config.critic_minibatches, config.num_steps * num_envs)

    @classmethod
    def updates_per_rollout(cls, config: TRPOConfig) -> int:
        return 1 + config.critic_epochs * config.critic_minibatches

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {"critic": self.critic_optimizer}

    def _optimize(self, rollout: RolloutBuffer, progress: float) -> Metrics:
        target_kl = schedule_value(self.config.target_kl, progress)
        weights, metrics = self._actor.vector(), Metrics()
        for batch in rollout.minibatches(1, self.generator):  # none, if no step is valid
            weights, metrics = self._policy_step(weights, batch, target_kl)
        critic_metrics = self._update_critic(rollout)
        self._actor.load(weights)  # only now: had the critic failed, the policy would be as it was
        rate = self.critic_optimizer.learning_rates[0].number
        settings = as_metrics(target_kl=target_kl, critic_learning_rate=rate)
        return {**metrics, **critic_metrics, **settings}

    def _policy_step(self, weights: Tensor, batch: RolloutMinibatch, target_kl: float) -> tuple[Tensor, Metrics]:
        """The actor's weights (P,) after this update, from those now and all valid steps of the rollout in random order."""
        config, actor = self.config, self._actor
        advantages = normalized(batch.advantages)
        distribution = self.policy.distribution(batch.obs)
        log_probs = distribution.log_prob(batch.actions)
        surrogate = surrogate_advantage(log_probs, log_probs.detach(), advantages)
        gradient = flat(torch.autograd.grad(surrogate, actor.weights))

        fisher_obs = _first_rows(batch.obs, math.ceil(config.fisher_fraction * len(advantages)))
        kl = actor.at(weights, fisher_obs).kl(self.policy.distribution(fisher_obs)).mean()
        product = fisher_vector_product(kl, actor.weights, config.cg_damping)
        direction = conjugate_gradient(product, gradient, config.cg_iterations)
        curvature = direction @ product(direction)
        step = step_length(curvature, target_kl) * direction
        terms = {"policy_loss": -surrogate.detach(), "grad_norm": gradient.norm(), "step_norm": step.norm()}
        _raise_if_nonfinite({**terms, "curvature": curvature})

        with torch.no_grad():
            old, old_log_probs = actor.at(weights, batch.obs), log_probs.detach()

            def evaluate(fraction: float) -> Candidate:
                new = actor.at(weights + fraction * step, batch.obs)
                value = surrogate_advantage(new.log_prob(batch.actions), old_log_probs, advantages)
                return Candidate(value - surrogate, old.kl(new).mean())

            fraction, accepted = line_search(evaluate, config.backtrack_coef, config.backtrack_steps, target_kl)
            if accepted is None:
                accepted = Candidate(torch.zeros_like(curvature), torch.zeros_like(curvature))
            else:
                weights = weights + fraction * step
        return weights, {
            **terms,
            "surrogate_improvement": accepted.improvement,
            "kl": accepted.kl,
            "step_fraction": torch.tensor(fraction),
            "entropy_loss": distribution.entropy().mean().detach(),
        }

    def _update_critic(self, rollout: RolloutBuffer) -> Metrics:
        means = MetricMeans()
        for _ in range(self.config.critic_epochs):
            for batch in rollout.minibatches(self.config.critic_minibatches, self.generator):
                value_loss = 0.5 * (self.policy.value(batch.obs) - batch.returns).square().mean()
                gradient = self.critic_optimizer.gradient(value_loss)
                means.add(self.critic_optimizer.step(gradient, {"value_loss": value_loss}, self.config.max_grad_norm))
        self.critic_optimizer.raise_if_nonfinite()
        metrics = means.means()
        return {"value_loss": metrics["value_loss"], "critic_grad_norm": metrics["grad_norm"]} if metrics else {}


class _Actor(nn.Module):
    """The acting part of a policy as a function of its weights, so that a step can be tried without touching them."""

    def __init__(self, policy: ActorCritic):
        super().__init__()
        self.policy = policy
        parts = ("policy.encoder.", "policy.actor_body.", "policy.action_head.")
        named = {name: weight for name, weight in self.named_parameters() if name.startswith(parts)}
        self._names, self.weights = tuple(named), tuple(named.values())

    def forward(self, obs: ObsTensor) -> Distribution:
        return self.policy.distribution(obs)

    def vector(self) -> Tensor:
        """A copy of the weights as one vector (P,)."""
        return flat(self.weights).detach()

    def at(self, vector: Tensor, obs: ObsTensor) -> Distribution:
        """The action distribution that the weights `vector` (P,) would give."""
        distribution: Distribution = functional_call(
            self, dict(zip(self._names, split_as(self.weights, vector))), (obs,)
        )
        return distribution

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Makes `vector` (P,) the weights of the policy."""
        torch._foreach_copy_(self.weights, split_as(self.weights, vector))


def _first_rows(obs: ObsTensor, count: int) -> ObsTensor:
    if isinstance(obs, dict):
        return {key: value[:count] for key, value in obs.items()}
    return obs[:count]


def _raise_if_nonfinite(terms: Mapping[str, Tensor]) -> None:
    """One read of the device; raises NonFiniteError with the names of the terms () that are not finite."""
    finite = torch.isfinite(torch.stack(list(terms.values()))).tolist()
    bad = [name for name, fine in zip(terms, finite) if not fine]
    if bad:
        raise NonFiniteError(
            f"{', '.join(bad)} became NaN or infinite; the weights are those before that step.\n{NONFINITE_CAUSES}"
        )
