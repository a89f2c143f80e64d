"""Every preset with what is known of it, from the presets and the shipped result files alone. Starts without torch and Gymnasium.

The tier says how well the expected score is backed, and follows from the result file:

- `core`: a result of at least 5 seeds, or of 3 where a run takes over ten minutes;
- `measured`: a result of fewer seeds;
- `unmeasured`: no result, so nothing is claimed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rl_training.experiment.config.presets import preset_names, preset_text
from rl_training.experiment.config.yaml_files import Origin, parse_yaml
from rl_training.utils.coerce import did_you_mean
from rl_training.utils.errors import UserError
from rl_training.zoo.result_files import ResultFile, shipped_results

Tier = Literal["core", "measured", "unmeasured"]

CORE_SEEDS, CORE_SEEDS_OF_LONG_RUNS, LONG_RUN_SECONDS = 5, 3, 600

FAMILIES: dict[str, tuple[str, ...]] = {
    "classic_control": ("CartPole", "Acrobot", "MountainCar", "MountainCarContinuous", "Pendulum"),
    "box2d": ("LunarLander", "LunarLanderContinuous", "BipedalWalker", "BipedalWalkerHardcore", "CarRacing"),
    "mujoco": (
        *("Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum"),
        *("Pusher", "Reacher", "Swimmer", "Walker2d"),
    ),
    "goals": ("BitFlip", "PointReach"),
    "masks": ("KeyRing",),
}
"""Environment names without their versions, by family."""


@dataclass(frozen=True)
class CatalogEntry:
    """One preset."""

    preset: str
    algo: str
    env_id: str
    total_timesteps: int
    result: ResultFile | None
    """What was measured for it."""

    @property
    def family(self) -> str:
        if self.preset.endswith("_pixels"):
            return "pixels"
        if self.env_id.startswith("ALE/"):
            return "atari"
        name = env_name(self.env_id)
        return next((family for family, names in FAMILIES.items() if name in names), "other")

    @property
    def tier(self) -> Tier:
        """See the top of this module."""
        if self.result is None:
            return "unmeasured"
        long_run = (self.result.mean_seconds or 0) > LONG_RUN_SECONDS  # a time that is not known proves nothing
        return "core" if len(self.result.seeds) >= (CORE_SEEDS_OF_LONG_RUNS if long_run else CORE_SEEDS) else "measured"

    @property
    def command(self) -> str:
        """What repeats the measurement, or makes it where there is none."""
        if self.result is None:
            return f"axiomrl zoo benchmark {self.preset}"
        # The script of a checkout takes the same options and does the same; this is what an installed package has.
        # Some were measured when updates could be compiled, which gave the same within rounding.
        command = self.result.command.replace(" --set compile=true", "")
        return command.replace("python scripts/measure.py", "axiomrl zoo benchmark", 1)

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON values; what is not measured is null."""
        result = self.result
        return {
            **{key: getattr(self, key) for key in ("preset", "algo", "env_id", "family", "tier", "total_timesteps")},
            "score": result.last_mean if result else None,
            "interval_95": list(result.last_interval) if result else None,
            "best_score": result.best_mean if result else None,
            "seeds": len(result.seeds) if result else 0,
            "held_out": result.held_out if result else None,
            "episodes_per_seed": result.episodes_per_seed if result else None,
            "seconds": round(result.mean_seconds, 1) if result and result.mean_seconds is not None else None,
            "hardware": result.hardware if result else None,
            "command": self.command,
        }


def catalog() -> list[CatalogEntry]:
    """All presets, by name."""
    results = {result.preset: result for result in shipped_results()}
    return [_entry(name, results.get(name)) for name in preset_names()]


def find_entry(preset: str) -> CatalogEntry:
    """The entry of one preset."""
    names = preset_names()
    if preset not in names:
        hint = did_you_mean(preset, names) or "; `axiomrl zoo list` shows them all"
        raise UserError(f"no preset {preset!r}{hint}")
    result = next((result for result in shipped_results() if result.preset == preset), None)
    return _entry(preset, result)


def select(
    entries: list[CatalogEntry],
    algo: str | None = None,
    env: str | None = None,
    family: str | None = None,
    tier: str | None = None,
) -> list[CatalogEntry]:
    """The entries that fit every filter given.

    An environment is named by its id, by its id without the version, or as the preset names it; case does not matter.
    """
    filters: list[tuple[str, str | None, Callable[[CatalogEntry], set[str]]]] = [
        ("algorithm", algo, lambda entry: {entry.algo}),
        ("environment", env and env.lower(), _env_names),
        ("family", family, lambda entry: {entry.family}),
        ("tier", tier, lambda entry: {entry.tier}),
    ]
    chosen = entries
    for what, value, names in filters:
        if value is None:
            continue
        known = set(get_args(Tier)) if what == "tier" else {name for entry in entries for name in names(entry)}
        if value not in known:
            listed = {entry.env_id for entry in entries} if what == "environment" else known
            hint = did_you_mean(value, sorted(known)) or f"; known: {', '.join(sorted(listed))}"
            raise UserError(f"no preset for {what} {value!r}{hint}")
        chosen = [entry for entry in chosen if value in names(entry)]
    return chosen


def preset_values(name: str) -> dict[str, Any]:
    """What a preset says, with its `base:` under it: plain values, unchecked, without the defaults."""
    values = _document(name)
    base = values.get("base")
    own = {key: value for key, value in values.items() if key != "base"}
    return _merged(preset_values(base), own) if base is not None else own


def env_name(env_id: str) -> str:
    """An environment's id without its version: `CartPole` of `CartPole-v1`."""
    return env_id.rpartition("-v")[0] or env_id


def _entry(name: str, result: ResultFile | None) -> CatalogEntry:
    values = preset_values(name)
    return CatalogEntry(name, values["algo"], values["env_id"], values["total_timesteps"], result)


def _env_names(entry: CatalogEntry) -> set[str]:
    return {entry.env_id.lower(), env_name(entry.env_id).lower(), entry.preset.partition("/")[2]}


@functools.cache
def _document(name: str) -> dict[str, Any]:
    root = parse_yaml(preset_text(name), lambda line: Origin(f"preset {name}", f"preset {name}:{line}"))
    assert root is not None, "a test resolves every preset"
    return dict(root.plain())


def _merged(below: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in top.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value) if both else value
    return merged
