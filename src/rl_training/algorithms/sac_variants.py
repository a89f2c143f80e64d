"""Relatives of SAC that differ in its settings only: many critics, or regularised ones, for many updates per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rl_training.algorithms.sac import SACBase, SACConfig, SamplingAlgorithm
from rl_training.utils.fields import Range


@dataclass
class REDQConfig(SACConfig):
    """SAC's hyperparameters with ten critics, of which two make each target, and twenty updates per step."""

    num_critics: Annotated[int, Range(ge=1)] = 10
    critic_subset: Annotated[int, Range(ge=1)] | None = 2
    actor_value: Literal["min", "mean"] = "mean"
    gradient_steps: Annotated[int, Range(ge=1)] = 20
    policy_delay: Annotated[int | None, Range(ge=1)] = None


class REDQAlgorithm(SamplingAlgorithm, SACBase[REDQConfig]):
    """Randomised ensembled double Q-learning (Chen et al. 2021, arXiv 2101.05982)."""

    config_class = REDQConfig


@dataclass
class DroQConfig(SACConfig):
    """SAC's hyperparameters with dropout and layer normalisation in two critics, and twenty updates per step."""

    layer_norm: bool = True
    dropout: Annotated[float, Range(ge=0, lt=1)] = 0.01
    actor_value: Literal["min", "mean"] = "mean"
    gradient_steps: Annotated[int, Range(ge=1)] = 20
    policy_delay: Annotated[int | None, Range(ge=1)] = None


class DroQAlgorithm(SamplingAlgorithm, SACBase[DroQConfig]):
    """Dropout Q-functions: a regularised pair instead of a large ensemble (Hiraoka et al. 2022, arXiv 2110.02034)."""

    config_class = DroQConfig
