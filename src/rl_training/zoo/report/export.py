"""The report for scripts: JSON with everything, CSV with one row per run."""

from __future__ import annotations

import json
from typing import Any

from rl_training.experiment.run.run_dir import strict_json
from rl_training.version import __version__
from rl_training.zoo.report.curves import Band
from rl_training.zoo.report.model import Environment, Group, Report, RunRow, Score
from rl_training.zoo.report.run_rules import resumes
from rl_training.zoo.report.throughput import SHARES
from rl_training.zoo.values import csv_text, number

SCHEMA = 1
"""Version of the JSON layout."""


def json_report(report: Report) -> str:
    """All of the report as strict JSON."""
    values = {
        "schema": SCHEMA,
        "axiomrl": __version__,
        "created_at_utc": report.created.isoformat(),
        "environments": [_environment(environment) for environment in report.environments],
        "runs": [_run(group, row) for group in report.groups for row in group.rows],
        "findings": [
            {
                "kind": finding.kind,
                "severity": finding.severity,
                "run": report.name(finding.run),
                "title": finding.title,
                "seen": finding.seen,
                "advice": finding.advice,
                "step": finding.step,
            }
            for finding in report.findings
        ],
        "facts": {
            fact.name: [
                {"value": value, "runs": [report.name(run) for run in runs]} for value, runs in fact.values.items()
            ]
            for fact in report.facts
        },
        "skipped": report.skipped,
    }
    return json.dumps(strict_json(values), indent=2, allow_nan=False, default=str) + "\n"


def csv_report(report: Report) -> str:
    """One row per run."""
    rows = [_run(group, row) for group in report.groups for row in group.rows]
    return csv_text([{key: value for key, value in row.items() if key != "resumes"} for row in rows])


def _environment(environment: Environment) -> dict[str, Any]:
    return {
        "environment": environment.name,
        "groups": [_group(group) for group in environment.groups],
        "comparisons": [
            {
                "better": pair.better.label,
                "other": pair.other.label,
                "probability": pair.probability,
                "low": pair.low,
                "high": pair.high,
            }
            for pair in environment.comparisons
        ],
        "settings": [
            {
                "group": one.label,
                "runs": [str(run.path) for run in one.runs],
                "differing": {key: one.values[key] for key in environment.differing if key in one.values},
            }
            for one in environment.settings
        ],
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "algo": group.algo,
        "label": group.label,
        "seeds": group.seeds,
        "reference": _reference(group),
        "last": _score(group.last),
        "best": _score(group.best),
        "flags": group.flags,
        "evaluation": _band(group.evaluation),
        "training": _band(group.training),
    }


def _reference(group: Group) -> dict[str, Any] | None:
    if group.reference is None:
        return None
    low, high = group.reference.last_interval
    return {"preset": group.reference.preset, "mean": group.reference.last_mean, "low": low, "high": high}


def _score(score: Score | None) -> dict[str, Any] | None:
    if score is None:
        return None
    return {"mean": score.mean, "iqm": score.iqm, "low": score.low, "high": score.high, "values": score.values}


def _band(band: Band | None) -> dict[str, Any] | None:
    return None if band is None else {key: None if edge is None else edge.tolist() for key, edge in vars(band).items()}


def _run(group: Group, row: RunRow) -> dict[str, Any]:
    run, last = row.run, row.run.evaluations[-1] if row.run.evaluations else {}
    return {
        "run": str(run.path),
        "algo": run.algo,
        "env_id": run.env_id,
        "group": group.label,
        "seed": run.seed,
        "status": run.status,
        "counted": row.counted,
        "steps": run.steps,
        "last_score": run.last_score,
        "last_low": number(last.get("ci_low")),
        "last_high": number(last.get("ci_high")),
        "best_score": run.best_score,
        "best_step": row.best_step,
        "seconds": row.speed.elapsed if row.speed is not None else None,
        "steps_per_second": row.speed.steps_per_second if row.speed is not None else None,
        **{f"{stage}_share": row.speed.shares[stage] if row.speed is not None else None for stage in SHARES},
        "resumes": resumes(run),
    }
