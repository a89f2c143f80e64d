"""A leaderboard as JSON and CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rl_training.zoo.comparison import BaselineReport, Comparison
from rl_training.zoo.leaderboard import PROFILE_THRESHOLDS, AggregateBoard, AggregateEntry, Entry, Leaderboard
from rl_training.zoo.score_groups import ScoreGroup, SeedScore
from rl_training.zoo.values import csv_text


def as_json(leaderboard: Leaderboard) -> str:
    """All of it, with every seed's score."""
    report = leaderboard.baseline
    values = {
        "schema": 1,
        "source": leaderboard.source,
        "min_seeds": leaderboard.min_seeds,
        "tasks": [
            {"task": board.task, "entries": [_entry(entry, leaderboard.min_seeds) for entry in board.entries]}
            for board in leaderboard.boards
        ],
        "aggregates": [_aggregate(board) for board in leaderboard.aggregates],
        "without_score": [{**_pair(group), "runs": _runs(group.runs)} for group in leaderboard.without_score],
        "comparison": None if report is None else _report(report, str(leaderboard.baseline_source)),
        "notes": leaderboard.notes,
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def as_csv(leaderboard: Leaderboard) -> str:
    """One row per method and task; with a baseline, one row per comparison instead."""
    if leaderboard.baseline is not None:
        return csv_text([_flat(_comparison(comparison)) for comparison in leaderboard.baseline.comparisons])
    return csv_text(
        [
            {"task": board.task, **_flat(_entry(entry, leaderboard.min_seeds))}
            for board in leaderboard.boards
            for entry in board.entries
        ]
    )


def _entry(entry: Entry, min_seeds: int) -> dict[str, Any]:
    group = entry.group
    return {
        "rank": entry.rank,
        "tied": entry.tied,
        "algo": group.algo,
        "name": group.name,
        "preset": group.preset,
        "seeds": len(group.scored),
        "seeds_asked": group.seeds_asked,
        "few_seeds": len(group.scored) < max(min_seeds, group.seeds_asked or 0),
        "last_mean": entry.mean,
        "last_interval_95": entry.interval,
        "last_iqm": entry.iqm,
        "last_median": entry.median,
        "best_mean": entry.best,
        "steps": group.steps,
        "unfinished": len(group.unfinished),
        "runs": _runs(group.scored),
        "without_score": _runs(group.without_score),
        "config_differences": group.differences,
    }


def _runs(runs: Iterable[SeedScore]) -> list[dict[str, Any]]:
    keys = ("seed", "last", "best", "steps", "status", "source")
    return [{key: getattr(run, key) for key in keys} for run in runs]


def _aggregate(board: AggregateBoard) -> dict[str, Any]:
    return {
        "tasks": board.tasks,
        "profile_thresholds": PROFILE_THRESHOLDS.round(6).tolist(),
        "entries": [_aggregate_entry(entry) for entry in board.entries],
    }


def _aggregate_entry(entry: AggregateEntry) -> dict[str, Any]:
    band = entry.profile_band
    return {
        **{key: getattr(entry, key) for key in ("rank", "tied", "algo", "seeds", "iqm")},
        "iqm_interval_95": entry.iqm_interval,
        **{key: getattr(entry, key) for key in ("median", "mean", "optimality_gap")},
        "profile": entry.profile.tolist(),
        "profile_band_95": None if band is None else [band[0].tolist(), band[1].tolist()],
    }


def _report(report: BaselineReport, source: str) -> dict[str, Any]:
    return {
        "baseline": source,
        "tolerance": report.tolerance,
        "regressed": len(report.regressed),
        "groups": [_comparison(comparison) for comparison in report.comparisons],
        "without_baseline": [_pair(group) for group in report.without_baseline],
        "only_in_baseline": [_pair(group) for group in report.only_in_baseline],
    }


def _pair(group: ScoreGroup) -> dict[str, str]:
    return {"algo": group.algo, "name": group.name, "task": group.task}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    group, baseline, difference = comparison.group, comparison.baseline, comparison.difference
    return {
        **_pair(group),
        "verdict": comparison.verdict,
        "regressed": comparison.regressed,
        "last_mean": float(group.last.mean()) if group.scored else None,
        "seeds": len(group.scored),
        "steps": group.steps if group.scored else None,
        "without_score": len(group.without_score),
        "baseline_name": baseline.name,
        "baseline_mean": float(baseline.last.mean()),
        "baseline_seeds": len(baseline.scored),
        "baseline_steps": baseline.steps,
        "difference": None if difference is None else difference.value,
        "difference_interval_95": None if difference is None else (difference.low, difference.high),
        "basis": None if difference is None else difference.basis,
        "far_below": comparison.far_below,
        "probability_of_improvement": comparison.probability,
        "probability_interval_95": comparison.probability_interval,
        "config_changes": {key: {"baseline": old, "now": new} for key, (old, new) in comparison.config_changes.items()},
    }


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Pairs become two columns, a changed config becomes JSON text, and what is listed by run is left out."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in ("steps", "baseline_steps") or "interval" in key:
            flat[f"{key}_low"], flat[f"{key}_high"] = value if value is not None else (None, None)
        elif key == "config_changes":
            flat[key] = json.dumps(value)
        elif key != "config_differences" and not isinstance(value, list):
            flat[key] = value
    return flat
