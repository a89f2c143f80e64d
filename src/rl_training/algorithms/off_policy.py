"""What the algorithms share that learn from batches of transitions, wherever these come from, and what those add that collect
them in a replay buffer of their own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.exploration import Explorer
from rl_training.algorithms.optimization import OptimizerConfig
from rl_training.data.replay_buffer import Prioritization, TransitionBatch
from rl_training.execution.batches import ObsTensor
from rl_training.execution.optimizers import FlatParameters
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Needs, Range
from rl_training.utils.schedules import Schedule

DISCRETE_ELSEWHERE = {"Discrete action": "Use an algorithm for discrete actions: discrete_sac, dqn, ppo."}
CONTINUOUS_ELSEWHERE = {"Box action": "Use an algorithm for continuous actions: sac, td3, ppo."}
"""Where to go with the other kind of actions."""

TO_FULL_CORRECTION = Schedule(0.4, 1.0)


@dataclass
class BatchConfig(OptimizerConfig):
    """Hyperparameters of every algorithm that learns from batches of transitions."""

    gamma: Annotated[float, Range(ge=0, le=1)] = 0.99
    """Discount factor."""
    batch_size: Annotated[int, Range(ge=1)] = 128
    """Transitions per gradient step."""


@dataclass
class ReplayConfig:
    """Hyperparameters of collecting transitions and drawing batches of them."""

    reward_scale: Annotated[float, Range(gt=0)] = 1.0
    """Rewards are multiplied by this for learning, not for reports; bring returns to the order of 1 to 10."""
    buffer_size: Annotated[int, Range(ge=1)] = 100_000
    """Transitions the replay buffer keeps, over all environments."""
    learning_starts: Annotated[int, Range(ge=0)] = 1_000
    """Environment steps with random actions before the first gradient step."""
    train_frequency: Annotated[int, Range(ge=1)] = 1
    """Environment steps, over all environments, between training phases."""
    gradient_steps: Annotated[int, Range(ge=1)] = 1
    """Gradient steps per training phase; divided by `train_frequency` it is the update-to-data ratio."""
    replay_storage: Literal["ram", "disk", "device"] = "ram"
    """Where the replay buffer lives: in memory, in memory-mapped files (for more than fits in memory), or on the GPU."""
    n_step: Annotated[int, Range(ge=1)] = 1
    """Steps of reward in each target before it bootstraps; fewer where an episode ends."""
    prioritized: bool = False
    """Sample transitions in proportion to their last error (Schaul et al. 2016)."""
    per_alpha: Annotated[float, Range(ge=0, le=1), Needs("prioritized", True)] = 0.6
    """How strongly priorities shape the sampling: 0 is uniform."""
    per_beta: Annotated[float | Schedule, Range(ge=0, le=1), Needs("prioritized", True)] = TO_FULL_CORRECTION
    """How strongly importance weights correct for it: 1 corrects fully."""
    per_epsilon: Annotated[float, Range(gt=0), Needs("prioritized", True)] = 1e-6
    """Added to every error, so that no transition is forgotten."""
    hindsight: Annotated[float, Range(ge=0, lt=1)] = 0.0
    """Share of sampled transitions whose goal is replaced by one their episode achieved later (HER, Andrychowicz et al. 2017).
    For environments with goals; 0.8 is the paper's k = 4. Rewards are asked of the environment's `compute_reward`, ends of its
    `compute_terminated`; without that one they stay as they were."""

    @property
    def prioritization(self) -> Prioritization | None:
        """How the replay buffer samples; None for uniformly."""
        return Prioritization(self.per_alpha, self.per_epsilon) if self.prioritized else None


@dataclass
class OffPolicyConfig(ReplayConfig, BatchConfig):
    """Hyperparameters every off-policy algorithm has."""

    learning_rate: Annotated[float | Schedule, Range(ge=0)] = 1e-3
    max_grad_norm: Annotated[float, Range(gt=0)] | None = 10.0

    def __post_init__(self) -> None:
        OptimizerConfig.__post_init__(self)


BatchConfigT = TypeVar("BatchConfigT", bound=BatchConfig)


class BatchAlgorithm(Algorithm[BatchConfigT, TransitionBatch]):
    """An update rule for batches of transitions: one gradient step on each. It knows nothing of where they come from."""

    unused_policy_keys: ClassVar[tuple[str, ...]] = ("shared", "log_std_init", "squash")
    unwatched = frozenset({"_priorities"})

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._priorities = torch.zeros(0, device=self.device)

    @classmethod
    def updates_per_step(cls, config: BatchConfigT, num_envs: int) -> float:
        return 1.0

    def priorities(self) -> Tensor:
        """(B,) errors of the last update's transitions, from which prioritised sampling takes their priorities."""
        return self._priorities

    def target_networks(self) -> Mapping[str, nn.Module]:
        """Slowly moving copies, by name; saved with the algorithm."""
        return {}

    def target_weights(self) -> list[FlatParameters]:
        """Their weights."""
        return []

    def flat_parameters(self) -> list[FlatParameters]:
        return [*super().flat_parameters(), *self.target_weights()]

    def on_steps(self, before: int, now: int) -> None:
        """Told how the count of environment steps has moved, for updates at fixed intervals."""

    def update_statistics(self, obs: ObsTensor) -> None:
        """Lets the observation normaliser, if there is one, take in raw observations (N, ...)."""
        encoder = self.policy.encoder
        if encoder.normalizer is not None:
            encoder.update_statistics(obs)
            for target in self.target_networks().values():
                # Targets that see raw observations must see them as the policy does.
                theirs = getattr(target, "encoder", target)
                if isinstance(theirs, type(encoder)):
                    theirs.copy_statistics(encoder)

    def state_dict(self) -> dict[str, Any]:
        targets = {name: dict(network.state_dict()) for name, network in self.target_networks().items()}
        return {**super().state_dict(), "targets": targets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, network in self.target_networks().items():
            network.load_state_dict(state["targets"][name])


class OffPolicyAlgorithm(BatchAlgorithm[Any]):
    """What an update rule needs besides to be trained online, mixed into it: an explorer, and settings that fit a replay buffer."""

    can_overlap = True

    @classmethod
    def check_config(cls, config: Any, num_envs: int) -> None:
        super().check_config(config, num_envs)
        if config.batch_size > config.buffer_size:
            raise ConfigError(
                f"hyperparams.buffer_size is {config.buffer_size:,}, smaller than a batch of {config.batch_size:,}: "
                "raise buffer_size or lower batch_size."
            )
        if config.n_step > config.buffer_size // num_envs:
            raise ConfigError(
                f"hyperparams.n_step is {config.n_step}, longer than the {config.buffer_size // num_envs} steps the buffer "
                "keeps of each environment: lower n_step or raise buffer_size."
            )

    @classmethod
    def updates_per_step(cls, config: Any, num_envs: int) -> float:
        return float(config.gradient_steps / config.train_frequency)

    @abstractmethod
    def make_explorer(self) -> Explorer:
        """Who acts while transitions are collected."""
