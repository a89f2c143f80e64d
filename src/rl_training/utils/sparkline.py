"""Curves in a line of text."""

from __future__ import annotations

from collections.abc import Sequence

LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], low: float, high: float, levels: str = LEVELS) -> str:
    """One character per value, by its height between `low` and `high`; None is a blank."""
    top = len(levels) - 1
    # In halves, because the whole range of two huge numbers is no number; a range too small to divide by is none.
    half = high / 2 - low / 2
    scale = top / half if half > 1e-300 else 0.0
    return "".join(" " if value is None else levels[min(round((value / 2 - low / 2) * scale), top)] for value in values)
