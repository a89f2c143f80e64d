"""Algorithms that have not yet earned their results; their interfaces may change."""

from __future__ import annotations

from typing import Any

from rl_training.core import public_algorithm
from rl_training.experiment.registry import BUILT_IN

__all__ = sorted(info.name for info in BUILT_IN.values() if info.tier == "experimental")


def __getattr__(name: str) -> Any:
    if name in __all__:
        return public_algorithm(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
