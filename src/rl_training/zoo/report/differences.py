"""What differs between runs: settings, versions, hardware."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.zoo.run_records import RunRecord
from rl_training.zoo.score_groups import method_of
from rl_training.zoo.values import leaves, mapping, show_setting

NOT_A_SETTING = ("seed", "output_dir")
"""Keys that differ between any two runs."""


@dataclass(frozen=True)
class Settings:
    """Runs with one and the same config, apart from `NOT_A_SETTING`."""

    label: str
    runs: list[RunRecord]
    values: dict[str, Any]
    """Dotted keys."""


@dataclass(frozen=True)
class Fact:
    """One thing about where runs were made, with the runs that have each value."""

    name: str
    values: dict[str, list[RunRecord]]

    @property
    def differs(self) -> bool:
        return len(self.values) > 1


def experiment_settings(run: RunRecord) -> dict[str, Any]:
    """The settings that runs must share for their seeds to be averaged, with dotted keys."""
    return leaves(method_of(run.config))


def same_settings(runs: Sequence[RunRecord], label: Mapping[str, str]) -> list[Settings]:
    """The runs by config; `label` names each run's group by its folder."""
    found: dict[str, Settings] = {}
    for run in runs:
        values = {key: value for key, value in leaves(run.config).items() if key not in NOT_A_SETTING}
        key = json.dumps(values, sort_keys=True, default=str)
        found.setdefault(key, Settings(label[str(run.path)], [], values)).runs.append(run)
    return list(found.values())


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys of at least two of the configs (an algorithm's own keys are no difference) with more than one value."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if len(values := [show_setting(config[key]) for config in configs if key in config]) > 1
        and len(set(values)) > 1
    ]


def facts(runs: Sequence[RunRecord]) -> list[Fact]:
    """Versions, hardware and code of the runs, in the order of the first run that has each."""
    found: dict[str, dict[str, list[RunRecord]]] = {}
    for run in runs:
        for name, value in _facts_of(run):
            found.setdefault(name, {}).setdefault(value, []).append(run)
    return [Fact(name, values) for name, values in found.items()]


def _facts_of(run: RunRecord) -> list[tuple[str, str]]:
    versions, system = mapping(run.metadata.get("versions")), mapping(run.metadata.get("system"))
    git = mapping(run.metadata.get("git"))
    commit = str(git.get("commit") or "unknown")[:12] + (" with changes" if git.get("dirty") else "")
    return [
        *((name, show_setting(value)) for name, value in versions.items()),
        *((_SYSTEM_NAMES.get(name, name), show_setting(value)) for name, value in system.items()),
        ("git commit", commit),
    ]


_SYSTEM_NAMES = {"os": "operating system", "cpu": "CPU", "cpu_count": "CPU count", "gpu": "GPU"}
