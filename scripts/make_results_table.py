"""Writes the tables of measured results into docs/results.md (all of them) and README.md (a selection), from results/*.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.zoo.result_files import FIRST_HELD_OUT_SEED, NOT_HELD_OUT, NOT_HELD_OUT_NOTE

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
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


def with_table(text: str, table: str) -> str:
    """A page's text with the part between the marks replaced."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def updated_pages(root: Path) -> dict[Path, str]:
    """The pages with tables, as the data files want them."""
    tables = {
        root / "README.md": results_table(root / "results", SELECTION),
        root / "docs" / "results.md": results_table(root / "results", link="../results"),
    }
    return {path: with_table(path.read_text(encoding="utf-8"), table) for path, table in tables.items()}


if __name__ == "__main__":
    for page, text in updated_pages(ROOT).items():
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")
