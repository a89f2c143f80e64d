"""Registries that forget what a test registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.envs.wrappers import WRAPPERS
from rl_training.experiment.registry import ALGORITHMS
from rl_training.policies.encoder_registry import ENCODERS


@contextmanager
def forgetting() -> Iterator[None]:
    """What is registered inside the block is not known after it."""
    registries: tuple[Any, ...] = (ALGORITHMS, WRAPPERS, ENCODERS)
    before = [registry.things for registry in registries]
    for registry in registries:
        registry.things = dict(registry.things)
    try:
        yield
    finally:
        for registry, things in zip(registries, before, strict=True):
            registry.things = things


def install(folder: Path, entry_points: dict[str, dict[str, str]]) -> None:
    """What pip leaves of a package in `folder`, which must be on sys.path: its entry points by group."""
    info = folder / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n", encoding="utf-8")
    lines = [
        line
        for group, entries in entry_points.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
