"""The stable algorithms. Classes are made on first use, so importing this module loads nothing heavy."""

from __future__ import annotations

from typing import Any

from rl_training.experiment.registry import BUILT_IN

__all__ = sorted(info.name for info in BUILT_IN.values() if info.tier == "core")


def public_algorithm(name: str) -> Any:
    """The public class called `name`, of any tier; KeyError if there is none."""
    algo = {info.name: info.id for info in BUILT_IN.values()}[name]
    from rl_training.api.agent import agent_class

    return agent_class(algo)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return public_algorithm(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
