"""Numbers from files, which may hold anything."""

from __future__ import annotations

from typing import Final

LARGEST: Final = 1e150
"""No score or loss is larger; sums and squares of larger ones would overflow."""


def finite(value: object) -> float | None:
    """The value if it is a number that can be computed with; JSON has null where one was NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
        return None
    return float(value)
