"""From a `RunView` to what a terminal shows: the panel, and the plain lines where there is none. Without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text

from rl_training.experiment.run.reference import NO_REFERENCE
from rl_training.experiment.run.view import RunView, number
from rl_training.utils.printable import one_line, printable
from rl_training.utils.sparkline import LEVELS, sparkline

_LABEL, _VALUE, _GAP = 11, 9, 2
_ASCII_LEVELS = "_.-:=+*#"
_BAR, _ASCII_BAR = "━─", "#."
_SHADES, _ASCII_SHADES = "█▓▒░·", "#=+-."
_STAGE_STYLES = ("blue", "cyan", "magenta", "green", "yellow")
_PLACE_STYLES = {"slightly below": "not dim yellow", "below": "not dim bold red"}  # green elsewhere


def run_panel(view: RunView, footer: str = "") -> RenderableType:
    """The panel of a run, as wide as the place where it is drawn; `footer` is its last line."""
    status = "" if view.status == "running" else f" ({view.status})"
    return Panel(_Body(view, footer), title=Text(one_line(f"{view.title}{status}")))


def plain_line(view: RunView) -> str:
    """The newest report as one line."""
    speed = "-" if view.steps_per_second is None else f"{view.steps_per_second:,.0f}"
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in view.stages.items())
    return (
        f"step {view.step:>9,}/{view.total_timesteps:,}  return {number(view.episode_return)}  "
        f"{speed} steps/s ({shares})  ETA {duration(view.eta)}"
    )


def plain_evaluation(view: RunView) -> str:
    """The newest evaluation as one line, with what the reference seeds had."""
    assert view.evaluation is not None
    band = view.band
    beside = f"; reference seeds {number(band.low)} to {number(band.high)}: {view.place}" if band is not None else ""
    return f"step {view.evaluation.step:>9,}  {view.evaluation.text}{beside}"


def duration(seconds: float | None) -> str:
    """Hours, minutes and seconds."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def resample(points: Sequence[tuple[float, float]], width: int, span: float) -> list[float | None]:
    """A curve over (0, span] in `width` equal parts: the mean of the points in each.

    Parts without points lie on the line between their neighbours, or are None before the first and after the last point.
    """
    parts: list[list[float]] = [[] for _ in range(width)]
    for step, value in points:
        parts[min(max(math.ceil(step / span * width) - 1, 0), width - 1)].append(value)
    values: list[float | None] = [sum(part) / len(part) if part else None for part in parts]
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    for (left, start), (right, end) in pairwise(known):
        for index in range(left + 1, right):
            values[index] = start + (end - start) * (index - left) / (right - left)
    return values


class _Body:
    """The lines of the panel. Progress, return, evaluation and reference share one axis: the steps of the whole run."""

    def __init__(self, view: RunView, footer: str):
        self._view, self._footer = view, footer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        view, width = self._view, max(options.max_width - _LABEL - _VALUE - _GAP, 8)
        levels, bar, shades = (
            (_ASCII_LEVELS, _ASCII_BAR, _ASCII_SHADES) if options.ascii_only else (LEVELS, _BAR, _SHADES)
        )
        evaluation, reference, band = view.evaluation, view.reference, view.band
        span = max(view.total_timesteps, view.step)
        curves = [view.returns.points, view.scores.points, reference.mean_curve if reference is not None else ()]
        traces = [resample(curve, width, span) for curve in curves]
        shown = [value for trace in traces for value in trace if value is not None]
        low, high = (min(shown), max(shown)) if shown else (0.0, 0.0)
        lines = [sparkline(trace, low, high, levels) for trace in traces]

        done = round(view.progress * width)
        whole = Text.assemble((bar[0] * done, "green"), (bar[1] * (width - done), "dim"))
        yield _row("progress", f"{math.floor(100 * view.progress)} %", whole)
        yield _detail(_progress_text(view))
        yield _row("return", number(view.episode_return), Text(lines[0], "cyan"))
        yield _detail(f"last 100 episodes; scale {number(low)} to {number(high)}" if shown else "")
        yield _row("evaluation", number(evaluation.mean if evaluation else None), Text(lines[1], "green"))
        yield _detail(_evaluation_text(view))
        yield _row("reference", number(band.mean if band else None), Text(lines[2], "dim"))
        yield _detail(_reference_text(view))
        yield _row("speed", _speed(view), _stage_bar(view.stages, width, shades))
        yield _detail(_stage_legend(view.stages, options.max_width - _LABEL, shades))
        if self._footer:
            yield Text(printable(self._footer), "dim")


def _row(label: str, value: str, graphic: Text) -> Text:
    start = (f"{label:<{_LABEL}}", "bold")
    return Text.assemble(start, f"{value:>{_VALUE}}{'':{_GAP}}", graphic, no_wrap=True, overflow="crop")


def _detail(text: str | Text) -> RenderableType:
    return Padding(Text(text, "dim") if isinstance(text, str) else text, (0, 0, 0, _LABEL))


def _progress_text(view: RunView) -> str:
    steps = f"{view.step:,} of {view.total_timesteps:,} steps"
    if view.status != "running":
        return f"{steps} in {duration(view.elapsed)}"
    return f"{steps}, {duration(view.elapsed)} so far, ETA {duration(view.eta)}"


def _evaluation_text(view: RunView) -> str:
    evaluation, best = view.evaluation, view.best
    if evaluation is None or best is None:
        return "none yet"
    interval = f"{number(evaluation.ci_low)} to {number(evaluation.ci_high)}"
    return (
        f"{interval} (95 %, {evaluation.episodes} episodes){evaluation.success_text}{evaluation.cut_text}; "
        f"best {number(best.mean)} at step {best.step:,}"
    )


def _reference_text(view: RunView) -> str | Text:
    if view.reference is None:
        return NO_REFERENCE
    if view.band is None:
        return f"{view.reference.seeds} seeds, evaluated from step {view.reference.first_step:,} on"
    band, text = view.band, Text(style="dim")
    text.append(f"{band.seeds} seeds at step {band.step:,}: {number(band.low)} to {number(band.high)}")
    if view.place is not None:
        text.append("; this run is ").append(view.place, _PLACE_STYLES.get(view.place, "not dim green"))
    return text


def _speed(view: RunView) -> str:
    return "-" if view.steps_per_second is None else f"{view.steps_per_second:,.0f}/s"


def _stage_bar(stages: Mapping[str, float], width: int, shades: str) -> Text:
    """The stages side by side, each as long as its share."""
    bar, reached, drawn = Text(), 0.0, 0
    whole = max(sum(stages.values()), 1.0)
    for index, share in enumerate(stages.values()):
        reached += share
        end = round(reached / whole * width)
        bar.append(shades[index % len(shades)] * (end - drawn), _STAGE_STYLES[index % len(_STAGE_STYLES)])
        drawn = end
    return bar


def _stage_legend(stages: Mapping[str, float], width: int, shades: str) -> Text:
    """What the shades mean; a stage is never broken over two lines."""
    legend, column = Text(), 0
    for index, (stage, share) in enumerate(stages.items()):
        entry = one_line(f"{stage} {share:.0%}")
        size = len(entry) + 2
        if column and column + 2 + size > width:
            legend.append("\n")
            column = 0
        elif column:
            legend.append("  ")
            column += 2
        legend.append(shades[index % len(shades)], _STAGE_STYLES[index % len(_STAGE_STYLES)])
        legend.append(f" {entry}", "dim")
        column += size
    return legend
