"""The report as plain text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rl_training.utils.printable import one_line
from rl_training.zoo.report.findings import Finding
from rl_training.zoo.report.model import Environment, Group, Report, Score
from rl_training.zoo.report.run_rules import resumes
from rl_training.zoo.report.throughput import SHARES
from rl_training.zoo.run_records import RunRecord
from rl_training.zoo.values import plural, show_number, show_seconds, show_setting, show_share, show_steps, table


def text_report(report: Report) -> str:
    """Summary, comparison, findings, differences, versions, lineage, and what was skipped."""
    parts = [headline(report)]
    for environment in report.environments:
        parts.append(_environment(environment))
    parts += [_findings(report), _runs(report)]
    parts += [_differences(environment) for environment in report.environments if environment.differing]
    parts.append(_facts(report))
    if lineage := [(row.name, resume) for row in report.rows for resume in resumes(row.run)]:
        lines = [[name, r["checkpoint"], r["grade"], r["at_utc"][:19], r["notes"]] for name, r in lineage]
        parts.append(_section("Resumes", table([["run", "from checkpoint", "grade", "when (UTC)", "notes"], *lines])))
    if report.skipped:
        parts.append(_section("Skipped", report.skipped))
    return "\n\n".join(parts) + "\n"


def headline(report: Report) -> str:
    """One line: how many runs of what."""
    runs, groups, environments = len(report.rows), len(report.groups), len(report.environments)
    return (
        f"AxiomRL report: {plural(runs, 'run')} in {plural(groups, 'group')} on {plural(environments, 'environment')}"
    )


def score_text(score: Score | None) -> str:
    """A score with its interval, if it has one."""
    if score is None:
        return "-"
    interval = "" if score.low is None else f" ({show_number(score.low)} to {show_number(score.high)})"
    return show_number(score.mean) + interval


def reference_text(group: Group) -> list[str]:
    """What the shipped result of the same config scored, if there is one."""
    if group.reference is None:
        return []
    low, high = map(show_number, group.reference.last_interval)
    return [f"reference {show_number(group.reference.last_mean)} ({low} to {high}, {group.reference.seeds} seeds)"]


def by_kind(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one kind together, in their order."""
    kinds = list(dict.fromkeys(finding.kind for finding in findings))
    return [list(group) for _, group in groupby(sorted(findings, key=lambda f: kinds.index(f.kind)), lambda f: f.kind)]


def _environment(environment: Environment) -> str:
    header = ["algorithm", "seeds", "last checkpoint", "best checkpoint", "steps", "note"]
    lines = []
    for group in environment.groups:
        steps = show_steps(max((row.run.steps for row in group.counted), default=0))
        last, best = score_text(group.last), score_text(group.best)
        notes = "; ".join([*group.flags, *reference_text(group)])
        lines.append([group.label, str(group.seeds), last, best, steps, notes])
    rows = table([header, *lines])
    rows += [
        f"a run of {pair.better.label} beats one of {pair.other.label} with probability "
        f"{pair.probability:.2f} ({pair.low:.2f} to {pair.high:.2f})"
        for pair in environment.comparisons
    ]
    rows.append("scores: mean over seeds of the evaluation return, 95 % bootstrap interval over seeds from 3 seeds on")
    return _section(environment.name, rows)


def _findings(report: Report) -> str:
    if not report.findings:
        return _section("Findings", ["none"])
    lines = []
    for findings in by_kind(report.findings):
        lines.append(f"{findings[0].severity}: {findings[0].title}")
        shared = len({finding.advice for finding in findings}) == 1
        for finding in findings:
            lines.append(f"  {report.name(finding.run)}: {finding.seen}")
            if not shared:
                lines.append(f"    try: {finding.advice}")
        if shared:
            lines.append(f"  try: {findings[0].advice}")
    return _section("Findings", lines)


def _differences(environment: Environment) -> str:
    names = [f"{one.label}, seed{'' if len(one.runs) == 1 else 's'} {_seeds(one.runs)}" for one in environment.settings]
    letters = [f"[{index}]" for index in range(1, len(names) + 1)]
    rows = [
        [key, *(show_setting(one.values[key]) if key in one.values else "" for one in environment.settings)]
        for key in environment.differing
    ]
    legend = [f"{letter} {name}" for letter, name in zip(letters, names, strict=True)]
    return _section(f"Settings that differ on {environment.name}", [*legend, *table([["key", *letters], *rows])])


def _seeds(runs: Sequence[RunRecord]) -> str:
    return ", ".join(map(str, sorted({run.seed for run in runs})))


def _facts(report: Report) -> str:
    lines = []
    for fact in report.facts:
        if fact.differs:
            values = "; ".join(f"{value} ({plural(len(runs), 'run')})" for value, runs in fact.values.items())
            lines.append([fact.name, f"DIFFERS: {values}"])
        else:
            lines.append([fact.name, next(iter(fact.values))])
    return _section("Versions and hardware", table([["what", "value"], *lines]))


def _runs(report: Report) -> str:
    header = ["run", "status", "steps", "last", "best", "time", "steps/s", *SHARES]
    rows = []
    for row in report.rows:
        scores = [show_steps(row.run.steps), show_number(row.run.last_score), show_number(row.run.best_score)]
        speed = ["-"] * 7
        if row.speed is not None:
            shares = [show_share(share) for share in row.speed.shares.values()]
            speed = [show_seconds(row.speed.elapsed), f"{row.speed.steps_per_second:,.0f}", *shares]
        rows.append([row.name, row.run.status, *scores, *speed])
    return _section("Runs, with the stages' shares of the training time", table([header, *rows]))


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n  ".join(map(one_line, [title, *lines]))
