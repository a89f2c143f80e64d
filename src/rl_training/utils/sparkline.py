"""Curves in a line of text."""

from __future__ import annotations

from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], low: float, high: float, levels: str = LEVELS) -> str:
    """One character per value, by its height between `low` and `high`; None is a blank."""
    top = len(levels) - 1
    scale = top / (high - low) if high > low else 0.0
    return "".join(" " if value is None else levels[min(round((value - low) * scale), top)] for value in values)
