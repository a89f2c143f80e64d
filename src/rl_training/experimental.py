"""Algorithms that have not yet earned their results; their interfaces may change."""

from __future__ import annotations

from typing import Any

from rl_training.core import public_algorithm
from rl_training.experiment.registry import ALGORITHMS

_NAMES = {info.name for info in ALGORITHMS.values() if info.tier == "experimental"}
__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return public_algorithm(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
