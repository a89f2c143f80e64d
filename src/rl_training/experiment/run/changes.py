"""What a resume may change in the config of a run, and the record of what it changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from rl_training.experiment.config.loader import resolve
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.errors import UserError
from rl_training.utils.printable import quoted

FREE_TO_CHANGE = {"total_timesteps", "device", "output_dir", "evaluation", "checkpoint", "logging", "stopping", "video"}
"""Config keys that alter nothing of what a step of training computes, but for schedules, which follow the new total."""
HYPERPARAMS, ENV_ID = "hyperparams", "env_id"

_NETWORK, _REPLAY, _BEGINNING = (
    "the saved networks are built with it",
    "the saved replay was filled with it",
    "it has done its work",
)
FIXED_HYPERPARAMS = {
    "optimizer": "the saved moments are those of the other one",
    **dict.fromkeys(("dueling", "noisy", "distribution", "num_atoms", "v_min", "v_max", "num_quantiles"), _NETWORK),
    **dict.fromkeys(("num_critics", "layer_norm", "dropout"), _NETWORK),
    **dict.fromkeys(("buffer_size", "replay_storage", "n_step", "prioritized", "per_alpha", "per_epsilon"), _REPLAY),
    **dict.fromkeys(("hindsight", "reward_scale"), _REPLAY),
    **dict.fromkeys(("learning_starts", "initial_ent_coef", "noisy_sigma"), _BEGINNING),
}
"""Hyperparameters that are part of the saved state, or mattered only before it, and why a resume cannot change them."""


class Change(TypedDict):
    """One entry of the record."""

    key: str
    old: Any
    new: Any


def changed_config(config: TrainConfig, changes: Mapping[str, Any]) -> tuple[TrainConfig, list[Change]]:
    """The config with these values by dotted key, and what that changes; UserError for what a resume cannot change."""
    for key in changes:
        section, _, name = key.partition(".")
        if section == HYPERPARAMS and name:
            if (reason := FIXED_HYPERPARAMS.get(name.partition(".")[0])) is not None:
                raise UserError(f"{key} cannot change on resume: {reason}. Start a new run with it: axiomrl train")
        elif section not in FREE_TO_CHANGE:
            raise UserError(
                f"{key} cannot change on resume, because the saved state belongs to {key}={quoted(_at(config.to_dict(), key))}.\n"
                f"These can: hyperparams.NAME, {', '.join(sorted(FREE_TO_CHANGE))}. Start a new run with it: axiomrl train"
            )
    new = resolve(config, changes).config
    before, after = _leaves(config.to_dict()), _leaves(new.to_dict())
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return new, [Change(key=key, old=before.get(key), new=after.get(key)) for key in keys]


def recorded_changes(resumes: object) -> dict[str, Any]:
    """What earlier resumes have changed of the training, with its newest values, from the lineage in metadata.json.

    That is hyperparameters, and the name of an environment that was handed over in Python.
    """
    found: dict[str, Any] = {}
    for entry in resumes if isinstance(resumes, list) else []:
        changes = entry.get("changes") if isinstance(entry, dict) else None
        for change in changes if isinstance(changes, list) else []:
            if isinstance(change, dict) and (_is_hyperparam(change.get("key")) or change.get("key") == ENV_ID):
                found[str(change["key"])] = change.get("new")
    return found


def changes_learning(changes: Iterable[Change]) -> bool:
    """Whether the run is another one from here on."""
    return any(_is_hyperparam(change["key"]) for change in changes)


def _is_hyperparam(key: object) -> bool:
    return str(key).startswith(f"{HYPERPARAMS}.")


def describe(changes: Sequence[Change]) -> str:
    """`hyperparams.gamma 0.99 -> 0.9, …`."""
    return ", ".join(f"{change['key']} {quoted(change['old'])} -> {quoted(change['new'])}" for change in changes)


def _at(values: Mapping[str, Any], key: str) -> Any:
    for name in key.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return None
        values = values[name]
    return values


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, Mapping) and value
        leaves |= _leaves(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return leaves
