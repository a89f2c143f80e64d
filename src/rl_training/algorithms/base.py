"""The contract every algorithm fulfils, and the parts of an update that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Generic, TypeVar

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.execution.executor import Execution, Executor
from rl_training.execution.optimizers import FlatOptimizer, FlatParameters, StepReport
from rl_training.policies.policy import Policy
from rl_training.policies.policy_config import PolicyConfig, Precision
from rl_training.policies.spec import PolicySpec
from rl_training.utils.action_masks import mask_key
from rl_training.utils.errors import CheckpointError, ConfigError, SpaceError
from rl_training.utils.global_random import seeded_global_rng
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import space_name

ConfigT = TypeVar("ConfigT")
BatchT = TypeVar("BatchT")
Metrics = dict[str, Tensor]
"""Named scalars that stay on the device until the trainer logs them."""


class Algorithm(ABC, Generic[ConfigT, BatchT]):
    """An update rule: owns the policy's optimisers and its own random stream; knows no environment, file or log.

    Subclasses state what they support in `observation_spaces` and `action_spaces` (names of Gymnasium spaces), and name their
    config dataclass in `config_class`.
    """

    config_class: ClassVar[type]
    observation_spaces: ClassVar[tuple[str, ...]] = (
        "Box",
        "Discrete",
        "MultiDiscrete",
        "MultiBinary",
        "Dict",
    )
    action_spaces: ClassVar[tuple[str, ...]]
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Advice for spaces it does not support, by "Box action" and the like."""
    differences: ClassVar[tuple[str, ...]] = ()
    """Where it does, by default, something else than its paper; for its page in the docs."""
    unused_policy_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the `policy` section that mean nothing to it; setting one is refused."""
    action_masks: ClassVar[bool] = False
    """Whether its policy takes valid actions only, in environments that say which are."""
    normalizes_rewards: ClassVar[bool] = False
    """Whether `env.normalize_rewards` makes sense for it."""
    other_precisions: ClassVar[bool] = True
    """Whether its updates can be computed in another precision than float32."""
    can_overlap: ClassVar[bool] = False
    """Whether it can learn from what the policy before the last update did."""
    unwatched: ClassVar[frozenset[str]] = frozenset()
    """Attributes that change between updates and that no recorded step reads."""
    policy: Policy

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: ConfigT,
        policy_config: PolicyConfig | None = None,
        *,
        normalize_observations: bool = False,
        normalize_rewards: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
        execution: Execution = "auto",
        check_execution_every: int = 0,
        precision: Precision = "float32",
    ):
        self.check_spaces(observation_space, action_space)
        self.config, self.observation_space, self.action_space = config, observation_space, action_space
        self.device, self.precision = torch.device(device), precision
        self.executor = Executor(self, self.device, execution, check_every=check_execution_every)
        spec = PolicySpec(
            observation_space,
            action_space,
            policy_config or PolicyConfig(),
            normalize_observations=normalize_observations,
            normalize_rewards=normalize_rewards,
        )
        with seeded_global_rng(derive_seed(seed, "initial weights")):
            self.policy = self.make_policy(spec, config).to(self.device)
        if getattr(config, "encoder_learning_rate", None) is not None and not self.policy.encoder.trainable:
            raise ConfigError("hyperparams.encoder_learning_rate: the encoder has no weights to train. Leave it out.")
        self.generator = torch.Generator(device=self.device).manual_seed(derive_seed(seed, "algorithm"))

    @classmethod
    def check_spaces(cls, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        """Raises SpaceError, naming what would work, for a space this algorithm does not declare."""
        for role, space, supported in (
            ("observation", observation_space, cls.observation_spaces),
            ("action", action_space, cls.action_spaces),
        ):
            if space_name(space) not in supported:
                advice = cls.elsewhere.get(f"{space_name(space)} {role}", "Convert the space with a Gymnasium wrapper.")
                raise SpaceError(
                    f"{cls.__name__.removesuffix('Algorithm')} does not support {space_name(space)} {role} spaces (got {space}).\n"
                    f"It supports: {', '.join(supported)}. {advice}"
                )

        if mask_key(observation_space) is not None and not cls.action_masks:
            raise SpaceError(
                f"{cls.__name__.removesuffix('Algorithm')} knows no action masks, and the environment has them.\n"
                "Use PPO, A2C, TRPO, RecurrentPPO, DQN or DiscreteSAC, or set env.action_masks=false to do without."
            )

    @staticmethod
    @abstractmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> Policy:
        """A fresh policy of the kind this algorithm trains, with weights from torch's global generator."""

    @classmethod
    def with_derived_defaults(cls, config: ConfigT, given: Collection[str], num_envs: int) -> ConfigT:
        """The config with defaults that follow from the number of environments or from other settings; `given` are the names
        of what was set and stays as it is."""
        return config

    @classmethod
    def check_config(cls, config: ConfigT, num_envs: int) -> None:
        """Raises ConfigError for settings that are valid one by one but not together."""

    @classmethod
    @abstractmethod
    def updates_per_step(cls, config: ConfigT, num_envs: int) -> float:
        """Gradient steps per environment step."""

    def update(self, batch: BatchT, progress: float) -> Metrics:
        """Learns from one batch. `progress` in [0, 1] is how much of the training has been collected, for schedules.

        Weights that somebody has replaced since the last update are taken over first.
        """
        for weights in self.flat_parameters():
            weights.relink()
        for optimizer in self.optimizers().values():
            optimizer.advance(progress)
        return self._update(batch, progress)

    @abstractmethod
    def _update(self, batch: BatchT, progress: float) -> Metrics:
        """Learns from one batch, with the learning rates set."""

    def flat_parameters(self) -> list[FlatParameters]:
        """All weights that are moved as vectors: the optimisers', and those of target networks."""
        return [optimizer.flat for optimizer in self.optimizers().values()]

    def autocast(self) -> AbstractContextManager[Any]:
        """Networks compute in the precision of the updates inside it. TF32 is a mode of the process, set elsewhere."""
        if self.precision != "bf16":
            return nullcontext()
        # Without a cache of converted weights: a step moves them, and a recorded one would keep them for ever.
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)

    @abstractmethod
    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        """The optimisers by name."""

    def state_dict(self) -> dict[str, Any]:
        """Everything but the policy: optimisers and the random stream."""
        return {
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers().items()},
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        optimizers = self.optimizers()
        if set(state["optimizers"]) != set(optimizers):
            raise CheckpointError(
                f"the checkpoint holds optimisers {sorted(state['optimizers'])}, expected {sorted(optimizers)}"
            )
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.generator.set_state(state["generator"])


class MetricMeans:
    """Running means of what is reported, kept on the device; each metric's over the reports that have it."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, report: StepReport) -> None:
        names = report.names
        # Never the report's own tensor: a recorded step overwrites it.
        known = self._sums.get(names)
        self._sums[names] = report.values.clone() if known is None else known.add_(report.values)
        self._counts[names] = self._counts.get(names, 0) + 1

    def add_metrics(self, metrics: Metrics) -> None:
        self.add(StepReport(tuple(metrics), torch.stack(list(metrics.values()))))

    def means(self) -> Metrics:
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for names, values in self._sums.items():
            for name, value in zip(names, values.unbind()):
                sums[name] = sums[name] + value if name in sums else value
                counts[name] = counts.get(name, 0) + self._counts[names]
        return {name: value / counts[name] for name, value in sums.items()}
