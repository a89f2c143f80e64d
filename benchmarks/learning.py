"""What the benchmark's runs learn: python -m benchmarks.learning [--cases ...] [--peers ...] [--seeds ...].

Speed says little of a run that learns less. So the same work with the same hyperparameters is trained to its end here, over
several seeds, by us and by others, and the last policy is evaluated in plain Gymnasium with deterministic actions.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.__main__ import COMMON, DISTRIBUTIONS, keep, machine
from benchmarks.cases import find_case
from benchmarks.environments import ROOT, install, ours, versions
from benchmarks.runner import Entry, measure

RESULTS = ROOT / "results" / "performance" / "learning.json"
TOTALS = {
    "ppo-cartpole": 100_000,
    "ppo-halfcheetah": 200_000,
    "dqn-cartpole": 50_000,
    "sac-pendulum": 20_000,
    "td3-pendulum": 20_000,
    "sac-halfcheetah": 20_000,
    "td3-halfcheetah": 20_000,
}
"""Environment steps of each case."""
PEERS = ("sb3",)
"""The libraries whose scripts can do it."""
EPISODES = 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning", description=__doc__)
    parser.add_argument("--cases", default=",".join(TOTALS), help=f"comma-separated, of: {', '.join(TOTALS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"comma-separated, of: {', '.join(PEERS)}")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    peers = [name for name in options.peers.split(",") if name]
    pythons = {"ours": ours().python, **{peer: install(peer).python for peer in peers}}
    seeds = [int(seed) for seed in options.seeds.split(",")]
    run = {
        "command": f"python -m benchmarks.learning --peers {options.peers} --seeds {options.seeds}",
        **machine(),
        "versions": {
            name: versions(python, (*DISTRIBUTIONS[name], *COMMON)) for name, python in pythons.items() if python
        },
    }
    taking_part = [Entry(library, 1) for library in ("ours", *peers)]
    for name in options.cases.split(","):
        work = {**find_case(name).work_for(quick=False), "total": TOTALS[name], "episodes": EPISODES}

        def score(entry: Entry, seed: int, work: dict[str, Any] = work) -> float:
            python = pythons[entry.library]
            assert python is not None, f"{entry.library} could not be installed"
            return float(measure(entry, python, {**work, "seed": seed})["values"]["mean_return"])

        returns: dict[str, dict[int, float]] = {}
        for entry in taking_part:
            with ThreadPoolExecutor(options.jobs) as pool:
                scores = list(pool.map(lambda seed, entry=entry: score(entry, seed), seeds))
            returns[entry.library] = dict(zip(seeds, scores))
            print(f"{name}, {entry.library}: {json.dumps(returns[entry.library])}", flush=True)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        keep(
            options.output,
            name,
            {"at_utc": now, **run, "steps": TOTALS[name], "episodes": EPISODES, "returns": returns},
        )


if __name__ == "__main__":
    main()
