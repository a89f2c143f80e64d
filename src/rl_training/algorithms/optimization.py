"""Which optimiser moves the weights, and at what step size: settings that all algorithms trained by gradients share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from rl_training.execution.optimizers import Adam, AdamW, FlatOptimizer, Group, Parameters, RMSprop
from rl_training.utils.coerce import check_fields
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule

Rate = Annotated[float | Schedule, Range(ge=0)]

_ADAM, _ADAMW, _RMSPROP = (Needs("optimizer", *kinds) for kinds in (("adam", "adamw"), ("adamw",), ("rmsprop",)))


@dataclass
class OptimizerConfig:
    """Hyperparameters of the optimiser."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 3e-4
    """Step size; `{start: 3e-4, end: 0.0}` anneals it linearly."""
    encoder_learning_rate: Annotated[float | Schedule, Range(ge=0)] | None = None
    """Step size of the observation encoder, where it has weights; null for `learning_rate`."""
    optimizer: Literal["adam", "adamw", "rmsprop"] = "adam"
    """What moves the weights. `rmsprop` is TensorFlow's, with ε inside the root."""
    weight_decay: Annotated[float, Range(ge=0), _ADAMW] = 0.0
    """Share of each weight, times the step size, that every step takes away."""
    max_grad_norm: Annotated[float, Range(gt=0)] | None = None
    """Gradients are scaled down to this global norm; null leaves them as they are."""
    adam_eps: Annotated[float, Range(gt=0), _ADAM] = 1e-8
    """ε of Adam and AdamW."""
    adam_beta1: Annotated[float, Range(ge=0, lt=1), _ADAM] = 0.9
    """β₁ of Adam and AdamW."""
    rmsprop_alpha: Annotated[float, Range(ge=0, lt=1), _RMSPROP] = 0.99
    """Decay of RMSprop's mean of squared gradients."""
    rmsprop_eps: Annotated[float, Range(gt=0), _RMSPROP] = 1e-5
    """ε of RMSprop."""

    def __post_init__(self) -> None:
        check_fields(self)


Role = tuple[Parameters, float | Schedule | None]
"""Weights that serve one purpose, and their own learning rate; None for the common one."""


def make_optimizer(config: OptimizerConfig, roles: Sequence[Role], together: Parameters | None = None) -> FlatOptimizer:
    """The optimiser that a config describes, with a group for each role that has a learning rate of its own.

    If none has, the weights are taken in the order in which `together` has them, by default that of the roles.
    """
    rates = [config.learning_rate if rate is None else rate for _, rate in roles]
    if all(rate == rates[0] for rate in rates):
        everything: Parameters = [weights for weights, _ in roles] if together is None else together
        groups = [Group(everything, rates[0], config.weight_decay)]
    else:
        groups = [Group(weights, rate, config.weight_decay) for (weights, _), rate in zip(roles, rates)]
    if config.optimizer == "rmsprop":
        return RMSprop(groups, alpha=config.rmsprop_alpha, eps=config.rmsprop_eps)
    kind = AdamW if config.optimizer == "adamw" else Adam
    return kind(groups, eps=config.adam_eps, beta1=config.adam_beta1)
