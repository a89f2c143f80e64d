"""What class defaults learn, without a preset: python -m benchmarks.defaults [--cases ...] [--seeds ...] [--jobs N].

`classic` trains every algorithm's defaults on a task of its family. `beside-sb3` trains PPO, DQN and SAC beside
Stable-Baselines3, each library with its own defaults, for the same number of environment steps, on tasks that no setting was
chosen on. The last policy is evaluated in plain Gymnasium with deterministic actions. Seeds from 100 up are held out: no default
was chosen on them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.__main__ import COMMON, keep, machine
from benchmarks.environments import ROOT, install, versions
from benchmarks.runner import Entry, MeasurementError, measure

FOLDER = ROOT / "results" / "defaults"
EPISODES = 20
PACKAGES = ("axiomrl", "stable-baselines3", *COMMON, "minigrid", "flappy-bird-gymnasium", "highway-env")

CARTPOLE = (
    *("PPO", "A2C", "TRPO", "DiscreteSAC", "DQN", "DoubleDQN", "DuelingDQN", "NoisyDQN", "PrioritizedDQN", "NStepDQN"),
    *("C51", "QRDQN", "IQN", "Rainbow"),
)
PENDULUM = ("SAC", "TD3", "DDPG", "TQC", "CrossQ", "REDQ", "DroQ")
DISCRETE_TASKS = ("MiniGrid-Empty-5x5-v0", "FlappyBird-v0", "Taxi-v4", "highway-fast-v0")
CONTINUOUS_TASKS = ("Reacher-v5", "Swimmer-v5")
EQUAL_STEPS = {"highway-fast-v0": 20_000}
"""50,000 where nothing is said; highway-fast steps 70 times a second."""


@dataclass(frozen=True)
class Case:
    """One algorithm's defaults on one task."""

    name: str
    library: str
    algo: str
    env: str
    steps: int


def classic() -> Iterator[Case]:
    for algo in CARTPOLE:
        yield Case(f"{algo} on CartPole-v1", "ours", algo, "CartPole-v1", 100_000)
    for algo in PENDULUM:
        yield Case(f"{algo} on Pendulum-v1", "ours", algo, "Pendulum-v1", 20_000)
    yield Case("PPO on Pendulum-v1", "ours", "PPO", "Pendulum-v1", 200_000)


def beside_sb3() -> Iterator[Case]:
    tasks = {"PPO": (*DISCRETE_TASKS, *CONTINUOUS_TASKS), "DQN": DISCRETE_TASKS, "SAC": CONTINUOUS_TASKS}
    for algo, envs in tasks.items():
        for env in envs:
            for library in ("ours", "sb3"):
                yield Case(f"{algo} on {env}, {library}", library, algo, env, EQUAL_STEPS.get(env, 50_000))


SUITES = {"classic": classic, "beside-sb3": beside_sb3}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.defaults", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--cases", help="only cases whose name contains one of these, comma-separated")
    parser.add_argument("--seeds", default="100,101,102,103,104")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument(
        "--python", type=Path, help="an interpreter that has the packages, instead of a new environment"
    )
    parser.add_argument("--output", type=Path, help="data file (results/defaults/SUITE.json)")
    options = parser.parse_args(arguments)
    python = options.python or install("defaults").python
    assert python is not None, "the packages could not be installed: see .bench/defaults.json"
    wanted = options.cases.split(",") if options.cases else [""]
    cases = [case for case in SUITES[options.suite]() if any(part in case.name for part in wanted)]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    output = options.output or FOLDER / f"{options.suite.replace('-', '_')}.json"
    run = {
        "command": f"python -m benchmarks.defaults {options.suite} --seeds {options.seeds}",
        "tuned_on": "seeds below 100",
        **machine(),
        "versions": versions(python, PACKAGES),
    }
    with ThreadPoolExecutor(options.jobs) as pool:  # case by case, all seeds of one before the next
        pending = [(case, [pool.submit(partial(_measured, case, seed, python)) for seed in seeds]) for case in cases]
        for case, futures in pending:
            results = dict(zip(seeds, [future.result() for future in futures]))
            failed = [f"seed {seed}: {found['error']}" for seed, found in results.items() if "error" in found]
            if failed:
                print(f"{case.name}: failed: {failed[0]}", flush=True)
                continue
            returns = {str(seed): round(found["mean_return"], 3) for seed, found in results.items()}
            seconds = round(sum(found["seconds"] for found in results.values()) / len(results), 1)
            print(
                f"{case.name}: {sum(returns.values()) / len(returns):.1f} {list(returns.values())} {seconds} s",
                flush=True,
            )
            record = {"at_utc": datetime.now(UTC).isoformat(timespec="seconds"), **run, **vars(case)}
            keep(output, case.name, {**record, "episodes": EPISODES, "returns": returns, "mean_seconds": seconds})


def _measured(case: Case, seed: int, python: Path) -> dict[str, Any]:
    work = {"kind": "defaults", **vars(case), "seed": seed, "episodes": EPISODES}
    try:
        return dict(measure(Entry(case.library, 1), python, work)["values"])
    except MeasurementError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    main()
