"""Configs that a program wrote: in checkpoints, run folders and result files, perhaps by an earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.experiment import registry
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.coerce import without_idle


def stored_config(values: Mapping[str, Any]) -> TrainConfig:
    """A stored config in today's keys. It means what it meant: nobody asked for what is left out or filled in here.

    `compile` is gone, `critic_hidden_sizes` belongs to the policy, the temperature had the actor's learning rate, and settings
    that mean nothing beside the others were written out with the rest.
    """
    values = {key: value for key, value in values.items() if key != "compile"}
    hyperparams, algo = values.get("hyperparams"), values.get("algo")
    if not isinstance(hyperparams, Mapping) or not isinstance(algo, str) or registry.ALGORITHMS.find(algo) is None:
        return TrainConfig(**values)  # which says what is wrong
    hyperparams, policy = dict(hyperparams), values.get("policy")
    if isinstance(policy, Mapping) and "critic_hidden_sizes" in hyperparams:
        values["policy"] = {**policy, "critic_hidden_sizes": hyperparams.pop("critic_hidden_sizes")}
    config_class = registry.load(algo).config_class
    actor_rate = hyperparams.get("actor_learning_rate")
    if actor_rate is not None and "temperature_learning_rate" in config_class.__dataclass_fields__:
        hyperparams.setdefault("temperature_learning_rate", actor_rate)
    return TrainConfig(**{**values, "hyperparams": without_idle(config_class, hyperparams)})
