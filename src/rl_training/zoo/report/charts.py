"""Charts as inline SVG. Only lines and areas are in the SVG, which stretches; labels are HTML, so they keep their size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.experiment.run.reference import Reference, value_at
from rl_training.zoo.report.curves import Band, Floats, Series, thin
from rl_training.zoo.report.markup import Html, figures, json_script, tag
from rl_training.zoo.report.model import Score
from rl_training.zoo.values import show_number, show_share, show_steps

SIZE = 1000.0
"""Side of the square that every SVG is drawn in."""
_FRAME = {"viewBox": f"0 0 {SIZE:g} {SIZE:g}", "preserveAspectRatio": "none"}
COLOURS = 5
DASHES = 4
"""Colours of the palette in page.css; when they are used up they come again with another dash."""
MAX_SEED_LINES = 60
_LARGEST, _SMALLEST = 1e100, 1e-100  # beyond them, lengths and powers of ten overflow or vanish


@dataclass(frozen=True)
class Line:
    """One group in a chart."""

    label: str
    index: int
    """Place in the environment's list of groups: gives colour and dash."""
    band: Band | None
    seeds: Sequence[Series]
    """Single runs, drawn thin."""
    reference: Reference | None = None
    """The shipped result of the same config, drawn dotted; with its seeds' range if it is the only one."""


@dataclass(frozen=True)
class Scale:
    """A linear axis from `low` to `high`."""

    low: float
    high: float

    def place(self, value: float | Floats) -> Floats:
        """Share of the axis, 0 at `low` and 1 at `high`."""
        return (np.asarray(value, dtype=np.float64) - self.low) / (self.high - self.low)


def style_class(index: int) -> str:
    """CSS classes of the group with this place in the list."""
    return f"c{index % COLOURS} d{index // COLOURS % DASHES}"


def swatch(index: int) -> Html:
    """A short piece of the group's line, for legends and tables."""
    line = tag("path", d="M0 500H1000", class_=f"mean {style_class(index)}")
    return tag("svg", line, **_FRAME, class_="swatch", aria_hidden="true")


def line_chart(identifier: str, title: str, note: str, lines: Sequence[Line]) -> Html | None:
    """Means with bands and single runs over environment steps; None if there is nothing to draw."""
    drawn = [line for line in lines if line.band is not None or any(len(seed) for seed in line.seeds)]
    if not drawn:
        return None
    seeds = {line.index: [thin(seed) for seed in line.seeds if len(seed)] for line in drawn}
    if sum(map(len, seeds.values())) > MAX_SEED_LINES:
        seeds = {line.index: [] if line.band is not None else seeds[line.index] for line in drawn}
    x, y = _scales(drawn, seeds)
    shapes, data = [], []
    alone = sum(line.reference is not None for line in drawn) == 1
    for line in drawn:
        layers = [tag("path", d=_path(seed.steps, seed.values, x, y), class_="seed") for seed in seeds[line.index]]
        if line.band is not None:
            if line.band.low is not None and line.band.high is not None:
                outline = _outline(line.band.steps, line.band.low, line.band.high, x, y)
                layers.insert(0, tag("path", d=outline, class_="band"))
            layers.append(tag("path", d=_path(line.band.steps, line.band.mean, x, y), class_="mean"))
            data.append({"s": line.index, "label": line.label, **_numbers(line.band, line.reference)})
        layers = [*_reference(line.reference, x, y, with_range=alone), *layers]
        shapes.append(tag("g", *layers, class_=style_class(line.index), data_s=line.index))
    area = tag(
        "div",
        tag(
            "svg",
            tag("title", title, id=f"{identifier}-t"),
            tag("desc", _description(drawn), id=f"{identifier}-d"),
            tag("path", d=_grid(x, y), class_="grid"),
            *shapes,
            **_FRAME,
            role="img",
            aria_labelledby=f"{identifier}-t {identifier}-d",
        ),
        tag("div", class_="cursor", hidden=True),
        tag("output", class_="readout", hidden=True),
        class_="area",
        tabindex="0",
        role="group",
        aria_label=f"{title}: arrow keys read the values",
        data_x=f"{x.low:.6g},{x.high:.6g}",
    )
    return tag(
        "figure",
        tag("figcaption", tag("strong", title), " ", tag("span", note)),
        tag("div", _labels(y, "y"), area, _labels(x, "x"), class_="plot"),
        json_script(identifier, data),
        class_="chart",
        data_chart=identifier,
    )


def interval_plot(last: Score | None, best: Score | None, index: int, axis: Scale) -> Html:
    """Last score (dot) with its interval and best score (ring) on an axis that the environment's groups share."""
    parts = []
    if last is not None:
        if last.low is not None and last.high is not None:
            ends = axis.place(np.array([last.low, last.high])) * SIZE
            parts.append(tag("path", d=f"M{ends[0]:.0f} 500H{ends[1]:.0f}", class_="whisker"))
        if best is not None:
            ring = f"M{axis.place(best.mean) * SIZE:.0f} 500h.01"
            parts += [tag("path", d=ring, class_="ring"), tag("path", d=ring, class_="hole")]
        parts.append(tag("path", d=f"M{axis.place(last.mean) * SIZE:.0f} 500h.01", class_="dot"))
    return tag("svg", *parts, class_=f"interval c{index % COLOURS}", **_FRAME, aria_hidden="true")


def score_axis(scores: Sequence[Score | None]) -> Scale:
    """An axis on which all these scores and their intervals fit."""
    ends = [value for one in scores if one is not None for value in (one.mean, one.low, one.high) if value is not None]
    return _padded(ends, 0.08)


def sparkline(curve: Series, step: int | None, title: str) -> Html:
    """A small curve without axes; a dot marks `step`."""
    curve = thin(curve, 60)
    x, y = _padded(curve.steps, 0.03), _padded(curve.values, 0.1)
    parts = [tag("title", title), tag("path", d=_path(curve.steps, curve.values, x, y), class_="spark")]
    if step is not None and len(curve):
        near = int(np.abs(curve.steps - step).argmin())
        left, top = x.place(curve.steps[near]) * SIZE, (1 - y.place(curve.values[near])) * SIZE
        parts.append(tag("path", d=f"M{left:.0f} {top:.0f}h.01", class_="mark"))
    return tag("svg", *parts, **_FRAME, class_="sparkline", role="img")


def ticks(scale: Scale, wanted: int = 6) -> list[float]:
    """Round numbers on an axis: multiples of 1, 2 or 5 times a power of ten."""
    span = scale.high - scale.low
    size = 10.0 ** math.floor(math.log10(span / wanted))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if span / (size * factor) <= wanted)
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def _scales(lines: Sequence[Line], seeds: dict[int, list[Series]]) -> tuple[Scale, Scale]:
    steps, values = [], []
    for line in lines:
        for seed in seeds[line.index]:
            steps.append(seed.steps)
            values.append(seed.values)
        if line.band is not None:
            steps.append(line.band.steps)
            values += [edge for edge in (line.band.mean, line.band.low, line.band.high) if edge is not None]
        if line.reference is not None:
            values += [np.array([mean for curve in line.reference.curves for _, mean in curve])]
    return Scale(0.0, max(float(np.concatenate(steps).max()), 1.0)), _padded(np.concatenate(values), 0.05)


def _padded(values: Sequence[float] | Floats, share: float) -> Scale:
    """An axis with some room at both ends; values that are all but equal get an axis around them."""
    if not len(values):
        return Scale(0.0, 1.0)
    low, high = (float(value) for value in np.clip([np.min(values), np.max(values)], -_LARGEST, _LARGEST))
    size = max(abs(low), abs(high))
    pad = (high - low) * share if high - low > max(1e-9 * size, _SMALLEST) else max(size * share, 0.5)
    return Scale(low - pad, high + pad)


def _path(steps: Floats, values: Floats, x: Scale, y: Scale) -> str:
    if len(steps) == 1:  # a dot: a line of no length with round ends
        return f"M{x.place(steps)[0] * SIZE:.1f} {(1 - y.place(values)[0]) * SIZE:.1f}h.01"
    points = zip(x.place(steps) * SIZE, (1 - y.place(values)) * SIZE)
    return "M" + "L".join(f"{left:.1f} {top:.1f}" for left, top in points)


def _outline(steps: Floats, low: Floats, high: Floats, x: Scale, y: Scale) -> str:
    return f"{_path(steps, high, x, y)}L{_path(steps[::-1], low[::-1], x, y)[1:]}Z"


def _reference(reference: Reference | None, x: Scale, y: Scale, *, with_range: bool) -> list[Html]:
    """The mean of the reference seeds, up to the end of the axis, and from the lowest seed to the highest."""
    bands = (
        [at for step, _ in reference.mean_curve if step <= x.high and (at := reference.at(step))] if reference else []
    )
    if not bands:
        return []
    steps, low, mean, high = (
        np.array([getattr(one, name) for one in bands], dtype=np.float64) for name in ("step", "low", "mean", "high")
    )
    dotted = tag("path", d=_path(steps, mean, x, y), class_="reference grey" if with_range else "reference")
    return [tag("path", d=_outline(steps, low, high, x, y), class_="range"), dotted] if with_range else [dotted]


def _grid(x: Scale, y: Scale) -> str:
    rows = "".join(f"M0 {(1 - y.place(value)) * SIZE:.1f}H{SIZE:g}" for value in ticks(y))
    return rows + "".join(f"M{x.place(value) * SIZE:.1f} {SIZE:g}v-12" for value in ticks(x))


def _labels(scale: Scale, axis: str) -> Html:
    show = show_steps if axis == "x" else _short_number
    spans = []
    for value in ticks(scale):
        share = float(scale.place(value))
        style = f"left:{share:.2%}" if axis == "x" else f"top:{1 - share:.2%}"
        spans.append(tag("span", figures(show(value)), style=style))
    name = tag("em", "steps") if axis == "x" else None
    return tag("div", *spans, name, class_=f"axis {axis}", aria_hidden="true")


def _short_number(value: float) -> str:
    return show_steps(value) if abs(value) >= 10_000 else f"{value:.4g}"


def _numbers(band: Band, reference: Reference | None) -> dict[str, object]:
    """Five digits are more than a reader can see; the files have them all."""
    curve = reference.mean_curve if reference is not None else ()
    known = [value_at(curve, float(step)) for step in band.steps]
    low, high = (None if edge is None else [_five(value) for value in edge] for edge in (band.low, band.high))
    return {
        "x": [int(step) for step in band.steps],
        "y": [_five(value) for value in band.mean],
        "lo": low,
        "hi": high,
        "ref": [None if value is None else _five(value) for value in known] if curve else None,
    }


def _five(value: float) -> float:
    return float(f"{value:.5g}")


def _description(lines: Sequence[Line]) -> str:
    parts = [
        f"{line.label}: {show_number(float(line.band.mean[-1]))} at step {show_steps(float(line.band.steps[-1]))}"
        for line in lines
        if line.band is not None
    ]
    return "Mean at the last step. " + "; ".join(parts) if parts else "Single runs."


def stage_bar(shares: dict[str, float]) -> Html:
    """One bar whose parts are the stages' shares of the training time."""
    parts = [
        tag(
            "span",
            tag("b", show_share(share)) if share >= 0.08 else None,
            class_=f"stage-{stage}",
            style=f"flex-grow:{share:.4f}",
            title=f"{stage}: {show_share(share)}",
        )
        for stage, share in shares.items()
        if share >= 0.005
    ]
    return tag("div", *parts, class_="stages", aria_hidden="true")
