"""The page's sections."""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rl_training.utils.safe_files import read_limited
from rl_training.zoo.report.charts import (
    Line,
    Scale,
    interval_plot,
    line_chart,
    score_axis,
    sparkline,
    stage_bar,
    swatch,
)
from rl_training.zoo.report.curves import series
from rl_training.zoo.report.findings import Finding
from rl_training.zoo.report.learning_rules import metric_series
from rl_training.zoo.report.markup import Child, Html, code_text, figures, join, table, tag
from rl_training.zoo.report.model import SEEDS_WANTED, Comparison, Environment, Group, Report, RunRow, Score
from rl_training.zoo.report.run_rules import resumes, stop_reason
from rl_training.zoo.report.text import by_kind, reference_text
from rl_training.zoo.report.throughput import SHARES
from rl_training.zoo.run_records import RunRecord
from rl_training.zoo.values import plural, show_number, show_seconds, show_setting, show_share, show_steps

VIDEO_BYTES = 8_000_000
"""A larger video is a link."""
ALL_VIDEO_BYTES = 40_000_000
"""So are those after this much in all: the page has to open on a phone."""
_MEDIA = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
_FEW = 3
"""Runs of a finding that are shown at once."""
_COLUMN = (None, "n", "n", "n", "n extra", "n extra", "extra")
"""CSS classes of the columns of the table of scores."""


def results(report: Report) -> Html:
    """Scores and curves, one part per environment."""
    explanation = (
        "Scores are means over seeds of the evaluation return, with the 95 % bootstrap interval over seeds from three seeds on. "
        "Last is each run's newest evaluation. Best is its highest, picked among many, so it flatters. "
        f"Fewer than {SEEDS_WANTED} seeds are flagged: the next one may change the picture."
    )
    parts = [_results_on(one, index) for index, one in enumerate(report.environments)]
    return join(tag("p", explanation, class_="hint"), *parts)


def _results_on(environment: Environment, index: int) -> Html:
    charts = _charts(environment, index)
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


def _charts(environment: Environment, index: int) -> list[Html]:
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
    charts = [line_chart(f"e{index}-{kind}", title, note, _lines(environment, kind)) for kind, title, note in kinds]
    return [chart for chart in charts if chart is not None]


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
        ("Last checkpoint", _score_cell(group.last)),
        ("Best checkpoint", _score_cell(group.best)),
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


def _score_cell(score: Score | None) -> Html:
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


def findings(report: Report) -> Html:
    """One card per kind of finding, with its runs, the numbers seen and what to try."""
    if not report.findings:
        return tag("p", "Nothing looks wrong.")
    return tag("div", *(_card(report, group) for group in by_kind(report.findings)), class_="cards")


def _card(report: Report, group: list[Finding]) -> Html:
    first = group[0]
    shared = len({finding.advice for finding in group}) == 1
    items = [_finding(report, finding, with_advice=not shared) for finding in group]
    rest = None
    if len(items) > _FEW + 1:
        rest = tag("details", tag("summary", f"{len(items) - _FEW} more runs"), tag("ul", *items[_FEW:]))
        items = items[:_FEW]
    head = tag("h3", tag("span", first.severity, class_=f"severity {first.severity}"), first.title)
    advice = tag("p", tag("b", "Try: "), code_text(first.advice), class_="advice") if shared else None
    return tag("article", head, tag("ul", *items), rest, advice, class_=f"card {first.severity}")


def _finding(report: Report, finding: Finding, *, with_advice: bool) -> Html:
    curve = metric_series(finding)
    picture = (
        sparkline(curve, finding.step, f"{finding.metric} over steps") if curve is not None and len(curve) > 1 else None
    )
    advice = tag("span", tag("b", "Try: "), code_text(finding.advice), class_="advice") if with_advice else None
    return tag("li", picture, tag("div", _link(report, finding.run), " ", tag("span", figures(finding.seen)), advice))


def _link(report: Report, run: RunRecord) -> Html:
    return tag("a", _breakable(report.name(run)), href=f"#{_anchor(report, run)}", class_="run")


def _breakable(name: str) -> Html:
    """A run's name, which may go on in a new line between its parts."""
    first, *rest = name.split("__")
    return join(first, *(join("__", Html("<wbr>"), part) for part in rest))


def _anchor(report: Report, run: RunRecord) -> str:
    return f"run-{list(report.names).index(str(run.path))}"


def videos(report: Report, folder: Path) -> Html | None:
    """The newest video of each run, in the page itself where it is small enough."""
    left, figures_ = ALL_VIDEO_BYTES, []
    for row in report.rows:
        for path in row.videos[-1:]:
            try:
                # Nothing but a file of the run itself is put into a page that others may see.
                content = read_limited(path, min(VIDEO_BYTES, left), inside=row.run.path)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    continue
                size = path.lstat().st_size
                link = quote(os.path.relpath(path, folder))
                text = tag("a", f"{path.name} ({size / 1e6:,.0f} MB)", href=link)
                figures_.append(tag("figure", tag("p", text), tag("figcaption", row.name)))
            else:
                left -= len(content)
                data = base64.b64encode(content).decode("ascii")
                figures_.append(_video(row, path, f"data:{_MEDIA[path.suffix]};base64,{data}"))
    return tag("div", *figures_, class_="videos") if figures_ else None


def _video(row: RunRow, path: Path, source: str) -> Html:
    words = f"{row.run.algo} on {row.run.env_id}, seed {row.run.seed}"
    if path.suffix == ".gif":
        media = tag("img", src=source, alt=f"Evaluation of {words}")
    else:
        media = tag(
            "video", src=source, controls=True, loop=True, preload="metadata", aria_label=f"Evaluation of {words}"
        )
    return tag("figure", media, tag("figcaption", words, tag("span", path.name, class_="muted")))


def runs(report: Report) -> Html:
    """Every run with its own scores, by environment."""
    header = [("Run", False), ("Group", False), ("Seed", True), ("Status", False), ("Steps", True), ("Last", True)]
    header += [("Best", True), ("at step", True), ("Time", True), ("Steps/s", True)]
    parts = []
    for environment in report.environments:
        rows = [_run(report, group, place, row) for place, group in enumerate(environment.groups) for row in group.rows]
        parts.append(tag("h3", environment.name))
        parts.append(table(f"Runs on {environment.name}", header, rows, class_="dense"))
    return join(*parts)


def _run(report: Report, group: Group, place: int, row: RunRow) -> list[Child]:
    run = row.run
    status = tag("span", run.status, class_=f"status {run.status}")
    reason = stop_reason(run)
    more = [tag("span", reason, class_="muted small")] if reason is not None else []
    if not row.counted:
        more.append(tag("span", "not counted", class_="muted small"))
    return [
        tag("span", _breakable(row.name), class_="run", id=_anchor(report, run)),
        tag("span", swatch(place), tag("span", group.label, class_="name"), class_="labelled"),
        run.seed,
        join(status, *more),
        show_steps(run.steps),
        figures(show_number(run.last_score)),
        figures(show_number(run.best_score)),
        figures("-" if row.best_step is None else show_steps(row.best_step)),
        figures(show_seconds(row.speed.elapsed if row.speed is not None else None)),
        f"{row.speed.steps_per_second:,.0f}" if row.speed is not None else "–",
    ]


def speed(report: Report) -> Html | None:
    """Steps per second and the stages' shares of each group, over all its runs."""
    rows: list[list[Child]] = []
    for environment in report.environments:
        for group in environment.groups:
            speeds = [row.speed for row in group.rows if row.speed is not None]
            if not speeds:
                continue
            seconds = sum(one.train_seconds for one in speeds)
            steps = sum(one.steps_per_second * one.train_seconds for one in speeds)
            shares = {stage: sum(one.shares[stage] * one.train_seconds for one in speeds) / seconds for stage in SHARES}
            name = f"{group.label} on {environment.name}"
            numbers = [show_share(share) for share in shares.values()]
            rows.append([name, f"{steps / seconds:,.0f}", stage_bar(shares), *numbers])
    if not rows:
        return None
    key = tag("p", *(tag("span", stage, class_=f"key stage-{stage}") for stage in SHARES), class_="keys")
    header = [("Group", False), ("Steps/s", True), ("Share of the training time", False)]
    header += [(stage, True) for stage in SHARES]
    note = "Without evaluations and checkpoints. Other is mostly logging."
    return join(key, table("Speed by stage", header, rows, class_="speed"), tag("p", note, class_="hint"))


def settings(report: Report) -> Html | None:
    """Per environment, the config keys that differ between its runs."""
    parts = []
    for environment in report.environments:
        if not environment.differing:
            continue
        header = [("Key", False), *((f"{one.label} · {_seeds(one.runs)}", False) for one in environment.settings)]
        rows: list[list[Child]] = []
        for key in environment.differing:
            values = [show_setting(one.values[key]) if key in one.values else None for one in environment.settings]
            rows.append([tag("code", key), *(tag("span", "–", class_="muted") if v is None else v for v in values)])
        parts.append(tag("h3", environment.name))
        parts.append(table(f"Settings that differ on {environment.name}", header, rows, class_="dense keyed"))
    return join(*parts) if parts else None


def _seeds(members: Sequence[RunRecord]) -> str:
    seeds = sorted({run.seed for run in members})
    shown = ", ".join(map(str, seeds)) if len(seeds) <= 6 else f"{seeds[0]} to {seeds[-1]}, {len(seeds)} in all"
    return f"seed{'' if len(seeds) == 1 else 's'} {shown}"


def versions(report: Report) -> Html:
    """What the runs were made with; where it differs, which runs have what."""
    rows: list[list[Child]] = []
    for fact in report.facts:
        values: list[Child] = []
        for value, members in fact.values.items():
            names = ", ".join(report.name(run) for run in members[:3]) + (" …" if len(members) > 3 else "")
            which = (
                tag("span", f"{plural(len(members), 'run')}: {names}", class_="muted small") if fact.differs else None
            )
            values.append(tag("div", value, which))
        mark = tag("span", "differs", class_="severity warning") if fact.differs else None
        rows.append([fact.name, join(*values), mark])
    header = [("What", False), ("Value", False), ("", False)]
    return table("Versions, hardware and code of the runs", header, rows, class_="dense facts-table")


def lineage(report: Report) -> Html | None:
    """From which checkpoint each resume went on, and how exactly."""
    rows: list[list[Child]] = [
        [
            _link(report, row.run),
            tag("code", resume["checkpoint"]),
            resume["step"],
            tag("span", resume["grade"], class_="severity note" if resume["grade"] == "exact" else "severity warning"),
            resume["at_utc"][:16].replace("T", " "),
            resume["notes"],
        ]
        for row in report.rows
        for resume in resumes(row.run)
    ]
    header = [
        ("Run", False),
        ("From checkpoint", False),
        ("Step", True),
        ("Grade", False),
        ("When (UTC)", False),
        ("", False),
    ]
    return table("Resumes", header, rows, class_="dense") if rows else None


def skipped(report: Report) -> Html | None:
    """Folders that could not be read, and why."""
    if not report.skipped:
        return None
    return join(
        tag("p", "These folders are not in the report:"),
        tag("ul", *(tag("li", reason) for reason in report.skipped), class_="skipped"),
    )
