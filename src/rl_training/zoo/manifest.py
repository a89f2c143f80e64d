"""Benchmark manifests: which presets are measured, with which seeds and how many evaluation episodes."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rl_training.experiment.config.presets import preset_names
from rl_training.experiment.config.yaml_files import Origin, parse_yaml
from rl_training.utils.coerce import FieldError, build_dataclass, check_fields, did_you_mean
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Check, Range
from rl_training.utils.printable import quoted

DEFAULT_SEEDS, DEFAULT_EPISODES = (0, 1, 2, 3, 4), 100
OWN_KEYS = ("seed", "output_dir", "logging")
"""Config keys that a benchmark sets itself."""


def _name_problem(name: str) -> str | None:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        return None
    return f"must be letters, digits, _ and -, because a folder is named after it; got {quoted(name)}"


@dataclass(frozen=True)
class Manifest:
    """Presets × seeds."""

    name: Annotated[str, Check(_name_problem)]
    """What the benchmark is called; its output folder is named after it."""
    presets: tuple[str, ...]
    """Presets to train."""
    seeds: tuple[Annotated[int, Range(ge=0, lt=2**32)], ...] = DEFAULT_SEEDS
    """Each preset is trained once per seed."""
    episodes: Annotated[int, Range(ge=1)] = DEFAULT_EPISODES
    """Fresh episodes on which the last and the best checkpoint of each run are evaluated."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Config keys changed for all presets, e.g. `total_timesteps: 2000` or `evaluation.every: 500`."""

    def __post_init__(self) -> None:
        check_fields(self)
        known = preset_names()
        for name in self.presets:
            if name not in known:
                raise FieldError("presets", f"no preset {quoted(name)}{did_you_mean(name, known)}")
        for key, values in (("presets", self.presets), ("seeds", self.seeds)):
            if not values:
                raise FieldError(key, "is empty")
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise FieldError(key, f"names {quoted(twice)} twice")
        for key in self.overrides:
            if key.partition(".")[0] in OWN_KEYS:
                raise FieldError("overrides", f"{key!r} is set by the benchmark itself")


def manifest_names() -> list[str]:
    """The manifests that come with the package."""
    return sorted(
        file.name.removesuffix(".yaml") for file in _shipped_folder().iterdir() if file.name.endswith(".yaml")
    )


def load_manifest(source: str) -> Manifest:
    """A manifest of the package by name, a YAML file, or a preset, which is a manifest of one."""
    if source.endswith((".yaml", ".yml")):
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return parse_manifest(text, source)
    if source in manifest_names():
        return parse_manifest((_shipped_folder() / f"{source}.yaml").read_text("utf-8"), f"manifest {source}")
    presets = preset_names()
    if source in presets:
        return Manifest(name=source.replace("/", "_"), presets=(source,))
    hint = did_you_mean(source, [*manifest_names(), *presets]) or (
        f"; there are {', '.join(manifest_names())}, your own YAML files, and every preset as a manifest of one"
    )
    raise ConfigError(f"no manifest {quoted(source)}{hint}")


def parse_manifest(text: str, place: str) -> Manifest:
    """The manifest in a YAML text; errors name the place and the line."""
    root = parse_yaml(text, lambda line: Origin(place, f"{place}:{line}"))
    if root is None or not isinstance(root.value, Mapping):
        raise ConfigError(f"{place}: expected the keys name, presets and seeds; see `axiomrl zoo benchmark --help`")
    lines = {key: entry.origin.where for key, entry in root.value.items()}
    return build_dataclass(Manifest, root.plain(), "", lambda key: lines.get(key) if key else place)


def _shipped_folder() -> Any:
    return importlib.resources.files("rl_training") / "zoo" / "manifests"
