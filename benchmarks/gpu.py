"""Measures AxiomRL on a GPU through its ordinary API: python -m benchmarks.gpu [--rounds R] [--output FILE] [CASE ...].

Rates are of steady training: warm-up, in which graphs are recorded, is left out. A case's rate is the median of its rounds.
Metrics files, episode statistics and console lines are on, as a user has them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_low
from typing import Any

import torch

import rl_training
from rl_training import Callback, TrainConfig
from rl_training.experiment.config.loader import resolve
from rl_training.experiment.run.metadata import system_info
from rl_training.experiment.versions import versions

RESULTS = Path("results/performance/gpu.json")
SEEDS = (0, 1, 2, 3, 4)


class Rate(Callback):
    """Steps per second and seconds per stage between two counts of steps, the device's work included."""

    name = "rate"

    def __init__(self, begin: int, end: int):
        self._begin, self._end = begin, end
        self._from: tuple[int, float, dict[str, float]] | None = None
        self.result: dict[str, Any] = {}

    def on_iteration_end(self, trainer: Any) -> None:
        if self._from is None and trainer.global_step >= self._begin:
            torch.cuda.synchronize()
            self._from = (trainer.global_step, time.perf_counter(), dict(trainer.timer.seconds))
        elif self._from is not None and trainer.global_step >= self._end and not self.result:
            torch.cuda.synchronize()
            step, begin, stages = self._from
            seconds = time.perf_counter() - begin
            spent = {name: total - stages.get(name, 0.0) for name, total in trainer.timer.seconds.items()}
            self.result = {
                "steps_per_second": round((trainer.global_step - step) / seconds, 1),
                "shares": {name: round(part / seconds, 3) for name, part in spent.items()},
            }
            trainer.stop("measured")


def actor_critic(algo: str, *, storage: str = "ram", **settings: Any) -> TrainConfig:
    """One environment, one update of 256 transitions per step, networks of 256 x 256."""
    common: dict[str, Any] = {
        "algo": algo,
        "env_id": "HalfCheetah-v5",
        "num_envs": 1,
        "total_timesteps": 1_000_000,
        "device": "cuda",
        "policy": {"hidden_sizes": [256, 256], "activation": "relu"},
        "hyperparams": {"batch_size": 256, "learning_starts": 1_000, "replay_storage": storage},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
    }
    return TrainConfig(**{**common, **settings})


def actor_critic_rate(algo: str, **settings: Any) -> dict[str, Any]:
    rate = Rate(begin=3_000, end=9_000)
    learned(actor_critic(algo, **settings), [rate]).close()
    return rate.result


def ppo_tensor() -> dict[str, Any]:
    """The preset ppo/cartpole_tensor: rate, and for each seed how long the whole training took and what came out."""
    rate = Rate(begin=2_000_000, end=30_000_000)
    only_training = {"total_timesteps": 100_000_000, "evaluation.every": 0, "checkpoint.every": 0}
    config = resolve("ppo/cartpole_tensor", {"device": "cuda", **only_training}).config
    learned(config, [rate]).close()
    runs = []
    for seed in SEEDS:
        config = resolve("ppo/cartpole_tensor", {"device": "cuda", "seed": seed}).config
        begin = time.perf_counter()
        agent = learned(config)
        seconds = time.perf_counter() - begin
        runs.append({"seed": seed, "seconds": round(seconds, 2), "mean": agent.evaluate(100, seed=10_000 + seed).mean})
        agent.close()
    return {**rate.result, "runs": runs}


def learned(config: TrainConfig, callbacks: Sequence[Callback] = ()) -> Any:
    """The agent after training."""
    with tempfile.TemporaryDirectory() as folder:
        config.output_dir = folder
        agent = getattr(rl_training, config.algo.upper())(config)
        agent.learn(callbacks=list(callbacks))
    return agent


CASES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "sac-halfcheetah": lambda: actor_critic_rate("sac"),
    "sac-halfcheetah-overlap": lambda: actor_critic_rate("sac", overlap=True),
    "sac-halfcheetah-replay-on-device": lambda: actor_critic_rate("sac", storage="device"),
    "td3-halfcheetah": lambda: actor_critic_rate("td3"),
    "td3-halfcheetah-overlap": lambda: actor_critic_rate("td3", overlap=True),
    "ppo-cartpole-4096": ppo_tensor,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of: {', '.join(CASES)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each case, all cases in turn (3)")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    names, taken = options.cases or list(CASES), dict[str, list[dict[str, Any]]]()
    for _ in range(options.rounds):
        for name in names:
            found = CASES[name]()
            taken.setdefault(name, []).append(found)
            print(name, json.dumps(found), flush=True)
            _store(options.output, name, taken[name], f"python -m benchmarks.gpu --rounds {options.rounds} {name}")


def _store(path: Path, name: str, taken: list[dict[str, Any]], command: str) -> None:
    """Writes a case's rounds into the file: the one of the median rate, and all rates."""
    rates = [found["steps_per_second"] for found in taken]
    record = {
        "at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "versions": versions(),
        "system": system_info("cuda"),
        **taken[rates.index(median_low(rates))],
        "rounds": rates,
    }
    records = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**records, name: record}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
