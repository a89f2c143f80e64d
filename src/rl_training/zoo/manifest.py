"""Benchmark manifests: which presets are measured, with which seeds and how many evaluation episodes."""

from __future__ import annotations

import importlib.resources
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from rl_training.experiment.config.loader import read_config_text
from rl_training.experiment.config.presets import preset_names
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.config.yaml_files import Entry, Origin, parse_yaml
from rl_training.utils.coerce import FieldError, build_dataclass, check_fields, did_you_mean
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Check, Range
from rl_training.utils.printable import quoted
from rl_training.zoo.result_files import FIRST_HELD_OUT_SEED
from rl_training.zoo.seed_files import file_stem, is_config_file

DEFAULT_SEEDS, DEFAULT_EPISODES = tuple(range(FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + 5)), 100
OWN_KEYS = ("seed", "output_dir", "logging", "video")
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
    """Presets to train, or config files of your own, which end in .yaml."""
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
            if not is_config_file(name) and name not in known:
                hint = did_you_mean(name, known)
                raise FieldError("presets", f"no preset {quoted(name)}{hint} (the name of a file ends in .yaml)")
        for key, values in (("presets", self.presets), ("seeds", self.seeds)):
            if not values:
                raise FieldError(key, "is empty")
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise FieldError(key, f"names {quoted(twice)} twice")
        stems = [file_stem(name) for name in self.presets]
        same = [name for name, stem in zip(self.presets, stems) if stems.count(stem) > 1]
        if same:
            raise FieldError("presets", f"{quoted(same[0])} and {quoted(same[1])} would share a folder: rename one")
        for key in self.overrides:
            if key.partition(".")[0] in OWN_KEYS:
                raise FieldError("overrides", f"{key!r} is set by the benchmark itself")


def manifest_names() -> list[str]:
    """The manifests that come with the package."""
    return sorted(
        file.name.removesuffix(".yaml") for file in _shipped_folder().iterdir() if file.name.endswith(".yaml")
    )


def load_manifest(source: str) -> Manifest:
    """A manifest of the package by name, a YAML file, or a preset or a config file, which are manifests of one."""
    if is_config_file(source):
        text = read_config_text(Path(source))
        keys = _document(text, source)
        if "presets" not in keys and set(keys) & {field.name for field in fields(TrainConfig)} | set(keys) & {"base"}:
            return Manifest(
                name=re.sub(r"[^A-Za-z0-9_-]+", "_", Path(source).stem).lstrip("_-") or "config", presets=(source,)
            )
        manifest = parse_manifest(text, source)
        folder = Path(source).parent
        entries = [str(folder / name) if is_config_file(name) else name for name in manifest.presets]
        return replace(manifest, presets=tuple(entries))
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
    document = _document(text, place)
    lines = {key: entry.origin.where for key, entry in document.items()}
    values = {key: entry.plain() for key, entry in document.items()}
    return build_dataclass(Manifest, values, "", lambda key: lines.get(key) if key else place)


def _document(text: str, place: str) -> dict[str, Entry]:
    root = parse_yaml(text, lambda line: Origin(place, f"{place}:{line}"))
    if root is None or not isinstance(root.value, dict):
        raise ConfigError(f"{place}: expected the keys name, presets and seeds; see `axiomrl zoo benchmark --help`")
    return root.value


def _shipped_folder() -> Any:
    return importlib.resources.files("rl_training") / "zoo" / "manifests"
