"""Writes the tables of measured results into docs/results.md (all of them), README.md (a selection) and docs/defaults.md, from
results/*.json and results/defaults/*.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.utils.bootstrap import bootstrap_interval
from rl_training.utils.spaces import Array
from rl_training.zoo.result_files import FIRST_HELD_OUT_SEED, NOT_HELD_OUT, NOT_HELD_OUT_NOTE
from rl_training.zoo.statistics import student_interval

ROOT = Path(__file__).resolve().parent.parent
# Chosen by algorithm and environment, not by score: what people ask for first.
SELECTION = (
    *("ppo/cartpole", "ppo/pendulum", "ppo/lunarlander", "dqn/cartpole", "dqn/lunarlander"),
    *("sac/pendulum", "sac/halfcheetah", "td3/pendulum", "td3/halfcheetah", "rainbow/lunarlander"),
    *("tqc/halfcheetah", "tqc/hopper", "tqc/walker2d"),
)


def results_table(folder: Path, presets: tuple[str, ...] | None = None, link: str = "results") -> str:
    """A Markdown table with one row per data file, or per data file of the presets named; `link` leads to the folder."""
    lines = [
        "| preset | steps | seeds | episodes | mean return | 95 % interval | lowest seed | minutes | on | data |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if presets is not None and record["preset"] not in presets:
            continue
        low, high = record["last_interval_95"]
        steps = max(run["steps"] for run in record["runs"])
        seconds = [run["seconds"] for run in record["runs"] if run["seconds"] is not None]  # unknown for continued runs
        minutes = f"{sum(seconds) / len(seconds) / 60:.1f}" if seconds else "–"
        lines.append(
            f"| `{record['preset']}` | {steps:,} | {_seeds(record)} | {record['episodes_per_seed']} "
            f"| {record['last_mean']:.1f} | {low:.1f} to {high:.1f} | {record['last_lowest']:.1f} "
            f"| {minutes} | {record['system']['gpu'] or 'CPU'} | [{path.name}]({link}/{path.name}) |"
        )
    return "\n".join([*lines, "", NOT_HELD_OUT_NOTE] if any(NOT_HELD_OUT in line for line in lines) else lines)


def _seeds(record: Mapping[str, Any]) -> str:
    """The seeds as a range, marked where they are not held out."""
    seeds = [run["seed"] for run in record["runs"]]
    mark = "" if min(seeds) >= FIRST_HELD_OUT_SEED else NOT_HELD_OUT
    return f"{len(seeds)} ({min(seeds)} to {max(seeds)}){mark}"


def defaults_table(path: Path) -> str:
    """What class defaults learned: a row per algorithm and task."""
    lines = [
        "| algorithm | task | steps | mean return | 95 % interval | lowest seed | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in _records(path):
        scores = _scores(record)
        lines.append(
            f"| {record['algo']} | {record['env']} | {record['steps']:,} | {_mean_and_interval(scores)} "
            f"| {scores.min():.1f} | {_seed_range(record['returns'])} |"
        )
    return "\n".join(lines)


def beside_table(path: Path) -> str:
    """Each library with its own defaults: a row per algorithm and task."""
    lines = [
        "| algorithm | task | AxiomRL | 95 % interval | SB3 | 95 % interval | difference, 95 % interval | seconds | SB3's |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    records = {(record["algo"], record["env"], record["library"]): record for record in _records(path)}
    for (algo, env, library), ours in records.items():
        theirs = records.get((algo, env, "sb3"))
        if library != "ours" or theirs is None:
            continue
        difference = student_interval(_scores(ours), _scores(theirs))
        assert difference is not None, "several seeds on each side"
        verdict = "" if difference[0] <= 0 <= difference[1] else ", **better**" if difference[0] > 0 else ", **worse**"
        lines.append(
            f"| {algo} | {env} | {_mean_and_interval(_scores(ours), 2)} | {_mean_and_interval(_scores(theirs), 2)} "
            f"| {difference[0]:.2f} to {difference[1]:.2f}{verdict} | {ours['mean_seconds']:.0f} | {theirs['mean_seconds']:.0f} |"
        )
    return "\n".join(lines)


def _records(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8")).values()) if path.exists() else []


def _scores(record: Mapping[str, Any]) -> Array:
    return np.array(list(record["returns"].values()))


def _mean_and_interval(scores: Array, digits: int = 1) -> str:
    low, high = bootstrap_interval(scores)
    return f"{scores.mean():.{digits}f} | {low:.{digits}f} to {high:.{digits}f}"


def _seed_range(seeds: Mapping[str, Any]) -> str:
    numbers = sorted(map(int, seeds))
    return f"{len(numbers)} ({numbers[0]} to {numbers[-1]})"


def with_table(text: str, table: str, name: str = "results") -> str:
    """A page's text with the part between the marks of that name replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n{table}\n{end}{after}"


def updated_pages(root: Path) -> dict[Path, str]:
    """The pages with tables, as the data files want them."""
    tables = {
        root / "README.md": results_table(root / "results", SELECTION),
        root / "docs" / "results.md": results_table(root / "results", link="../results"),
    }
    pages = {path: with_table(path.read_text(encoding="utf-8"), table) for path, table in tables.items()}
    defaults, data = root / "docs" / "defaults.md", root / "results" / "defaults"
    text = with_table(defaults.read_text(encoding="utf-8"), defaults_table(data / "classic.json"), "classic")
    return {**pages, defaults: with_table(text, beside_table(data / "beside_sb3.json"), "beside")}


if __name__ == "__main__":
    for page, text in updated_pages(ROOT).items():
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")
