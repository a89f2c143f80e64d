"""Masked PPO beside sb3-contrib's MaskablePPO: python -m benchmarks.masks [--seeds ...] [--steps N].

The task is sb3-contrib's own example, InvalidActionEnvDiscrete: 80 actions, of which 60 are ruled out in each state and one is
right; an episode of 100 steps returns up to 100. Both libraries have the same hyperparameters, networks and number of steps, and
take turns, each run in a fresh process. The last policy is evaluated with masks and deterministic actions. `unmasked` is ours
without masks.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.__main__ import COMMON, keep, machine
from benchmarks.environments import ROOT, install, versions
from benchmarks.runner import Entry, measure

OUTPUT = ROOT / "results" / "masks" / "beside_sb3_contrib.json"
SETTINGS: dict[str, Any] = {
    "env": {"dim": 80, "n_invalid_actions": 60},
    "num_steps": 64,
    "minibatch": 64,
    "epochs": 10,
    "lr": 3e-4,
    "gamma": 0.4,
    "gae_lambda": 0.95,
    "hidden": [64, 64],
    "episodes": 20,
}
"""Those of sb3-contrib's own test of the task, which are its defaults but for `num_steps` and `gamma`."""
ENTRIES = {"ours": ("ours", True), "sb3_contrib": ("sb3_contrib", True), "unmasked": ("ours", False)}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masks", description=__doc__)
    parser.add_argument("--seeds", default="100,101,102,103,104")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument(
        "--python", type=Path, help="an interpreter that has the packages, instead of a new environment"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args(arguments)
    python: Path | None = options.python or install("sb3_contrib").python
    assert python is not None, "the packages could not be installed: see .bench/sb3_contrib.json"
    work = {"kind": "masks", **SETTINGS, "steps": options.steps}
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ENTRIES}
    for seed in options.seeds.split(","):
        for name, (library, masks) in ENTRIES.items():
            result = measure(Entry(library, 1), python, {**work, "seed": int(seed), "masks": masks})["values"]
            found[name][seed] = {key: round(value, 3) for key, value in result.items()}
            print(f"{name}, seed {seed}: {found[name][seed]}", flush=True)
    for name, runs in found.items():
        record = {
            "at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": f"python -m benchmarks.masks --seeds {options.seeds} --steps {options.steps}",
            **machine(),
            "versions": versions(python, ("axiomrl", "sb3-contrib", "stable-baselines3", *COMMON)),
            **work,
            "runs": runs,
            "mean_return": round(mean(run["mean_return"] for run in runs.values()), 3),
            "mean_seconds": round(mean(run["seconds"] for run in runs.values()), 3),
        }
        keep(options.output, name, record)
        print(f"{name}: return {record['mean_return']}, {record['mean_seconds']} s", flush=True)


if __name__ == "__main__":
    main()
