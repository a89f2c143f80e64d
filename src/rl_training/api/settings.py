"""The keywords of an agent: keys of TrainConfig and the algorithm's own hyperparameters, side by side."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.api.mistakes import unknown_setting
from rl_training.envs.factory import EnvLike
from rl_training.experiment import registry
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.env_source import EnvSource
from rl_training.utils.errors import ConfigError

CONFIG_KEYS = tuple(
    field.name for field in dataclasses.fields(TrainConfig) if field.name not in ("algo", "env_id", "hyperparams")
)
"""The keys of TrainConfig that are keywords of every agent, next to `hyperparams`."""


def config_for(algo: str, source: EnvSource, settings: Mapping[str, Any]) -> TrainConfig:
    """A config from keywords: quiet and in memory unless the keywords say otherwise."""
    defaults: dict[str, Any] = {}
    if settings.get("output_dir") is None:
        defaults = {"evaluation": {"every": 0}, "logging": {"console": "off", "tensorboard": False}}
    base = TrainConfig(algo=algo, env_id=source.name or "custom", **{**defaults, **source.defaults()})
    return with_settings(base, algo, settings)


def with_settings(config: TrainConfig, algo: str, settings: Mapping[str, Any]) -> TrainConfig:
    """Keywords sorted into TrainConfig's keys and the algorithm's hyperparameters; anything else is named."""
    changes = {key: value for key, value in settings.items() if key in CONFIG_KEYS}
    if changes.get("output_dir", "") is None:  # nothing is written, and the folder's name does not matter
        del changes["output_dir"]
    rest = {key: value for key, value in settings.items() if key not in CONFIG_KEYS and key != "hyperparams"}
    known = {field.name for field in dataclasses.fields(registry.load(algo).config_class)}
    for key in rest:
        if key not in known:
            family = registry.algorithm_info(algo).trainer
            raise ConfigError(unknown_setting(key, family, [*known, *CONFIG_KEYS]))
        if key in settings.get("hyperparams", {}):
            raise ConfigError(f"{key!r} is given twice: as a keyword and in hyperparams")
    hyperparams = {**config.hyperparams, **settings.get("hyperparams", {}), **rest}
    for key, value in changes.items():
        if isinstance(value, Mapping):  # a partial section keeps the other values of the section
            changes[key] = {**config.to_dict()[key], **value}
    return dataclasses.replace(config, hyperparams=hyperparams, **changes)


@dataclasses.dataclass(frozen=True)
class Setting:
    """One keyword of an agent."""

    name: str
    type: Any
    default: Any
    """`inspect.Parameter.empty` if it has none."""


def agent_settings(algo: str) -> list[Setting]:
    """Every keyword of an algorithm's agent: its hyperparameters first, then the keys of TrainConfig."""
    return [*hyperparameters(algo), *config_settings(algo)]


def hyperparameters(algo: str) -> list[Setting]:
    """The algorithm's own keywords."""
    config_class = registry.load(algo).config_class
    hints = typing.get_type_hints(config_class)
    return [Setting(field.name, hints[field.name], _default(field)) for field in dataclasses.fields(config_class)]


def config_settings(algo: str = "ppo") -> list[Setting]:
    """The keywords of every agent. A section is a mapping with what is to change in it; no `output_dir`: nothing is written."""
    hints, defaults = typing.get_type_hints(TrainConfig), TrainConfig(algo=algo)
    settings = []
    for key in (*CONFIG_KEYS, "hyperparams"):
        kind, default = hints[key], getattr(defaults, key)
        if dataclasses.is_dataclass(kind) or key == "hyperparams":
            kind, default = kind | Mapping[str, Any], {}
        elif key == "output_dir":
            kind, default = str | Path | None, None
        settings.append(Setting(key, kind, default))
    return settings


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default


class SettingsSignature:
    """`inspect.signature(PPO)`: computed when it is asked for, because it needs the algorithm's module."""

    def __get__(self, agent: object, owner: type) -> inspect.Signature:
        if not hasattr(owner, "algo"):
            raise AttributeError("__signature__")  # the base class has the one that its code says
        # Not `env`, which is the section of that name.
        env = inspect.Parameter("environment", inspect.Parameter.POSITIONAL_ONLY, annotation=EnvLike | TrainConfig)
        keywords = [
            inspect.Parameter(
                setting.name, inspect.Parameter.KEYWORD_ONLY, default=setting.default, annotation=setting.type
            )
            for setting in agent_settings(owner.algo)
        ]
        return inspect.Signature([env, *keywords])
