"""Values from a run's files, which may hold anything, and numbers, settings and tables as every listing shows them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.utils.numbers import finite
from rl_training.utils.printable import csv_cell

number = finite  # as everything that reads runs and results calls it


def mapping(value: object) -> dict[str, Any]:
    """The value if it is a mapping, else an empty one; keys become text."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def setting(config: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key such as `hyperparams.target_kl`; None where a part is missing."""
    found: Any = config
    for part in key.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys with their values; a schedule (`start`, `end`, `fraction`) and an empty mapping count as one value."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value and not {"start", "end"} <= set(value):
            found |= leaves(value, f"{key}.")
        else:
            found[key] = value
    return found


def show_setting(value: object) -> str:
    """A config value as a person writes it: `0.001 to 0` for a schedule, `64, 64` for a list."""
    if isinstance(value, Mapping) and {"start", "end"} <= set(value):
        fraction = number(value.get("fraction"))
        over = f" over {show_share(fraction)}" if fraction is not None and fraction != 1 else ""
        return f"{show_setting(value['start'])} to {show_setting(value['end'])}{over}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {show_setting(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(show_setting(item) for item in value) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def show_number(value: float | None) -> str:
    """A score with as many digits as its size needs; a dash for none."""
    if value is None or not math.isfinite(value):
        return "-"
    size = abs(value)
    digits = 0 if size >= 10_000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 4
    if 0 < size < 0.001 or size >= 1e9:
        return f"{value:.2e}"
    return f"{value:,.{digits}f}"


def show_steps(value: float) -> str:
    """A number of steps in short: 15k, 1.5M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def show_share(value: float) -> str:
    """A share as whole per cent: `67 %`."""
    return f"{value * 100:.0f} %"


def show_seconds(value: float | None) -> str:
    """A duration in short: 5.9 s, 3 min 20 s, 2 h 05 min."""
    if value is None:
        return "-"
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plural(count: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = (), width: float = math.inf) -> list[str]:
    """Rows as aligned columns, those numbered in `right` to the right; closer together where they would exceed `width`."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= width else " "
    return [
        gap.join(
            cell.rjust(size) if column in right else cell.ljust(size)
            for column, (cell, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows under the keys of the first one; no cell is a formula to a spreadsheet."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()
