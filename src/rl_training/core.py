"""The stable algorithms. Classes are made on first use, so importing this module loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl_training.experiment.registry import BUILT_IN

__all__ = sorted(info.name for info in BUILT_IN.values() if info.tier == "core")


def public_algorithm(name: str) -> Any:
    """The public class called `name`, of any tier; KeyError if there is none."""
    algo = {info.name: info.id for info in BUILT_IN.values()}[name]
    from rl_training.api.agent import agent_class

    return agent_class(algo)


def lazily(module: str, names: list[str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that knows the public algorithms of these names."""

    def find(name: str) -> Any:
        if name in names:
            return public_algorithm(name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


__getattr__ = lazily(__name__, __all__)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
