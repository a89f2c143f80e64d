"""Writes the table of measured results into README.md from the data files under results/."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def results_table(folder: Path) -> str:
    """A Markdown table with one row per data file."""
    lines = [
        "| preset | steps | seeds | episodes | mean return | 95 % interval | lowest seed | minutes | on | data |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        low, high = record["last_interval_95"]
        steps = max(run["steps"] for run in record["runs"])
        seconds = [run["seconds"] for run in record["runs"] if run["seconds"] is not None]  # unknown for continued runs
        minutes = f"{sum(seconds) / len(seconds) / 60:.1f}" if seconds else "–"
        lines.append(
            f"| `{record['preset']}` | {steps:,} | {record['seeds']} | {record['episodes_per_seed']} "
            f"| {record['last_mean']:.1f} | {low:.1f} to {high:.1f} | {record['last_lowest']:.1f} "
            f"| {minutes} | {record['system']['gpu'] or 'CPU'} | [{path.name}](results/{path.name}) |"
        )
    return "\n".join(lines)


def with_table(readme: str, table: str) -> str:
    """The README text with the part between the marks replaced."""
    before, rest = readme.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text(encoding="utf-8"), results_table(ROOT / "results")), encoding="utf-8")
