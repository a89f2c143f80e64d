"""Small plots with logarithmic axes as SVG text, readable on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 330, 260, 58, 42, 30, 14
# Okabe and Ito's palette, told apart also without colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#333}line,path{fill:none;stroke-width:1.6}.grid{stroke:#8884;stroke-width:1}"
    "@media(prefers-color-scheme:dark){text{fill:#ccc}}"
)


@dataclass(frozen=True)
class Series:
    """A named line; all numbers are positive."""

    name: str
    points: Sequence[tuple[float, float]]


Panel = tuple[str, str, str, Sequence[Series]]
"""Title, labels of the axes, lines."""


def log_plot(panels: Sequence[Panel]) -> str:
    """The panels side by side."""
    drawn = [f'<g transform="translate({index * WIDTH} 0)">{_panel(panel)}</g>' for index, panel in enumerate(panels)]
    titles = ", ".join(panel[0] for panel in panels)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}" role="img" '
        f'aria-label="{escape(titles)}"><style>{STYLE}</style>{"".join(drawn)}</svg>\n'
    )


def _panel(panel: Panel) -> str:
    title, x_label, y_label, lines = panel
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_axis, y_axis = _Axis(xs, LEFT, WIDTH - RIGHT), _Axis(ys, HEIGHT - BOTTOM, TOP)
    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{escape(title)}</text>']
    for tick in x_axis.ticks():
        at = x_axis.place(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{_short(tick)}</text>')
    for tick in y_axis.ticks():
        at = y_axis.place(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_short(tick)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(12 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        path = " ".join(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        legend = TOP + 12 + 13 * index
        parts.append(f'<line x1="{LEFT + 8}" x2="{LEFT + 24}" y1="{legend - 4}" y2="{legend - 4}" stroke="{colour}"/>')
        parts.append(f'<text x="{LEFT + 28}" y="{legend}">{escape(line.name)}</text>')
    return "".join(parts)


class _Axis:
    """Maps numbers to places by their logarithms."""

    def __init__(self, numbers: Sequence[float], start: float, stop: float):
        self._low, self._high = math.log10(min(numbers)), math.log10(max(numbers))
        self._start, self._stop = start, stop

    def place(self, number: float) -> float:
        share = (math.log10(number) - self._low) / max(self._high - self._low, 1e-9)
        return self._start + share * (self._stop - self._start)

    def ticks(self) -> list[float]:
        """Powers of ten inside the axis."""
        return [10.0**power for power in range(math.ceil(self._low - 1e-9), math.floor(self._high + 1e-9) + 1)]


def _short(number: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    if number >= 1:
        return f"{number:g}"
    return f"{number * 1e3:g} m" if number >= 1e-3 else f"{number * 1e6:g} µ"
