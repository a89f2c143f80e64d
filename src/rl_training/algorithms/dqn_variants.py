"""The named members of the DQN family: the same update rule with other defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.policies.q_network import ReturnDistribution
from rl_training.utils.fields import Range


@dataclass
class DoubleDQNConfig(DQNConfig):
    """DQN's hyperparameters with `double` on."""

    double: bool = True


class DoubleDQNAlgorithm(DQNAlgorithm):
    """The online network chooses, the target network values (van Hasselt et al. 2016, arXiv 1509.06461)."""

    config_class = DoubleDQNConfig


@dataclass
class DuelingDQNConfig(DQNConfig):
    """DQN's hyperparameters with `dueling` on."""

    dueling: bool = True


class DuelingDQNAlgorithm(DQNAlgorithm):
    """State value and advantages in separate streams (Wang et al. 2016, arXiv 1511.06581)."""

    config_class = DuelingDQNConfig


@dataclass
class NoisyDQNConfig(DQNConfig):
    """DQN's hyperparameters with `noisy` on."""

    noisy: bool = True
    # Gradients of the noise are small. Steps that Adam blows up to full size would let it grow until it drowns the values.
    adam_eps: Annotated[float, Range(gt=0)] = 1e-3


class NoisyDQNAlgorithm(DQNAlgorithm):
    """Learned noise in the weights explores (Fortunato et al. 2018, arXiv 1706.10295)."""

    config_class = NoisyDQNConfig
    differences = (
        *DQNAlgorithm.differences,
        "Noise is in the head only: the last hidden layer and the outputs.",
        "Some presets keep ε-greedy actions beside the noise; their descriptions say so.",
    )


@dataclass
class PrioritizedDQNConfig(DQNConfig):
    """DQN's hyperparameters with `prioritized` on."""

    prioritized: bool = True


class PrioritizedDQNAlgorithm(DQNAlgorithm):
    """Transitions with large errors are replayed more often (Schaul et al. 2016, arXiv 1511.05952)."""

    config_class = PrioritizedDQNConfig
    differences = (*DQNAlgorithm.differences, "Plain DQN, where the paper has Double DQN; `double: true` adds it.")


@dataclass
class NStepDQNConfig(DQNConfig):
    """DQN's hyperparameters with three-step returns."""

    n_step: Annotated[int, Range(ge=1)] = 3


class NStepDQNAlgorithm(DQNAlgorithm):
    """Targets of several rewards before the bootstrap (Sutton 1988, doi 10.1007/BF00115009)."""

    config_class = NStepDQNConfig


@dataclass
class C51Config(DQNConfig):
    """DQN's hyperparameters with categorical returns."""

    distribution: ReturnDistribution = "categorical"


class C51Algorithm(DQNAlgorithm):
    """Returns as probabilities of fixed values (Bellemare et al. 2017, arXiv 1707.06887)."""

    config_class = C51Config
    differences = (
        *DQNAlgorithm.differences[1:],
        "More atoms, on a wider support than the paper's ±10, because rewards are not clipped.",
        "Adam's usual ε; the paper has 0.01 / 32.",
    )


@dataclass
class QRDQNConfig(DQNConfig):
    """DQN's hyperparameters with quantile returns."""

    distribution: ReturnDistribution = "quantile"
    max_grad_norm: Annotated[float, Range(gt=0)] | None = None


class QRDQNAlgorithm(DQNAlgorithm):
    """Returns as quantiles at fixed fractions (Dabney et al. 2018, arXiv 1710.10044)."""

    config_class = QRDQNConfig
    differences = (
        *DQNAlgorithm.differences[1:],
        "Fewer quantiles than the paper's 200, and Adam's usual ε; the paper has 0.01 / 32.",
    )


@dataclass
class IQNConfig(DQNConfig):
    """DQN's hyperparameters with an implicit quantile function."""

    distribution: ReturnDistribution = "implicit"
    max_grad_norm: Annotated[float, Range(gt=0)] | None = None


class IQNAlgorithm(DQNAlgorithm):
    """Returns as a quantile function of drawn fractions (Dabney et al. 2018, arXiv 1806.06923)."""

    config_class = IQNConfig
    differences = (
        *DQNAlgorithm.differences[1:],
        "64 fractions per prediction and per target, as in Dopamine; the paper's own figures go from 1 to 64.",
        "Adam's usual ε; the paper has 0.01 / 32.",
    )


@dataclass
class RainbowConfig(DQNConfig):
    """DQN's hyperparameters with the six improvements of Rainbow on."""

    double: bool = True
    dueling: bool = True
    noisy: bool = True
    distribution: ReturnDistribution = "categorical"
    n_step: Annotated[int, Range(ge=1)] = 3
    prioritized: bool = True
    per_alpha: Annotated[float, Range(ge=0, le=1)] = 0.5


class RainbowAlgorithm(DQNAlgorithm):
    """Double, dueling, noisy, categorical, prioritised and n-step together (Hessel et al. 2018, arXiv 1710.02298)."""

    config_class = RainbowConfig
    differences = (
        *DQNAlgorithm.differences[1:],
        "More atoms, on a wider support than the paper's ±10, because rewards are not clipped.",
        "Priorities are the cross-entropy, which is the paper's KL divergence plus the target's entropy.",
        "Gradients are clipped to a norm, as for dueling networks.",
        "Some presets keep ε-greedy actions beside the noise; their descriptions say so.",
    )
