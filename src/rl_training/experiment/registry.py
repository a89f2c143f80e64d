"""The algorithms by id. Entries are names, so that listing them imports neither torch nor any algorithm."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any, Literal

from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.coerce import build_dataclass
from rl_training.utils.errors import ConfigError
from rl_training.utils.registry import Registry, checked_reference, import_reference

if TYPE_CHECKING:
    from rl_training.algorithms.base import Algorithm

TrainerKind = Literal["on_policy", "off_policy", "offline"]

NUM_ENVS = 8
"""Environments side by side of an on-policy algorithm, where the config does not say."""


@dataclass(frozen=True, eq=False)
class AlgorithmInfo:
    """What is known of an algorithm without importing it."""

    id: str
    """Snake-case id, as in `algo: td3_bc`."""
    name: str
    """Public class name, as in `rl_training.TD3BC`."""
    rule: str | type[Algorithm[Any, Any]]
    """The class of its update rule, or "module:Class"."""
    tier: Literal["core", "experimental", "contrib", "external"]
    """Stability tier; `external` is for algorithms of other packages and of users."""
    summary: str
    """One line for listings."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Its own defaults for the `policy` section."""
    family: TrainerKind | None = None
    """Which training loop drives it, where that is known without importing it."""

    def load(self) -> type[Algorithm[Any, Any]]:
        """The class of the update rule; this imports torch."""
        if not isinstance(self.rule, str):
            return self.rule
        try:
            return _checked_rule(import_reference(self.rule))
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"algorithm {self.id!r} cannot be imported from {self.rule}: {error}") from error

    @property
    def trainer(self) -> TrainerKind:
        """Which training loop drives it, as its base class says."""
        return self.family or trainer_kind(self.load())

    @property
    def num_envs(self) -> int:
        """Environments side by side where the config does not say: rollouts want several, replay is meant for one."""
        return NUM_ENVS if self.trainer == "on_policy" else 1

    def __str__(self) -> str:
        return self.rule if isinstance(self.rule, str) else f"{self.rule.__module__}:{self.rule.__qualname__}"


def _own(
    algo: str,
    name: str,
    module: str,
    summary: str,
    policy: Mapping[str, Any] | None = None,
    tier: Literal["core", "experimental", "contrib"] = "core",
    family: TrainerKind = "on_policy",
) -> AlgorithmInfo:
    """A row of the table below. This is the one place that says how the class of an update rule is called."""
    rule = f"rl_training.algorithms.{module}:{name}Algorithm"
    return AlgorithmInfo(algo, name, rule, tier, summary, policy or {}, family)


def _dqn(algo: str, name: str, summary: str, module: str = "dqn_variants") -> AlgorithmInfo:
    """DQN, or a variant of it: the same algorithm with other defaults."""
    return _own(algo, name, module, summary, {"hidden_sizes": (128, 128), "activation": "relu"}, family="off_policy")


def _actor_critic(
    algo: str,
    name: str,
    module: str,
    summary: str,
    tier: Literal["core", "experimental"] = "core",
    **policy: Any,
) -> AlgorithmInfo:
    """Networks of the off-policy actor-critic algorithms are as in their papers."""
    wide = {"hidden_sizes": (256, 256), "activation": "relu", "orthogonal_init": False}
    return _own(algo, name, module, summary, {**wide, **policy}, tier, family="off_policy")


_TABLE = (
    _own("a2c", "A2C", "a2c", "Advantage actor-critic: one step per short rollout."),
    _dqn("c51", "C51", "DQN over a categorical distribution of returns."),
    _actor_critic(
        "crossq",
        "CrossQ",
        "crossq",
        "SAC with batch renormalisation and without target networks.",
        critic_hidden_sizes=(1024, 1024),
    ),
    _actor_critic("ddpg", "DDPG", "td3", "Deep deterministic policy gradient: one critic, one deterministic actor."),
    _actor_critic(
        "discrete_sac", "DiscreteSAC", "discrete_sac", "SAC for a choice among n actions.", hidden_sizes=(128, 128)
    ),
    _dqn("double_dqn", "DoubleDQN", "DQN whose target is chosen by the online and valued by the target network."),
    _dqn("dqn", "DQN", "Deep Q-learning with replay; every extension is a switch.", module="dqn"),
    _actor_critic("droq", "DroQ", "sac_variants", "SAC with dropout critics, for many updates per step."),
    _dqn("dueling_dqn", "DuelingDQN", "DQN with separate value and advantage streams."),
    _dqn("iqn", "IQN", "DQN over implicit quantiles of the return."),
    _dqn("noisy_dqn", "NoisyDQN", "DQN that explores with learned parameter noise."),
    _dqn("nstep_dqn", "NStepDQN", "DQN with multi-step targets."),
    _dqn("prioritized_dqn", "PrioritizedDQN", "DQN with prioritised replay."),
    _dqn("qr_dqn", "QRDQN", "DQN over fixed quantiles of the return."),
    _dqn("rainbow", "Rainbow", "DQN with six extensions at once."),
    _own("ppo", "PPO", "ppo", "Proximal policy optimisation: the dependable default."),
    _own(
        "recurrent_ppo",
        "RecurrentPPO",
        "recurrent_ppo",
        "PPO with an LSTM or GRU, for tasks that need a memory.",
        tier="contrib",
    ),
    _actor_critic(
        "drq_v2",
        "DrQv2",
        "drq_v2",
        "Control from pixels: a deterministic actor on randomly shifted images.",
        tier="experimental",
        hidden_sizes=(1024, 1024),
        orthogonal_init=True,
    ),
    _actor_critic("redq", "REDQ", "sac_variants", "SAC with an ensemble of critics, for many updates per step."),
    _actor_critic("sac", "SAC", "sac", "Soft actor-critic: continuous control with learned entropy."),
    _actor_critic("td3", "TD3", "td3", "Twin delayed DDPG: clipped double critics, smoothed targets."),
    _actor_critic("tqc", "TQC", "tqc", "SAC with quantile critics whose largest quantiles are left out."),
    _own("trpo", "TRPO", "trpo", "Natural gradient steps inside a trust region."),
)
BUILT_IN: dict[str, AlgorithmInfo] = {info.id: info for info in sorted(_TABLE, key=lambda info: info.id)}
"""The package's own algorithms."""


def describe_algorithm(
    algo: str,
    rule: str | type[Algorithm[Any, Any]],
    *,
    name: str | None = None,
    summary: str | None = None,
    policy: Mapping[str, Any] | None = None,
) -> AlgorithmInfo:
    """The entry of an algorithm that is not ours; what is not given is read from its class."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", algo):
        raise ConfigError(f"{algo!r} cannot be the id of an algorithm: use snake case, such as td3_bc")
    build_dataclass(PolicyConfig, policy or {}, "policy")
    if isinstance(rule, str):
        class_name, about = checked_reference(rule).rpartition(":")[2], f"The algorithm {rule}."
    else:
        class_name, about = _checked_rule(rule).__name__, (inspect.getdoc(rule) or f"{rule.__name__}.").splitlines()[0]
    name = name or class_name.removesuffix("Algorithm") or class_name
    return AlgorithmInfo(algo, name, rule, "external", summary or about, dict(policy or {}))


def trainer_kind(rule: type[Algorithm[Any, Any]]) -> TrainerKind:
    """Which training loop drives an update rule: that of its base class."""
    from rl_training.algorithms.off_policy import BatchAlgorithm, OffPolicyAlgorithm
    from rl_training.algorithms.on_policy import OnPolicyAlgorithm

    if issubclass(rule, OnPolicyAlgorithm):
        return "on_policy"
    if issubclass(rule, OffPolicyAlgorithm):
        return "off_policy"
    if issubclass(rule, BatchAlgorithm):  # it learns, and does not explore
        return "offline"
    raise ConfigError(
        f"{rule.__name__} must be derived from OnPolicyAlgorithm, OffPolicyAlgorithm or BatchAlgorithm: that decides which loop "
        "trains it"
    )


def _checked_rule(rule: Any) -> type[Algorithm[Any, Any]]:
    from rl_training.algorithms.base import Algorithm

    if not (isinstance(rule, type) and issubclass(rule, Algorithm)):
        raise ConfigError(f"an algorithm is a class derived from rl_training.algorithms.base.Algorithm, not {rule!r}")
    trainer_kind(rule)
    if not is_dataclass(getattr(rule, "config_class", None)):
        raise ConfigError(f"{rule.__name__}.config_class must be a dataclass with the algorithm's hyperparameters")
    if missing := sorted(getattr(rule, "__abstractmethods__", ())):
        raise ConfigError(f"{rule.__name__} lacks {', '.join(missing)}")
    return rule


def _accept(algo: str, thing: Any) -> AlgorithmInfo:
    return thing if isinstance(thing, AlgorithmInfo) else describe_algorithm(algo, thing)


ALGORITHMS: Registry[AlgorithmInfo] = Registry("algorithm", _accept)
for _info in BUILT_IN.values():
    ALGORITHMS.register(_info.id, _info)


def algorithm_ids() -> list[str]:
    """All ids, sorted: ours, registered ones, and those of installed packages."""
    return ALGORITHMS.names()


def algorithm_info(algo: str, where: str | None = None) -> AlgorithmInfo:
    """The entry of one algorithm; `where` is the place of the name, for the error message."""
    try:
        return ALGORITHMS[algo]
    except ConfigError as error:
        raise (ConfigError(f"{where}: key 'algo': {error}") if where else error) from None


def load(algo: str) -> Any:
    """The algorithm's class; this imports torch."""
    return algorithm_info(algo).load()
