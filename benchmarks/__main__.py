"""Measures AxiomRL beside other libraries: python -m benchmarks [--quick] [--cases ...] [--peers ...] [--rounds R].

Every case is one record of the data file; measuring some cases again replaces only their records.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, PEERS, UNTUNED, Case, find_case
from benchmarks.environments import FOLDER, ROOT, install, ours, versions
from benchmarks.report import lines_of, record_of, summary
from benchmarks.runner import entries, run_case

RESULTS = ROOT / "results" / "performance" / "cpu.json"
QUICK_RESULTS = FOLDER / "quick.json"
DISTRIBUTIONS = {
    "ours": ("axiomrl",),
    "sb3": ("stable-baselines3",),
    "tianshou": ("tianshou",),
    "torchrl": ("torchrl", "tensordict"),
    "d3rlpy": ("d3rlpy",),
    "sample_factory": ("sample-factory",),
    "rllib": ("ray",),
}
COMMON = ("torch", "numpy", "gymnasium", "mujoco")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases and steps, sb3 only, 2 rounds: a few minutes")
    parser.add_argument(
        "--cases", type=_names, help=f"untuned, or comma-separated, of: {', '.join(case.name for case in CASES)}"
    )
    parser.add_argument("--peers", type=_names, help=f"comma-separated, of: {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, help="how often each library is measured (5; quick: 2)")
    parser.add_argument("--reinstall", action="store_true", help="make the peers' environments anew")
    parser.add_argument("--install-only", action="store_true", help="only make the peers' environments")
    parser.add_argument(
        "--output", type=Path, help="data file (results/performance/cpu.json; quick: .bench/quick.json)"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.peers or ()) - set(PEERS)
    if unknown:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    try:
        options.cases = chosen_cases(options.cases, quick=options.quick)
    except ValueError as error:
        parser.error(str(error))
    options.peers = options.peers or (["sb3"] if options.quick else list(PEERS))
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.output = options.output or (QUICK_RESULTS if options.quick else RESULTS)
    return options


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def chosen_cases(names: Sequence[str] | None, *, quick: bool) -> list[Case]:
    """The named cases, or all that belong to the run."""
    if names == ["untuned"]:
        names = UNTUNED
    if names:
        return [find_case(name) for name in names]
    return [case for case in CASES if case.in_quick or not quick]


def main(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    environments = {"ours": ours(), **{peer: install(peer, again=options.reinstall) for peer in options.peers}}
    pythons = {name: found.python for name, found in environments.items() if found.python is not None}
    not_installed = {name: found.reason for name, found in environments.items() if found.python is None}
    for name, reason in not_installed.items():
        print(f"{name} is left out: {reason}")
    if options.install_only:
        return
    run = {
        "command": " ".join(["python -m benchmarks", *arguments]),
        "rounds": options.rounds,
        "quick": options.quick,
        **machine(),
        "versions": {name: versions(python, (*DISTRIBUTIONS[name], *COMMON)) for name, python in pythons.items()},
        "not_installed": not_installed,
    }
    peers = [peer for peer in options.peers if peer in pythons]
    begin, records = time.monotonic(), []
    for case in options.cases:
        print(f"{case.name} ...", flush=True)
        taking_part = entries(case, peers, quick=options.quick)
        outcome = run_case(case, taking_part, pythons, options.rounds, quick=options.quick)
        record = record_of(case, outcome, case.work_for(quick=options.quick))
        records.append((case, record))
        keep(options.output, case.name, {"at_utc": datetime.now(UTC).isoformat(timespec="seconds"), **run, **record})
        print("\n".join(lines_of(case, outcome)), flush=True)
    print(f"\n{(time.monotonic() - begin) / 60:.1f} minutes; data in {options.output}\n")
    print("\n".join(summary(records)))


def keep(path: Path, name: str, record: dict[str, Any]) -> None:
    """Replaces the record of one case in the data file."""
    records = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**records, name: record}, indent=1, sort_keys=True) + "\n")


def machine() -> dict[str, Any]:
    """What the numbers were taken on, and how busy it was."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.exists() else []
    return names[0].split(":")[1].strip() if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main(sys.argv[1:])
