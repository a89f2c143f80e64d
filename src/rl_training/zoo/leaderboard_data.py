"""A leaderboard as JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from rl_training.zoo.comparison import BaselineReport, Comparison
from rl_training.zoo.leaderboard import (
    PROFILE_THRESHOLDS,
    AggregateBoard,
    AggregateEntry,
    Entry,
    Leaderboard,
    TaskBoard,
)
from rl_training.zoo.score_groups import ScoreGroup, SeedScore


def as_json(leaderboard: Leaderboard) -> str:
    """All of it, with every seed's score."""
    report = leaderboard.baseline
    values = {
        "schema": 1,
        "source": leaderboard.source,
        "min_seeds": leaderboard.min_seeds,
        "tasks": [_board(board, leaderboard.min_seeds) for board in leaderboard.boards],
        "aggregates": [_aggregate(board) for board in leaderboard.aggregates],
        "without_score": [_missing(group) for group in leaderboard.without_score],
        "comparison": None if report is None else _report(report, str(leaderboard.baseline_source)),
        "notes": leaderboard.notes,
    }
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def as_csv(leaderboard: Leaderboard) -> str:
    """One row per method and task; with a baseline, one row per comparison instead."""
    if leaderboard.baseline is not None:
        return _csv([_flat(_comparison(comparison)) for comparison in leaderboard.baseline.comparisons])
    rows = []
    for board in leaderboard.boards:
        for entry in board.entries:
            values = _entry(entry, leaderboard.min_seeds)
            del values["runs"], values["config_differences"], values["without_score"]
            rows.append({"task": board.task, **_flat(values)})
    return _csv(rows)


def _board(board: TaskBoard, min_seeds: int) -> dict[str, Any]:
    return {"task": board.task, "entries": [_entry(entry, min_seeds) for entry in board.entries]}


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
        "runs": [_run(run) for run in group.scored],
        "without_score": [_run(run) for run in group.without_score],
        "config_differences": group.differences,
    }


def _run(run: SeedScore) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "last": run.last,
        "best": run.best,
        "steps": run.steps,
        "status": run.status,
        "source": run.source,
    }


def _missing(group: ScoreGroup) -> dict[str, Any]:
    return {"algo": group.algo, "name": group.name, "task": group.task, "runs": [_run(run) for run in group.runs]}


def _aggregate(board: AggregateBoard) -> dict[str, Any]:
    return {
        "tasks": board.tasks,
        "profile_thresholds": PROFILE_THRESHOLDS.round(6).tolist(),
        "entries": [_aggregate_entry(entry) for entry in board.entries],
    }


def _aggregate_entry(entry: AggregateEntry) -> dict[str, Any]:
    band = entry.profile_band
    return {
        "rank": entry.rank,
        "tied": entry.tied,
        "algo": entry.algo,
        "seeds": entry.seeds,
        "iqm": entry.iqm,
        "iqm_interval_95": entry.iqm_interval,
        "median": entry.median,
        "mean": entry.mean,
        "optimality_gap": entry.optimality_gap,
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
    """Pairs become two columns; a nested value becomes JSON text."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key in ("steps", "baseline_steps") or "interval" in key:
            flat[f"{key}_low"], flat[f"{key}_high"] = value if value is not None else (None, None)
        else:
            flat[key] = json.dumps(value) if isinstance(value, dict) else value
    return flat


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
