"""Contributed algorithms: useful, and maintained as far as their authors can."""

from __future__ import annotations

from rl_training.core import lazily
from rl_training.experiment.registry import BUILT_IN

__all__ = sorted(info.name for info in BUILT_IN.values() if info.tier == "contrib")


__getattr__ = lazily(__name__, __all__)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
