"""The stable algorithms. Classes are made on first use, so importing this module loads nothing heavy."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.registry import ALGORITHMS

_NAMES = {info.name: info.id for info in ALGORITHMS.values() if info.tier == "core"}
__all__ = list(_NAMES)


def public_algorithm(name: str) -> Any:
    """The public class called `name`, of any tier; KeyError if there is none."""
    ids = {info.name: info.id for info in ALGORITHMS.values()}
    algo = ids[name]
    from rl_training.api.agent import agent_class

    return agent_class(algo)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return public_algorithm(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_NAMES]
