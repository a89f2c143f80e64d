"""Fingerprints of what a score depends on, so that numbers of different origin are never mixed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training._version import __version__
from rl_training.experiment.run.metadata import versions

PACKAGE = Path(__file__).parents[1]
SOURCES = (
    *("algorithms", "api", "data", "envs", "experiment", "policies", "runtime", "utils"),
    "zoo/measure.py",
)
"""The code that a score depends on. How scores are listed and drawn does not belong to it."""


def code_fingerprint() -> str:
    """The package's version and a digest of its source files."""
    digest = hashlib.sha256()
    for path in _source_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return f"{__version__}+{digest.hexdigest()[:16]}"


def config_fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of a config as plain values; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def run_fingerprint(config: Mapping[str, Any], episodes: int, device: str) -> dict[str, Any]:
    """All parts of a measured run: two runs of equal fingerprint and seed must give equal scores."""
    return {
        "config": config_fingerprint(config),
        "code": code_fingerprint(),
        "episodes": episodes,
        "device": device,
        "versions": versions(),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two mappings, key by key, as `key: 1 then, 2 now`."""
    lines: list[str] = []
    for key in sorted({*then, *now}):
        before, after = then.get(key), now.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            lines.append(f"{prefix}{key}: {_text(before)} then, {_text(after)} now")
    return lines


def _source_files() -> Iterator[Path]:
    for name in SOURCES:
        path = PACKAGE / name
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
