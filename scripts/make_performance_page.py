"""Writes the tables of docs/performance.md from the data files under results/performance/."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import geometric_mean, mean, median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "results" / "performance"
PAGE = ROOT / "docs" / "performance.md"
NO_LONGER = "ours compiled"
"""A variant that older records also have."""
MEMORY_UNIT = "bytes/step"
GPU_LEARNING = {
    "sac-halfcheetah-overlap": ("controls/sac_pendulum_overlapped",),
    "td3-halfcheetah-overlap": ("controls/td3_pendulum_overlapped",),
}
"""Results of the same code on such a GPU, beside its speed, where the case itself was not trained over seeds."""


def read(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    path = folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


UNTUNED = (
    "ppo-walker2d",
    "ppo-acrobot",
    "a2c-acrobot",
    "dqn-mountaincar",
    "sac-hopper",
    "td3-walker2d",
    "sac-ant",
)
"""Cases on tasks that nothing was tuned on; `benchmarks.cases` has the same list."""


def untuned_table(records: dict[str, Any]) -> list[str]:
    """How many times as fast as Stable-Baselines3, and the geometric mean."""
    lines = ["| case | ours, steps/s | sb3, steps/s | ratio | rounds | measured |", "|---|---|---|---|---|---|"]
    medians = []
    for case in UNTUNED:
        if case in records:
            values = records[case]["metrics"]["steps_per_second"]
            ratio = values["ratios"]["ours"]["sb3"]
            medians.append(ratio["median"])
            raw = records[case]["raw"]
            rates = [
                f"{median(run['steps_per_second'] for run in raw[f'{who}, 1 thread']):,.0f}" for who in ("ours", "sb3")
            ]
            cells = [case, *rates, _ratio(ratio), str(records[case]["rounds"]), records[case]["at_utc"][:10]]
            lines.append(f"| {' | '.join(cells)} |")
    if medians:
        lines.append(f"| geometric mean | | | **{geometric_mean(medians):.2f} ×** | | |")
    return lines


def cpu_table(records: dict[str, Any], learning: dict[str, Any]) -> list[str]:
    """Per case, how many times as fast as the fastest other library, median and spread over the rounds; and what it learns."""
    lines = [
        "| case | fastest other library | ours | rounds | measured | mean return after training |",
        "|---|---|---|---|---|---|",
    ]
    for case, record in records.items():
        if case in UNTUNED:
            continue
        for metric, values in record["metrics"].items():
            peer = values["fastest_peer"]
            ratios = values["ratios"]["ours"]
            name = f"{case}, {metric}" if len(record["metrics"]) > 1 else case
            unit = " (less is better)" if values["unit"] == MEMORY_UNIT else ""
            day = record["at_utc"][:10]
            cells = [_ratio(ratios.get(peer)), str(record["rounds"]), day, _learned(learning.get(case))]
            beside = f"{peer} (of {len(ratios)})"
            lines.append(f"| {name}{unit} | {beside} | {' | '.join(cells)} |")
    return lines


def _learned(record: dict[str, Any] | None) -> str:
    """The mean over the seeds of each library's return, and the range."""
    if record is None:
        return "–"
    returns = {who: list(scores.values()) for who, scores in record["returns"].items() if who != NO_LONGER}
    shown = (f"{who} {sum(own) / len(own):.0f} ({min(own):.0f} to {max(own):.0f})" for who, own in returns.items())
    return f"{min(map(len, returns.values()))} seeds, {record['steps']:,} steps: {', '.join(shown)}"


def _ratio(spread: dict[str, float] | None) -> str:
    return "–" if spread is None else f"{spread['median']:.2f} × ({spread['min']:.2f} to {spread['max']:.2f})"


def gpu_table(records: dict[str, Any], learning: dict[str, Any]) -> list[str]:
    lines = ["| case | steps/s, median and range | rounds | learning | command |", "|---|---|---|---|---|"]
    for case, record in records.items():
        runs = record.get("runs", [])
        learned = "; ".join(map(_measured, GPU_LEARNING.get(case, ()))) or _learned(_by_device(learning.get(case)))
        if runs:
            scores, seconds = [run["mean"] for run in runs], [run["seconds"] for run in runs]
            learned = f"{len(runs)} seeds: {min(scores):.1f} to {max(scores):.1f} after {min(seconds):.1f} to {max(seconds):.1f} s"
        rates = record["rounds"]
        rate = f"{record['steps_per_second']:,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
        lines.append(f"| {case} | {rate} | {len(rates)} | {learned} | `{record['command']}` |")
    return lines


def _by_device(records: dict[str, Any] | None) -> dict[str, Any] | None:
    """What was learned on each device, in the form of a record of several libraries."""
    if not records:
        return None
    names = {"cuda": "GPU", "cpu": "CPU"}
    returns = {names[device]: records[device]["returns"] for device in names if device in records}
    return {"steps": next(iter(records.values()))["steps"], "returns": returns}


def _measured(name: str) -> str:
    """What a result file says in short."""
    record = read(f"{name}.json", FOLDER.parent)
    return f"{record['preset']}, {len(record['runs'])} seeds: {record['last_mean']:,.1f}"


def growth_table(record: dict[str, Any]) -> list[str]:
    lines = ["| study | from | to | steps/s | largest exponent of a stage, last step |", "|---|---|---|---|---|"]
    for name in ("envs", "widths", "batches"):
        if name in record:
            points = record[name]["points"]
            rates = " · ".join(f"{point['steps_per_second']:,.0f}" for point in points)
            steepest = max(values[-1] for values in record[name]["slopes"].values())
            lines.append(f"| {name} | {points[0]['x']:,} | {points[-1]['x']:,} | {rates} | {steepest:.2f} |")
    return lines


def overlap_table(record: dict[str, Any]) -> list[str]:
    lines = [
        "| work | overlapped / serial | rounds | mean return, serial / overlapped |",
        "|---|---|---|---|",
    ]
    for case, found in record.items():
        if "ratio" in found:  # the rest says how it was measured
            returns = [
                list(record["scores"][f"{case}, {name}"]["last_mean_by_seed"].values())
                for name in ("serial", "overlapped")
                if f"{case}, {name}" in record["scores"]
            ]
            learned = " / ".join(f"{mean(values):,.1f} ({len(values)} seeds)" for values in returns) or "–"
            lines.append(f"| {case} | {_ratio(found['ratio'])} | {len(found['ratio']['rounds'])} | {learned} |")
    return lines


def tables() -> dict[str, list[str]]:
    return {
        "untuned": untuned_table(read("cpu.json")),
        "cpu": cpu_table(read("cpu.json"), read("learning.json")),
        "gpu": gpu_table(read("gpu.json"), read("gpu_learning.json")),
        "growth": growth_table(read("growth.json")),
        "overlap": overlap_table(read("overlap.json")),
    }


def updated(text: str) -> str:
    """The page with each marked part replaced by its table."""
    for name, lines in tables().items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        before, rest = text.split(begin)
        text = f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
