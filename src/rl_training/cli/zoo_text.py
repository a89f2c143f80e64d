"""What `axiomrl zoo` prints: tables and the page of one preset. Starts without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, get_args

from rl_training.experiment.config.yaml_files import dump_yaml
from rl_training.experiment.registry import ALGORITHMS
from rl_training.utils.sparkline import sparkline
from rl_training.zoo.catalog import CatalogEntry, Tier, preset_values
from rl_training.zoo.result_files import NOT_HELD_OUT_NOTE, ResultFile, mean_curve
from rl_training.zoo.values import table

NONE = "–"


def list_text(entries: Sequence[CatalogEntry]) -> str:
    """One row per preset."""
    rows = [("preset", "environment", "tier", "steps", "score", "95 % interval", "seeds", "minutes", "measured on")]
    for entry in entries:
        result = entry.result
        known = (
            (
                _score(result.last_mean),
                _interval(result.last_interval),
                result.seed_count,
                _minutes(result.mean_seconds),
                result.hardware,
            )
            if result
            else (NONE,) * 5
        )
        rows.append((entry.preset, entry.env_id, entry.tier, f"{entry.total_timesteps:,}", *known))
    if not entries:
        return "no preset fits these filters"
    tiers = [entry.tier for entry in entries]
    counts = ", ".join(f"{tiers.count(tier)} {tier}" for tier in get_args(Tier) if tier in tiers)
    summary = f"{len(entries)} presets: {counts}. One of them: axiomrl zoo show PRESET"
    marked = any(entry.result is not None and not entry.result.held_out for entry in entries)
    return "\n".join([*table(rows, right=(3, 4, 6, 7)), "", *([NOT_HELD_OUT_NOTE] if marked else []), summary])


def show_values(entry: CatalogEntry) -> dict[str, Any]:
    """The page of one preset as JSON values."""
    values = {**entry.to_dict(), "preset_config": preset_values(entry.preset)}
    result = entry.result
    if result is None:
        return values
    return {
        **values,
        "measured_at_utc": result.measured_at_utc,
        "versions": result.versions,
        "system": result.system,
        "config": result.config,
        "runs": [{**vars(seed), "curve": [list(point) for point in seed.curve]} for seed in result.seeds],
    }


def show_text(entry: CatalogEntry) -> str:
    """The page of one preset."""
    info = ALGORITHMS[entry.algo]
    lines = [f"{entry.preset}: {info.name} on {entry.env_id} ({entry.family})", info.summary, ""]
    lines += _result_lines(entry.result) if entry.result else ["score     not measured yet, so nothing is claimed"]
    lines += [f"tier      {entry.tier}", ""]
    if entry.result:
        lines += [*_seed_table(entry.result), ""]
    lines.append(f"config, as far as the preset sets it (`axiomrl train {entry.preset} --dry-run` shows every value)")
    lines += [f"  {line}" for line in dump_yaml(preset_values(entry.preset)).splitlines()]
    if entry.result:
        lines += ["", f"versions  {', '.join(f'{name} {version}' for name, version in entry.result.versions.items())}"]
    lines += ["", f"train     axiomrl zoo run {entry.preset}"]
    lines += [f"{'repeat' if entry.result else 'measure':<10}{entry.command}"]
    return "\n".join(lines)


def benchmark_text(records: Sequence[Mapping[str, Any]]) -> str:
    """The table at the end of a benchmark; a preset with fewer seeds than asked for is marked."""
    rows = [("preset", "steps", "seeds", "last", "95 % interval", "lowest", "best", "minutes")]
    for record in records:
        runs, asked = record["runs"], record["seeds_asked"]
        seconds = [run["seconds"] for run in runs if run["seconds"] is not None]
        rows.append(
            (
                record["preset"],
                f"{max(run['steps'] for run in runs):,}",
                str(len(runs)) if len(runs) >= asked else f"{len(runs)} of {asked}!",
                _score(record["last_mean"]),
                _interval(record["last_interval_95"]),
                _score(record["last_lowest"]),
                _score(record["best_mean"]),
                _minutes(fmean(seconds) if seconds else None),
            )
        )
    short = [record["preset"] for record in records if record["seeds"] < record["seeds_asked"]]
    note = ["", f"! fewer seeds than the manifest asks for: {', '.join(short)}"] if short else []
    return "\n".join(["", *table(rows, right=(1, 3, 5, 6, 7)), *note])


def _result_lines(result: ResultFile) -> list[str]:
    episodes = f"{len(result.seeds)} seeds, {result.episodes_per_seed} episodes each"
    lines = [
        f"score     {_score(result.last_mean)} (95 % interval {_interval(result.last_interval)}): last checkpoints, {episodes}",
        f"best      {_score(result.best_mean)}: best checkpoints, picked among many evaluations, so this flatters",
        f"steps     {max(seed.steps for seed in result.seeds):,}",
        f"time      {_minutes(result.mean_seconds)} minutes a run, on {result.hardware}",
    ]
    if not result.held_out:
        lines.append(f"seeds     {NOT_HELD_OUT_NOTE}")
    curve = mean_curve(result)
    if curve:
        means = [mean for _, mean in curve]
        drawn = sparkline(means, min(means), max(means))
        span = f"{_score(min(means))} to {_score(max(means))}"
        lines.append(f"curve     {drawn}  {span}, evaluations up to step {curve[-1][0]:,}, mean of the seeds")
    return lines


def _seed_table(result: ResultFile) -> list[str]:
    rows = [["seed", "last", "best", "steps", "seconds"]]
    with_success = any(seed.last_success is not None for seed in result.seeds)
    if with_success:
        rows[0].append("success")
    for seed in result.seeds:
        seconds = NONE if seed.seconds is None else f"{seed.seconds:.1f}"
        row = [str(seed.seed), _score(seed.last), _score(seed.best), f"{seed.steps:,}", seconds]
        if with_success:
            row.append(NONE if seed.last_success is None else f"{seed.last_success:.0%}")
        rows.append(row)
    return table(rows, right=range(len(rows[0])))


def _score(value: float) -> str:
    return f"{value:,.1f}"


def _interval(bounds: Sequence[float]) -> str:
    return f"{_score(bounds[0])} to {_score(bounds[1])}"


def _minutes(seconds: float | None) -> str:
    return NONE if seconds is None else f"{seconds / 60:.1f}"
