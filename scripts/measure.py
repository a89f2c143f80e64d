"""Measures a preset over several seeds and keeps the result as a small data file under results/.

    python scripts/measure.py ppo/cartpole --seeds 0,1,2,3,4

Each seed trains from scratch; its last checkpoint is then evaluated on fresh episodes. The last and the best checkpoint are
reported apart, because picking the best of many evaluations flatters.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.api.agent import agent_of
from rl_training.experiment.build import select_device
from rl_training.experiment.config_loader import parse_override, resolve
from rl_training.experiment.metadata import system_info, utc_now, versions
from rl_training.experiment.run_dir import EVALUATIONS, read_lines
from rl_training.experiment.runner import open_checkpoint, resume_run, start_run
from rl_training.runtime.evaluator import bootstrap_interval


def measure_seed(preset: str, overrides: dict[str, Any], episodes: int, folder: str, seed: int) -> dict[str, Any]:
    """One training run, continued if the folder holds its beginning, and the evaluation of its last and best checkpoints."""
    settings = {**overrides, "seed": seed, "output_dir": folder, "logging.console": "off", "logging.tensorboard": False}
    begin = time.monotonic()
    config = resolve(preset, settings)
    begun = sorted(Path(folder).glob(f"{config.config.algo}__*__seed{seed}__*"))
    resumable = [run for run in begun if any((run / "checkpoints").glob("step_*"))]
    result = resume_run(resumable[-1]) if resumable else start_run(config)
    seconds = None if resumable else round(time.monotonic() - begin, 1)  # of the whole run, or not known
    assert result.run_dir is not None
    scores = {}
    for which in ("last", "best"):
        checkpoint, _ = open_checkpoint(result.run_dir, best=which == "best")
        evaluation = agent_of(checkpoint).evaluate(episodes, seed=10_000 + seed)
        scores[which] = {"mean": evaluation.mean, "std": evaluation.std, "step": checkpoint.info["step"]}
        if evaluation.success_rate is not None:
            scores[which]["success_rate"] = evaluation.success_rate
    curve = [[record["step"], round(record["mean"], 2)] for record in read_lines(result.run_dir / EVALUATIONS)]
    steps = int(result.metrics["global_step"])
    return {"seed": seed, "steps": steps, "seconds": seconds, **scores, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--episodes", type=int, default=100, help="evaluation episodes per seed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained side by side")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--folder", default=None, help="keep the runs here, and continue those that are here")
    args = parser.parse_args()
    output = args.output or Path("results") / f"{args.preset.replace('/', '_')}.json"
    overrides = dict(parse_override(text) for text in args.set)
    with nullcontext(args.folder) if args.folder else tempfile.TemporaryDirectory() as folder:
        runs = []
        with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            seeds = [int(part) for part in args.seeds.split(",")]
            for run in pool.map(partial(measure_seed, args.preset, overrides, args.episodes, folder), seeds):
                runs.append(run)
                print(json.dumps({key: run[key] for key in ("seed", "steps", "seconds", "last", "best")}), flush=True)
    config = resolve(args.preset, overrides).config
    means = np.array([run["last"]["mean"] for run in runs])
    low, high = bootstrap_interval(means)
    command = f"python scripts/measure.py {args.preset} --seeds {args.seeds} --episodes {args.episodes}"
    record = {
        "preset": args.preset,
        "command": command + "".join(f" --set {text}" for text in args.set),
        "measured_at_utc": utc_now(),
        "versions": versions(),
        "system": system_info(str(select_device(config.device))),
        "config": config.to_dict(),
        "seeds": len(runs),
        "episodes_per_seed": args.episodes,
        "last_mean": round(float(means.mean()), 2),
        "last_interval_95": [round(low, 2), round(high, 2)],
        "last_lowest": round(float(means.min()), 2),
        "best_mean": round(float(np.mean([run["best"]["mean"] for run in runs])), 2),
        "runs": runs,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{args.preset}: mean {record['last_mean']} over {len(runs)} seeds, written to {output}")


if __name__ == "__main__":
    main()
