"""What a case showed: a record for the data file, and lines for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.cases import NOT_MEASURED, Case, Metric
from benchmarks.ratios import Kind, Ratio, best, compare, shares
from benchmarks.runner import Entry, Outcome

Series = dict[str, list[float]]
"""Values by library, one per round."""


def series_of(outcome: Outcome, metric: Metric) -> tuple[Series, dict[str, int]]:
    """(values of each library with the number of threads that suits it best, that number)."""
    by_threads: dict[str, dict[int, list[float]]] = {}
    for entry, results in outcome.results.items():
        by_threads.setdefault(entry.library, {})[entry.threads] = [result["values"][metric.name] for result in results]
    threads = {name: best(options, metric.kind) for name, options in by_threads.items()}
    return {name: by_threads[name][count] for name, count in threads.items()}, threads


def ratios_of(series: Series, kind: Kind) -> dict[str, Ratio]:
    """Ours to each peer, over the rounds that the peer took part in, which are the first ones."""
    ours = series.get("ours", [])
    peers = {name: values for name, values in series.items() if name != "ours" and ours}
    return {peer: compare(ours[: len(values)], values, kind) for peer, values in peers.items()}


def fastest_peer(series: Series, kind: Kind) -> str | None:
    peers = {name: values for name, values in series.items() if name != "ours"}
    return best(peers, kind) if peers else None


def record_of(case: Case, outcome: Outcome, work: Mapping[str, Any]) -> dict[str, Any]:
    """Everything worth keeping of a case, as JSON values."""
    metrics = {}
    for metric in case.metrics:
        series, threads = series_of(outcome, metric)
        metrics[metric.name] = {
            "unit": metric.unit,
            "ratio": "peer/ours" if metric.kind == "seconds" else "ours/peer",
            "threads": threads,
            "fastest_peer": fastest_peer(series, metric.kind),
            "ratios": {"ours": {peer: ratio.to_json() for peer, ratio in ratios_of(series, metric.kind).items()}},
        }
    return {
        "work": dict(work),
        "metrics": metrics,
        "raw": {str(entry): [_rounded(result) for result in results] for entry, results in outcome.results.items()},
        "stages": {str(entry): stages for entry, stages in stages_of(outcome).items()},
        "failed": {str(entry): reason for entry, reason in outcome.failed.items()},
        "not_measured": {peer: reason for (peer, name), reason in NOT_MEASURED.items() if name == case.name},
    }


def _rounded(result: Mapping[str, Any]) -> dict[str, Any]:
    flat = {**result["values"], **{name: value for name, value in result.items() if name not in ("values", "stages")}}
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in flat.items()}


def stages_of(outcome: Outcome) -> dict[Entry, dict[str, float]]:
    """Median share of each stage over the rounds, for the entries that report stages."""
    found: dict[Entry, dict[str, float]] = {}
    for entry, results in outcome.results.items():
        rounds = [shares(result["stages"], result["seconds"]) for result in results if "stages" in result]
        names = dict.fromkeys(name for shared in rounds for name in shared)
        if rounds:
            found[entry] = {name: round(median(shared.get(name, 0.0) for shared in rounds), 4) for name in names}
    return found


def lines_of(case: Case, outcome: Outcome) -> list[str]:
    """The case as a table: one line per library, ours compared with it, the fastest peer marked."""
    lines = []
    for metric in case.metrics:
        series, threads = series_of(outcome, metric)
        ratios = ratios_of(series, metric.kind)
        fastest = fastest_peer(series, metric.kind)
        meaning = "share of its bytes" if metric.kind == "bytes" else "times as fast"
        lines.append(f"{case.name}: {metric.name} [{metric.unit}]; ratio: ours {meaning}")
        for name, values in series.items():
            ratio = str(ratios.get(name, ""))
            mark = "*" if name == fastest else " "
            lines.append(f"  {mark} {name:<16} {threads[name]} thr {_number(median(values)):>12}   {ratio}")
    for entry, stages in stages_of(outcome).items():
        lines.append(f"    {entry}: " + ", ".join(f"{name} {share:.0%}" for name, share in stages.items()))
    lines += [f"    {entry}: failed: {reason}" for entry, reason in outcome.failed.items()]
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.4g}"


def summary(records: Sequence[tuple[Case, Mapping[str, Any]]]) -> list[str]:
    """One line per number: ours against the fastest peer."""
    lines = [f"{'case':<38} {'fastest peer':<16} ratio (min..max)"]
    for case, record in records:
        for name, metric in record["metrics"].items():
            peer = metric["fastest_peer"]
            label = case.name if len(case.metrics) == 1 else f"{case.name}: {name}"
            if peer in metric["ratios"]["ours"]:
                ratio = Ratio(tuple(metric["ratios"]["ours"][peer]["rounds"]))
                lines.append(f"{label:<38} {peer:<16} {ratio}")
    return lines
