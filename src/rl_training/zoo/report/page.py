"""The report as one HTML page: no other file, nothing from the network."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rl_training.version import __version__
from rl_training.zoo.report import sections
from rl_training.zoo.report.findings import SEVERITIES
from rl_training.zoo.report.markup import Child, Html, join, tag
from rl_training.zoo.report.model import Report
from rl_training.zoo.values import plural

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; media-src data:"
"""Even if the page held a link to another file by mistake, the browser would not load it."""
_HERE = Path(__file__).parent


def html_report(report: Report, folder: Path) -> str:
    """The page; `folder` is where it will be, for links to videos too large to be put in."""
    parts: list[tuple[str, str, Html | None]] = [
        ("results", "Results", sections.results(report)),
        ("findings", "Findings", sections.findings(report)),
        ("videos", "Videos", sections.videos(report, folder)),
        ("runs", "Runs", sections.runs(report)),
        ("speed", "Speed", sections.speed(report)),
        ("settings", "Settings that differ", sections.settings(report)),
        ("versions", "Versions and hardware", sections.versions(report)),
        ("resumes", "Resumes", sections.lineage(report)),
        ("skipped", "Skipped", sections.skipped(report)),
    ]
    shown = [(anchor, title, body) for anchor, title, body in parts if body is not None]
    nav = tag("nav", *(tag("a", title, href=f"#{anchor}") for anchor, title, _ in shown), aria_label="Sections")
    main = [tag("section", tag("h2", title), body, id=anchor) for anchor, title, body in shown]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        tag("title", f"{_title(report)} – AxiomRL report"),
        tag("style", _asset("page.css")),
    )
    footer = tag("footer", tag("p", f"Made by AxiomRL {__version__}. This page is one file and loads nothing."))
    body = tag("body", _header(report), nav, tag("main", *main), footer, tag("script", _asset("page.js")))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> Html:
    return Html((_HERE / name).read_text(encoding="utf-8"))


def _title(report: Report) -> str:
    groups = report.groups
    if len(groups) == 1:
        return f"{groups[0].label} on {report.environments[0].name}"
    if len(report.environments) == 1:
        return f"{plural(len(groups), 'group')} on {report.environments[0].name}"
    return f"{plural(len(report.rows), 'run')} on {plural(len(report.environments), 'environment')}"


def _header(report: Report) -> Html:
    counts = Counter(finding.severity for finding in report.findings)
    found: list[Child] = [
        tag("a", plural(counts[severity], severity), href="#findings", class_=f"severity {severity}")
        for severity in SEVERITIES
        if counts[severity]
    ]
    facts: list[tuple[str, Child]] = [
        ("Runs", f"{len(report.rows):,}"),
        ("Environments", f"{len(report.environments):,}"),
        ("Groups", f"{len(report.groups):,}"),
        ("Findings", join(*found) if found else "none"),
    ]
    if report.skipped:
        facts.append(("Skipped", tag("a", f"{len(report.skipped):,}", href="#skipped")))
    made = f"{report.created.day} {report.created:%B %Y, %H:%M} UTC"
    return tag(
        "header",
        tag("p", "AxiomRL report", class_="kicker"),
        tag("h1", _title(report)),
        tag("p", f"From {', '.join(map(str, report.sources))}. Made on {made}.", class_="muted"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts), class_="facts"),
    )
