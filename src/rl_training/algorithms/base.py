"""The contract every algorithm fulfils, and the parts of an update that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.policies.config import PolicyConfig
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import CheckpointError, NonFiniteError, SpaceError
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
    unused_policy_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the `policy` section that mean nothing to it; setting one is refused."""
    normalizes_rewards: ClassVar[bool] = False
    """Whether `env.normalize_rewards` makes sense for it."""
    policy: nn.Module

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
    ):
        self.check_spaces(observation_space, action_space)
        self.config, self.action_space = config, action_space
        self.device = torch.device(device)
        spec = PolicySpec(
            observation_space,
            action_space,
            policy_config or PolicyConfig(),
            normalize_observations=normalize_observations,
            normalize_rewards=normalize_rewards,
        )
        with seeded_global_rng(derive_seed(seed, "initial weights")):
            self.policy = self.make_policy(spec, config).to(self.device)
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
                    f"{cls.__name__} does not support {space_name(space)} {role} spaces (got {space}).\n"
                    f"It supports: {', '.join(supported)}. {advice}"
                )

    @staticmethod
    @abstractmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> nn.Module:
        """A fresh policy of the kind this algorithm trains, with weights from torch's global generator."""

    @classmethod
    def check_config(cls, config: ConfigT, num_envs: int) -> None:
        """Raises ConfigError for settings that are valid one by one but not together."""

    @abstractmethod
    def update(self, batch: BatchT, progress: float) -> Metrics:
        """Learns from one batch. `progress` in [0, 1] is how much of the training has been collected, for schedules."""

    @abstractmethod
    def optimizers(self) -> Mapping[str, GuardedOptimizer]:
        """The optimisers by name."""

    def state_dict(self) -> dict[str, Any]:
        """Everything but the policy: optimisers and the random stream."""
        return {
            "optimizers": {name: guarded.state_dict() for name, guarded in self.optimizers().items()},
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        optimizers = self.optimizers()
        if set(state["optimizers"]) != set(optimizers):
            raise CheckpointError(
                f"the checkpoint holds optimisers {sorted(state['optimizers'])}, expected {sorted(optimizers)}"
            )
        for name, guarded in optimizers.items():
            _check_optimizer_state(name, guarded.optimizer, state["optimizers"][name])
            guarded.load_state_dict(state["optimizers"][name])
        self.generator.set_state(state["generator"])


class GuardedOptimizer:
    """An optimiser with gradient clipping that never applies a step that is not finite.

    The check costs no device synchronisation: the optimiser receives the flag as `found_inf` and skips the step on the device,
    and once a loss was bad all later steps are skipped too. `raise_if_nonfinite` then reports, once per update, with the
    weights as they were before the bad step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, max_grad_norm: float | None = None):
        if not (optimizer.defaults.get("fused") or hasattr(type(optimizer), "found_inf")):
            raise TypeError(f"{type(optimizer).__name__} would apply NaN steps: use one that honours `found_inf`")
        self.optimizer = optimizer
        self.max_grad_norm = max_grad_norm
        self.parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self._names: tuple[str, ...] = ()
        self._bad: Tensor | None = None
        device = self.parameters[0].device
        # On a GPU the learning rate is a tensor: a recorded step would repeat a number for ever.
        self._rate = torch.tensor(_rate_of(optimizer), device=device) if device.type == "cuda" else None
        self._share_rate()

    def set_learning_rate(self, value: float) -> None:
        if self._rate is not None:
            self._rate.fill_(value)
            return
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def _share_rate(self) -> None:
        if self._rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate

    def state_dict(self) -> dict[str, Any]:
        """The optimiser's state, the same on every device."""
        state = self.optimizer.state_dict()
        groups = [{**group, "lr": float(group["lr"])} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
        if self._rate is not None:
            self._rate.fill_(_rate_of(self.optimizer))
            self._share_rate()

    def step(self, loss: Tensor, terms: Mapping[str, Tensor]) -> Tensor:
        """One optimiser step on `loss`; `terms` are the named scalars to blame if it is not finite. Returns the gradient norm."""
        self.optimizer.zero_grad(set_to_none=True)
        # Only these parameters: the loss of an actor passes through critics whose gradients nobody wants.
        loss.backward(inputs=self.parameters)
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        grad_norm = nn.utils.clip_grad_norm_(self.parameters, limit, foreach=True)
        self._names = (*terms, "grad_norm")
        bad = ~torch.isfinite(torch.stack([*(term.detach() for term in terms.values()), grad_norm]))
        if self._bad is None:
            self._bad = torch.zeros_like(bad)
        self._bad |= bad  # in place, so that it also adds up when a recorded step is replayed
        self.optimizer.found_inf = self._bad.any().to(torch.float32)  # type: ignore[attr-defined]
        self.optimizer.step()
        return grad_norm

    def raise_if_nonfinite(self) -> None:
        """Call once per update: raises NonFiniteError if any step since the last call was not finite."""
        if self._bad is not None and bool(self._bad.any()):
            names = [name for name, flag in zip(self._names, self._bad.tolist()) if flag]
            self._bad.zero_()
            raise NonFiniteError(
                f"{', '.join(names)} became NaN or infinite; the weights are those before that step.\n"
                "Usual causes: a learning rate that is too high, unscaled rewards or observations "
                "(env.normalize_observations, env.normalize_rewards)."
            )


class MetricMeans:
    """Running means of named scalars, kept as tensors."""

    def __init__(self) -> None:
        self._sums: Metrics = {}
        self._count = 0

    def add(self, metrics: Mapping[str, Tensor]) -> None:
        for name, value in metrics.items():
            value = value.detach()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._count += 1

    def means(self) -> Metrics:
        return {name: total / self._count for name, total in self._sums.items()}


def adam(parameters: Iterable[nn.Parameter], learning_rate: float, eps: float, beta1: float = 0.9) -> torch.optim.Adam:
    """Adam in its fused form: faster on CPU and GPU, and the one that honours `found_inf`."""
    parameters = list(parameters)
    on_cuda = parameters[0].device.type == "cuda"
    return torch.optim.Adam(parameters, lr=learning_rate, betas=(beta1, 0.999), eps=eps, fused=True, capturable=on_cuda)


def _rate_of(optimizer: torch.optim.Optimizer) -> float:
    return float(optimizer.param_groups[0]["lr"])


def _check_optimizer_state(name: str, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """torch checks the number of parameters; a saved moment of another shape or dtype would only fail at the next step."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor) and value.dim() > 0:
                expected = parameters[index]
                if value.shape != expected.shape or value.dtype != expected.dtype:
                    raise CheckpointError(
                        f"optimiser {name!r}: {key} of parameter {index} is {value.dtype} {tuple(value.shape)}, "
                        f"expected {expected.dtype} {tuple(expected.shape)}"
                    )
