"""Measures a preset over several seeds and keeps the result as a small data file under results/.

    python scripts/measure.py ppo/cartpole --seeds 0,1,2,3,4

`axiomrl zoo benchmark` does the same for many presets at once, resumable after a kill; this script keeps one preset's runs in a
folder that several machines or processes may fill, and writes the data file where it is told to.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rl_training.experiment.config.loader import parse_override
from rl_training.zoo.manifest import DEFAULT_EPISODES, DEFAULT_SEEDS
from rl_training.zoo.measure import measure_seed, result_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("--seeds", default=",".join(map(str, DEFAULT_SEEDS)))
    parser.add_argument("--episodes", type=int, default=DEFAULT_EPISODES, help="evaluation episodes per seed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained side by side")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--folder", default=None, help="keep the runs here, and continue those that are here")
    args = parser.parse_args()
    output = args.output or Path("results") / f"{args.preset.replace('/', '_')}.json"
    overrides = dict(parse_override(text) for text in args.set)
    seeds = [int(part) for part in args.seeds.split(",")]
    with nullcontext(args.folder) if args.folder else tempfile.TemporaryDirectory() as folder:
        runs = []
        with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            for run in pool.map(partial(measure_seed, args.preset, overrides, args.episodes, folder), seeds):
                runs.append(run)
                print(json.dumps({key: run[key] for key in ("seed", "steps", "seconds", "last", "best")}), flush=True)
    command = f"python scripts/measure.py {args.preset} --seeds {args.seeds} --episodes {args.episodes}"
    command += "".join(f" --set {text}" for text in args.set)
    record = result_record(args.preset, overrides, args.episodes, runs, command)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{args.preset}: mean {record['last_mean']} over {len(runs)} seeds, written to {output}")


if __name__ == "__main__":
    main()
