"""YAML as configs use it: plain data only, every key with its line, and numbers as people write them.

Differences from YAML 1.1 as PyYAML reads it: `1e-3` and `1_000_000` are numbers; only true and false are
booleans (`on`, `yes` and `no` are text); there are no dates, octal or base-60 numbers. Tags other than those
of plain data are refused; nothing is ever constructed from one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from rl_training.utils.errors import ConfigError
from rl_training.utils.printable import quoted
from rl_training.utils.safe_files import check_values

MAX_NODES = 10_000
"""Most values in one document, with aliases written out: a small file can otherwise expand to billions."""
MAX_DEPTH = 50
"""Deepest nesting of a document; far below Python's recursion limit."""

_TAG = "tag:yaml.org,2002:"
_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_EXPONENT = r"[eE][-+]?[0-9]+"
_RESOLVERS: list[tuple[str, str, str]] = [  # tag, regular expression, first characters ("" for the empty text)
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*(?:_[0-9]+)*|0x[0-9a-fA-F]+)", "-+0123456789"),
    ("float", rf"[-+]?(?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:{_EXPONENT})?", "-+.0123456789"),
    ("float", rf"[-+]?{_DIGITS}{_EXPONENT}", "-+0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
]


@dataclass(frozen=True)
class Origin:
    """Where a value comes from: `label` for `--dry-run`, `where` (with the line) for error messages."""

    label: str
    where: str


@dataclass
class Entry:
    """A value with its origin; the value of a mapping is a dict of entries, any other is plain."""

    value: Any
    origin: Origin
    inside: dict[str, Origin] = field(default_factory=dict)
    """Where the parts of a list stand, by what follows the list's key: `[1]`, `[1].name`."""

    def plain(self) -> Any:
        """The value without its origins."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        return self.value

    def places(self) -> list[tuple[str, Origin]]:
        """The place of this and of everything in it, by what follows its key (nothing for itself)."""
        found = [("", self.origin), *self.inside.items()]
        if isinstance(self.value, dict):
            found += [
                (f".{name}{below}", place) for name, entry in self.value.items() for below, place in entry.places()
            ]
        return found


OriginAt = Callable[[int], Origin]
"""The origin of what stands on a line, counted from 1."""


class _Loader(yaml.SafeLoader):
    """Composes nodes only, and stops at the limits before a hostile file costs time or memory."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def __init__(self, text: str, origin_at: OriginAt) -> None:
        super().__init__(text)
        self._origin_at = origin_at
        self._nodes = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._nodes += 1
        self._depth += 1
        _check_limits(self._nodes, self._depth, self._origin_at(self.line + 1))
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Knows YAML 1.1's implicit types and ours, so that text any reader could take for a number is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _starts = [*_first, ""] if _tag == "null" else list(_first)
        _class.add_implicit_resolver(_TAG + _tag, re.compile(rf"(?:{_pattern})\Z"), _starts)
_Dumper.add_representer(list, lambda dumper, data: dumper.represent_sequence(_TAG + "seq", data, flow_style=True))


def dump_yaml(values: Any) -> str:
    """Plain values as YAML: keys in their order, lists on one line."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def parse_yaml(text: str, origin_at: OriginAt, prefix: str = "") -> Entry | None:
    """The one document in `text` as entries; None if there is nothing in it but comments.

    `prefix` is the dotted key under which the document belongs, for error messages.
    """
    try:
        node = _Loader(text, origin_at).get_single_node()
    except yaml.reader.ReaderError as error:
        origin = origin_at(text.count("\n", 0, error.position) + 1)
        raise _error(origin, prefix, f"the character {chr(error.character)!r} is not allowed in YAML") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        origin = origin_at(mark.line + 1 if mark else 1)
        raise _error(origin, prefix, f"not valid YAML: {error.problem or error.context}") from None
    return None if node is None else _Converter(origin_at).convert(node, prefix)


class _Converter:
    """Turns composed nodes into entries."""

    def __init__(self, origin_at: OriginAt) -> None:
        self._origin_at = origin_at
        self._nodes = 0
        self._depth = 0

    def convert(self, node: yaml.Node, key: str) -> Entry:
        origin = self._origin_at(node.start_mark.line + 1)
        self._nodes += 1
        self._depth += 1  # an alias inside its own anchor has no bottom; the depth limit ends it
        _check_limits(self._nodes, self._depth, origin)
        value: Any
        inside: dict[str, Origin] = {}
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            value = self._mapping(node, key)
        elif isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            items = [self.convert(item, f"{key}[{index}]") for index, item in enumerate(node.value)]
            value = [item.plain() for item in items]
            inside = {f"[{index}]{below}": place for index, item in enumerate(items) for below, place in item.places()}
        elif isinstance(node, yaml.ScalarNode):
            value = _scalar(node, origin, key)
        else:
            raise _tag_error(node, origin, key)
        self._depth -= 1
        return Entry(value, origin, inside)

    def _mapping(self, node: yaml.MappingNode, prefix: str) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            origin = self._origin_at(key_node.start_mark.line + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error(origin, prefix, "a key must be text, not a list or a mapping")
            name = _scalar(key_node, origin, prefix)
            if not isinstance(name, str):
                raise _error(origin, prefix, f"a key must be text, got {key_node.value}; put it in quotes")
            key = f"{prefix}.{name}" if prefix else name
            if name == "<<":
                raise _error(origin, key, "merge keys are not supported; use `base:` to build on another config")
            if name in entries:
                first = entries[name].origin.where
                raise _error(origin, key, f"given twice, first at {first}; keep one of them")
            # The key's line, not the value's: a block list starts a line later.
            below = self.convert(value_node, key)
            entries[name] = Entry(below.value, origin, below.inside)
        return entries


def _scalar(node: yaml.ScalarNode, origin: Origin, key: str) -> Any:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG) if node.tag.startswith(_TAG) else ""
    lowered = text.lower()
    try:
        if kind == "str":
            return text
        if kind == "null":
            return None
        if kind == "bool" and lowered in ("true", "false"):
            return lowered == "true"
        if kind == "int":
            number = int(text, 0)
            check_values(number)
            return number
        if kind == "float":
            return float(re.sub(r"\.(inf|nan)", r"\1", lowered))
    except ValueError:
        raise _error(origin, key, f"cannot read {quoted(text)} as a number") from None
    raise _tag_error(node, origin, key)


def _tag_error(node: yaml.Node, origin: Origin, key: str) -> ConfigError:
    return _error(origin, key, f"the YAML tag {quoted(node.tag)} is refused; a config holds plain values only")


def _error(origin: Origin, key: str, problem: str) -> ConfigError:
    return ConfigError(f"{origin.where}: key '{key}': {problem}" if key else f"{origin.where}: {problem}")


def _check_limits(nodes: int, depth: int, origin: Origin) -> None:
    if nodes > MAX_NODES:
        raise ConfigError(
            f"{origin.where}: more than {MAX_NODES} values (aliases written out); a config needs far fewer"
        )
    if depth > MAX_DEPTH:
        raise ConfigError(f"{origin.where}: nested deeper than {MAX_DEPTH} levels; a config needs far fewer")
