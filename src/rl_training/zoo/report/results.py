"""The page's first section: scores, curves and comparisons of each environment."""

from __future__ import annotations

from rl_training.zoo.report.charts import Line, Scale, interval_plot, line_chart, score_axis, swatch
from rl_training.zoo.report.curves import series
from rl_training.zoo.report.markup import Child, Html, figures, join, tag
from rl_training.zoo.report.model import SEEDS_WANTED, Comparison, Environment, Group, Report, Score
from rl_training.zoo.report.text import reference_text
from rl_training.zoo.values import show_number, show_seconds, show_share, show_steps


def results(report: Report) -> Html:
    """Scores and curves, one part per environment."""
    explanation = (
        "Scores are means over seeds of the evaluation return, with the 95 % bootstrap interval over seeds from three seeds on. "
        "Last is each run's newest evaluation. Best is its highest, picked among many, so it flatters. "
        f"Fewer than {SEEDS_WANTED} seeds are flagged: the next one may change the picture."
    )
    parts = [_environment(one, number) for number, one in enumerate(report.environments)]
    return join(tag("p", explanation, class_="hint"), *parts)


def _environment(environment: Environment, number: int) -> Html:
    charts = _charts(environment, number)
    legend = _legend(environment) if charts and environment.groups[1:] else None
    return tag(
        "section",
        tag("h3", environment.name),
        tag("div", _scores(environment), class_="scroll"),
        legend,
        tag("div", *charts, class_="charts") if charts else tag("p", "Nothing was logged to draw."),
        _comparisons(environment),
        class_="environment",
    )


def _scores(environment: Environment) -> Html:
    """The table of scores. Its roles are written out because on a phone its rows become cards."""
    axis = score_axis([score for group in environment.groups for score in (group.last, group.best)])
    names = ("Algorithm", "Seeds", "Last checkpoint", "Best checkpoint", "Steps", "Time", "Last ● and best ○")
    columns = [
        tag("th", name, scope="col", role="columnheader", class_=_COLUMN[place]) for place, name in enumerate(names)
    ]
    return tag(
        "table",
        tag("caption", f"Scores on {environment.name}"),
        tag("thead", tag("tr", *columns, role="row"), role="rowgroup"),
        tag(
            "tbody",
            *(_summary_row(group, index, axis) for index, group in enumerate(environment.groups)),
            role="rowgroup",
        ),
        class_="scores",
        role="table",
    )


def _legend(environment: Environment) -> Html:
    buttons = [
        tag("button", swatch(index), group.label, type="button", aria_pressed="true", data_s=index)
        for index, group in enumerate(environment.groups)
    ]
    return tag("div", *buttons, class_="legend", role="group", aria_label="Groups shown in the charts")


def _charts(environment: Environment, number: int) -> list[Html]:
    references = sum(group.reference is not None for group in environment.groups)
    notes = ["mean over seeds"]
    if any(group.evaluation is not None and group.evaluation.low is not None for group in environment.groups):
        notes.append("band: its 95 % interval")
    if any(len(group.rows) > 1 for group in environment.groups):
        notes.append("thin: single runs")
    if references == 1:
        notes.append("grey: mean and range of the seeds of the shipped result with the same config")
    elif references:
        notes.append("dotted: shipped results with the same config")
    kinds = (
        ("evaluation", "Evaluation return", "; ".join(notes)),
        ("training", "Training return", "mean of the last 100 episodes, exploration included"),
    )
    charts = [line_chart(f"e{number}-{kind}", title, note, _lines(environment, kind)) for kind, title, note in kinds]
    return [chart for chart in charts if chart is not None]


_COLUMN = (None, "n", "n", "n", "n extra", "n extra", "extra")


def _summary_row(group: Group, index: int, axis: Scale) -> Html:
    steps = max((row.run.steps for row in group.counted), default=0)
    times = sorted(row.speed.elapsed for row in group.counted if row.speed is not None and row.speed.elapsed)
    seconds = times[len(times) // 2] if times else None
    flags = tag("span", "; ".join(group.flags), class_="flag") if group.flags else None
    reference = (
        tag("span", figures(reference_text(group)[0]), class_="small muted") if group.reference is not None else None
    )
    cells: list[tuple[str, Child]] = [
        ("Seeds", group.seeds),
        ("Last checkpoint", _score(group.last)),
        ("Best checkpoint", _score(group.best)),
        ("Steps", show_steps(steps)),
        ("Time", show_seconds(seconds)),
        ("", interval_plot(group.last, group.best, index, axis)),
    ]
    label = tag("span", swatch(index), tag("span", group.label, flags, reference, class_="name"), class_="labelled")
    return tag(
        "tr",
        tag("th", label, scope="row", role="rowheader"),
        *(
            tag("td", cell, role="cell", class_=_COLUMN[place], data_label=name)
            for place, (name, cell) in enumerate(cells, start=1)
        ),
        role="row",
    )


def _score(score: Score | None) -> Html:
    if score is None:
        return tag("span", "–", class_="muted")
    interval = None
    if score.low is not None and score.high is not None:
        text = f"{figures(show_number(score.low))} to {figures(show_number(score.high))}"
        interval = tag("span", text, class_="interval-text")
    return join(tag("b", figures(show_number(score.mean))), interval)


def _lines(environment: Environment, kind: str) -> list[Line]:
    lines = []
    for index, group in enumerate(environment.groups):
        if kind == "evaluation":
            seeds = [series(row.run.evaluations, "mean") for row in group.rows]
            lines.append(Line(group.label, index, group.evaluation, seeds, group.reference))
        else:
            seeds = [series(row.run.metrics, "episode_return") for row in group.rows]
            lines.append(Line(group.label, index, group.training, seeds, None))
    return lines


def _comparisons(environment: Environment) -> Html | None:
    if not environment.comparisons:
        return None
    items = []
    for pair in environment.comparisons:
        interval = f"{show_share(pair.low)} to {show_share(pair.high)}"
        words = f" with probability {show_share(pair.probability)} ({interval}): {_verdict(pair)}"
        items.append(tag("li", tag("b", pair.better.label), " ends above ", tag("b", pair.other.label), figures(words)))
    return tag(
        "details", tag("summary", "Comparison of the groups"), tag("ul", *items, class_="pairs"), open=len(items) <= 3
    )


def _verdict(pair: Comparison) -> str:
    if pair.low <= 0.5 <= pair.high:
        return "open, more seeds would tell"
    few = min(pair.better.seeds, pair.other.seeds) < SEEDS_WANTED
    return "clear on these seeds, but they are few" if few else "clear"
