"""What the runs of benchmarks.gpu learn: python -m benchmarks.gpu_learning [--device cuda|cpu] [--jobs N] [CASE ...].

The same configuration is trained over several seeds and its last policy evaluated; on a CPU too, where the same code takes other
ways, so that a speed that costs learning would be seen.
"""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from benchmarks.gpu import SEEDS, actor_critic, learned
from rl_training.experiment.run.metadata import system_info
from rl_training.experiment.versions import versions

RESULTS = Path("results/performance/gpu_learning.json")
CASES = {"sac-halfcheetah": "sac", "td3-halfcheetah": "td3"}
STEPS, EPISODES = 30_000, 10


def mean_return(algo: str, device: str, seed: int) -> float:
    agent = learned(actor_critic(algo, total_timesteps=STEPS, device=device, seed=seed))
    score = float(agent.evaluate(EPISODES, seed=10_000 + seed).mean)
    agent.close()
    return score


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_learning", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)} (all)")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=len(SEEDS), help=f"runs side by side ({len(SEEDS)})")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        pending = {
            case: [pool.submit(mean_return, CASES[case], options.device, seed) for seed in SEEDS]
            for case in options.cases or CASES
        }
        for case, runs in pending.items():
            returns = {str(seed): round(run.result(), 1) for seed, run in zip(SEEDS, runs)}
            print(case, options.device, json.dumps(returns), flush=True)
            _store(options.output, case, options.device, returns)


def _store(path: Path, case: str, device: str, returns: dict[str, float]) -> None:
    records = json.loads(path.read_text()) if path.exists() else {}
    records.setdefault(case, {})[device] = {
        "at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python -m benchmarks.gpu_learning --device {device} {case}",
        "versions": versions(),
        "system": system_info(device),
        "steps": STEPS,
        "episodes": EPISODES,
        "returns": returns,
    }
    path.write_text(json.dumps(records, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
