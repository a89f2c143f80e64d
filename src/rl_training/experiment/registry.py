"""The algorithms by id. A table of names, so that listing them imports neither torch nor any algorithm."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rl_training.utils.coerce import did_you_mean
from rl_training.utils.errors import ConfigError


@dataclass(frozen=True)
class AlgorithmInfo:
    """What is known of an algorithm without importing it."""

    id: str
    """Snake-case id, as in `algo: td3_bc`."""
    name: str
    """Public class name, as in `rl_training.TD3BC`."""
    module: str
    """Module under `rl_training.algorithms`."""
    trainer: Literal["on_policy", "off_policy", "offline"]
    """Which training loop drives it."""
    tier: Literal["core", "experimental", "contrib"]
    """Stability tier."""
    summary: str
    """One line for listings."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Its own defaults for the `policy` section."""


def _dqn(algo: str, name: str, summary: str) -> AlgorithmInfo:
    """A variant of DQN: the same algorithm with other defaults."""
    return AlgorithmInfo(algo, name, "dqn_variants", "off_policy", "core", summary)


_WIDE = {"hidden_sizes": (256, 256), "activation": "relu", "orthogonal_init": False}
"""Networks of the off-policy actor-critic algorithms, as in their papers."""


def _actor_critic(algo: str, name: str, module: str, summary: str) -> AlgorithmInfo:
    return AlgorithmInfo(algo, name, module, "off_policy", "core", summary, _WIDE)


_TABLE = (
    AlgorithmInfo("a2c", "A2C", "a2c", "on_policy", "core", "Advantage actor-critic: one step per short rollout."),
    _dqn("c51", "C51", "DQN over a categorical distribution of returns."),
    AlgorithmInfo(
        "crossq",
        "CrossQ",
        "crossq",
        "off_policy",
        "core",
        "SAC with batch renormalisation and without target networks.",
        {**_WIDE, "critic_hidden_sizes": (1024, 1024)},
    ),
    _actor_critic("ddpg", "DDPG", "td3", "Deep deterministic policy gradient: one critic, one deterministic actor."),
    _actor_critic("discrete_sac", "DiscreteSAC", "discrete_sac", "SAC for a choice among n actions."),
    _dqn("double_dqn", "DoubleDQN", "DQN whose target is chosen by the online and valued by the target network."),
    AlgorithmInfo(
        "dqn", "DQN", "dqn", "off_policy", "core", "Deep Q-learning with replay; every extension is a switch."
    ),
    _actor_critic("droq", "DroQ", "sac_variants", "SAC with dropout critics, for many updates per step."),
    _dqn("dueling_dqn", "DuelingDQN", "DQN with separate value and advantage streams."),
    _dqn("iqn", "IQN", "DQN over implicit quantiles of the return."),
    _dqn("noisy_dqn", "NoisyDQN", "DQN that explores with learned parameter noise."),
    _dqn("nstep_dqn", "NStepDQN", "DQN with multi-step targets."),
    _dqn("prioritized_dqn", "PrioritizedDQN", "DQN with prioritised replay."),
    _dqn("qr_dqn", "QRDQN", "DQN over fixed quantiles of the return."),
    _dqn("rainbow", "Rainbow", "DQN with six extensions at once."),
    AlgorithmInfo("ppo", "PPO", "ppo", "on_policy", "core", "Proximal policy optimisation: the dependable default."),
    _actor_critic("redq", "REDQ", "sac_variants", "SAC with an ensemble of critics, for many updates per step."),
    _actor_critic("sac", "SAC", "sac", "Soft actor-critic: continuous control with learned entropy."),
    _actor_critic("td3", "TD3", "td3", "Twin delayed DDPG: clipped double critics, smoothed targets."),
    _actor_critic("tqc", "TQC", "tqc", "SAC with quantile critics whose largest quantiles are left out."),
    AlgorithmInfo("trpo", "TRPO", "trpo", "on_policy", "core", "Natural gradient steps inside a trust region."),
)
ALGORITHMS: dict[str, AlgorithmInfo] = {info.id: info for info in _TABLE}


def algorithm_ids() -> list[str]:
    """All ids, sorted."""
    return sorted(ALGORITHMS)


def algorithm_info(algo: str, where: str | None = None) -> AlgorithmInfo:
    """The entry of one algorithm; `where` is the place of the name, for the error message."""
    try:
        return ALGORITHMS[algo]
    except KeyError:
        place = f"{where}: key 'algo': " if where else ""
        hint = did_you_mean(algo, ALGORITHMS) or f"; known: {', '.join(algorithm_ids())}"
        raise ConfigError(f"{place}unknown algorithm {algo!r}{hint}") from None


def load(algo: str) -> Any:
    """The algorithm's class; this imports torch."""
    info = algorithm_info(algo)
    return getattr(importlib.import_module(f"rl_training.algorithms.{info.module}"), info.name)
