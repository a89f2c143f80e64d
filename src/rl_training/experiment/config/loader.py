"""From presets, files and overrides to a checked `TrainConfig`, with the origin of every value.

Later sources win: defaults < the chain of `base:` < the file itself < overrides. Mappings merge, everything
else replaces.
"""

from __future__ import annotations

import dataclasses
import re
import stat
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.config.presets import preset_names as preset_names
from rl_training.experiment.config.presets import preset_text
from rl_training.experiment.config.train_config import TrainConfig, with_policy_defaults
from rl_training.experiment.config.yaml_files import Entry, Origin, parse_yaml
from rl_training.utils.coerce import build_dataclass as build_dataclass
from rl_training.utils.coerce import did_you_mean, join, plain_value
from rl_training.utils.errors import ConfigError
from rl_training.utils.printable import quoted

DEFAULT, ALGORITHM_DEFAULT = "default", "algorithm default"
"""Origins of values that no source gives; the second is of those that another algorithm has otherwise, or does not have."""
MAX_FILE_BYTES = 1 << 20
_PRESET_NAME = re.compile(r"[a-z0-9_-]+(/[a-z0-9_-]+)+")
_OVERRIDE_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class ResolvedConfig:
    """A checked config and where its values come from."""

    config: TrainConfig
    origins: dict[str, str]
    """For each dotted key: `default`, `algorithm default`, `preset ppo/cartpole`, `configs/x.yaml:7` or `command line`."""
    locations: dict[str, str]
    """For each dotted key that some source gives: its place, always with the line where there is one."""

    def locate(self, key: str) -> str | None:
        """The place of a dotted key, for `build_dataclass(..., locate=resolved.locate)`."""
        return self.locations.get(key)


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """The config in a YAML file, with `key.sub=value` overrides on top."""
    return resolve(Path(path), overrides).config


def resolve(
    source: str | Path | TrainConfig | None = None,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    overrides_origin: str = "command line",
) -> ResolvedConfig:
    """The config of `source`: a file (a Path, or text ending in .yaml), a preset, a config, or None for the defaults.

    Overrides are texts `key.sub=value`, or a mapping from dotted keys to values; `overrides_origin` is what
    the origins and the errors call them.
    """
    if isinstance(source, Path):
        tree = _load_chain(_FileSource(source))
    elif isinstance(source, TrainConfig):
        whole = Origin("config", "config")
        tree = {key: _entry(value, whole) for key, value in source.to_dict().items()}
    elif source is not None:
        tree = _load_chain(_named_source(source, Path(), ""))
    else:
        tree = {}
    origin = Origin(overrides_origin, overrides_origin)
    if isinstance(overrides, str):
        raise TypeError("overrides must be a list of texts such as ['seed=3'], not one text")
    pairs = overrides.items() if isinstance(overrides, Mapping) else map(parse_override, overrides)
    for key, value in pairs:
        branch = _branch(key, value, origin)
        _drop_empty_sections(branch, TrainConfig)
        _merge(tree, branch)
    places = {key + below: place for key, entry in tree.items() for below, place in entry.places()}
    locations = {key: place.where for key, place in places.items()}
    values = {key: entry.plain() for key, entry in tree.items()}
    of_algorithm = {"num_envs"}
    if isinstance(values.get("policy", {}), Mapping):
        algo = values.get("algo", TrainConfig.algo)
        of_algorithm |= {f"policy.{key}" for key in with_policy_defaults(algo, None)}
        values["policy"] = with_policy_defaults(algo, values.get("policy"))
    config = build_dataclass(TrainConfig, values, "", locations.get)
    origins = {
        key: places[key].label if key in places else ALGORITHM_DEFAULT if key in of_algorithm else DEFAULT
        for key in _leaf_keys(config.to_dict())
    }
    return ResolvedConfig(config, origins, locations)


def read_config_text(path: Path) -> str:
    """The text of a YAML file that the user named; ConfigError says what is wrong with the file."""
    return _FileSource(path).read()


def parse_override(text: str) -> tuple[str, Any]:
    """The dotted key and the value of `key.sub=value`; the value is read as YAML."""
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not _OVERRIDE_KEY.fullmatch(key):
        raise ConfigError(
            f"cannot read the override {quoted(text)}; write key=value, such as hyperparams.learning_rate=1e-3"
        )
    origin = Origin("command line", "command line")
    entry = parse_yaml(value_text, lambda line: origin, key)
    return key, None if entry is None else entry.plain()


@dataclass(frozen=True)
class _FileSource:
    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def identity(self) -> str:
        return str(self.path.resolve())

    def origin_at(self, line: int) -> Origin:
        return Origin(f"{self.path}:{line}", f"{self.path}:{line}")

    def read(self) -> str:
        try:
            status = self.path.stat()
            if stat.S_ISDIR(status.st_mode):
                raise ConfigError(f"{self.path}: is a folder; give the YAML file in it")
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{self.path}: is not a regular file")
            with self.path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            name = self.path.as_posix()
            hint = f"; the preset of that name: `axiomrl train {name}`" if name in preset_names() else ""
            raise ConfigError(f"{self.path}: no such file{hint}") from None
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{quoted(str(self.path))}: cannot be read: {reason}") from None
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{self.path}: is larger than 1 MiB, so it is hardly a config")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.path}: is not UTF-8 text (byte {error.start}); a config is a YAML file") from None

    def base(self, name: str, where: str) -> _Source:
        return _named_source(name, self.path.parent, where)


@dataclass(frozen=True)
class _PresetSource:
    name: str

    def __str__(self) -> str:
        return f"preset {self.name}"

    @property
    def identity(self) -> str:
        return str(self)

    def origin_at(self, line: int) -> Origin:
        return Origin(f"preset {self.name}", f"preset {self.name}:{line}")

    def read(self) -> str:
        return preset_text(self.name)

    def base(self, name: str, where: str) -> _Source:
        return _preset_source(name, where)


_Source = _FileSource | _PresetSource


def _named_source(name: str, folder: Path, where: str) -> _Source:
    """The file (names that end in .yaml or .yml; relative to `folder`) or else the preset called `name`."""
    if name.endswith((".yaml", ".yml")):
        return _FileSource(folder / name)
    return _preset_source(name, where)


def _preset_source(name: str, where: str) -> _PresetSource:
    # Looked up in the list, never joined to a path unchecked: a name cannot reach outside the presets.
    known = preset_names()
    if _PRESET_NAME.fullmatch(name) and name in known:
        return _PresetSource(name)
    help_text = did_you_mean(name, known) or "; `axiomrl zoo list` shows them all"
    raise ConfigError(f"{where}no preset {quoted(name)}{help_text} (the name of a file ends in .yaml)")


def _load_chain(source: _Source) -> dict[str, Entry]:
    """The document of `source` merged onto that of its `base:`, its base's base, and so on."""
    documents: list[dict[str, Entry]] = []
    chain: dict[str, str] = {}
    named_at = ""  # where the source is named, if a `base:` names it
    while True:
        try:
            text = source.read()
        except ConfigError as error:
            raise ConfigError(f"{named_at}{error}") from None
        if source.identity in chain:
            path = " -> ".join([*chain.values(), str(source)])
            raise ConfigError(f"{named_at}a config cannot build on itself: {path}")
        chain[source.identity] = str(source)
        document = _parse_document(text, source)
        base = document.pop("base", None)
        documents.append(document)
        if base is None:
            break
        named_at = f"{base.origin.where}: key 'base': "
        if not isinstance(base.value, str):
            raise ConfigError(f"{named_at}expected a preset name or a .yaml file, got {quoted(base.plain())}")
        source = source.base(base.value, named_at)
    tree: dict[str, Entry] = {}
    for document in reversed(documents):
        _merge(tree, document)
    return tree


def _parse_document(text: str, source: _Source) -> dict[str, Entry]:
    root = parse_yaml(text, source.origin_at)
    if root is None or root.value is None:
        raise ConfigError(f"{source}: is empty; a config needs at least one key, such as `base: ppo/cartpole`")
    if not isinstance(root.value, dict):
        raise ConfigError(f"{root.origin.where}: expected lines of `key: value`, got {quoted(root.value)}")
    _drop_empty_sections(root.value, TrainConfig)
    return root.value


def _drop_empty_sections(tree: dict[str, Entry], cls: type) -> None:
    """Takes out sections that hold nothing: `policy:` with only comments under it changes nothing."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        entry, section = tree.get(field.name), hints[field.name]
        is_section = dataclasses.is_dataclass(section)
        if entry is None or not (is_section or typing.get_origin(section) is dict):
            continue
        if entry.value is None:
            del tree[field.name]
        elif is_section and isinstance(entry.value, dict):
            _drop_empty_sections(entry.value, section)


def _merge(onto: dict[str, Entry], top: dict[str, Entry]) -> None:
    for key, entry in top.items():
        below = onto.get(key)
        if below is not None and isinstance(below.value, dict) and isinstance(entry.value, dict):
            below.origin = entry.origin
            _merge(below.value, entry.value)
        else:
            onto[key] = entry


def _branch(key: str, value: Any, origin: Origin) -> dict[str, Entry]:
    """The tree that holds one override."""
    *sections, last = key.split(".")
    tree = {last: _entry(plain_value(value, key), origin)}
    for section in reversed(sections):
        tree = {section: Entry(tree, origin)}
    return tree


def _entry(value: Any, origin: Origin) -> Entry:
    """A plain value as if it were read from a file."""
    if isinstance(value, dict):
        return Entry({name: _entry(below, origin) for name, below in value.items()}, origin)
    return Entry(value, origin)


def _leaf_keys(values: dict[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in values.items():
        key = join(prefix, name)
        keys += _leaf_keys(value, key) if isinstance(value, dict) and value else [key]
    return keys
