"""How cost grows: python -m benchmarks.growth [--output FILE] [--plot FILE].

Trains through the ordinary API with more and more environments, wider networks and larger batches, and takes the seconds of each
stage. `slopes` are the exponents of its growth from point to point: 1 is linear in the environments, the weights or the batch.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import rl_training
from benchmarks.log_plot import Series, log_plot
from rl_training import Callback, TrainConfig
from rl_training.experiment.run.metadata import system_info
from rl_training.experiment.versions import versions

RESULTS = Path("results/performance/growth.json")
PLOT = Path("docs/growth.svg")
STAGES = ("env", "inference", "buffer", "learn")
REPEATS = 3


class Stages(Callback):
    """Seconds per stage and iteration: the least of several stretches of `span` iterations, the first stretch left out."""

    name = "stages"

    def __init__(self, span: int):
        self._span, self._before = span, dict[str, float]()
        self.stretches: list[dict[str, float]] = []

    def on_iteration_end(self, trainer: Any) -> None:
        if trainer.iterations % self._span:
            return
        now = dict(trainer.timer.seconds)
        self.stretches.append(
            {name: (now.get(name, 0.0) - self._before.get(name, 0.0)) / self._span for name in STAGES}
        )
        self._before = now
        if len(self.stretches) > REPEATS:
            trainer.stop("measured")

    @property
    def seconds(self) -> dict[str, float]:
        return {name: min(stretch[name] for stretch in self.stretches[1:]) for name in STAGES}


def measure(algo: str, env_id: str, span: int, **settings: Any) -> tuple[dict[str, float], int]:
    """(seconds per stage and iteration, number of trained weights)."""
    stages = Stages(span)
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=algo,
            env_id=env_id,
            device="cpu",
            total_timesteps=10**9,
            output_dir=folder,
            evaluation={"every": 0},  # type: ignore[arg-type]
            checkpoint={"every": 0},  # type: ignore[arg-type]
            logging={"console": "off"},  # type: ignore[arg-type]
            **settings,
        )
        agent = getattr(rl_training, algo.upper())(config)
        weights = sum(len(optimizer.weights) for optimizer in agent.algorithm.optimizers().values())
        agent.learn(callbacks=[stages])
        agent.close()
    return stages.seconds, weights


def over_envs(counts: Sequence[int]) -> list[dict[str, Any]]:
    """PPO on CartPole, native environments: 32 steps in each, 4 epochs of 4 minibatches."""
    points = []
    for count in counts:
        hyperparams = {"num_steps": 32, "num_minibatches": 4, "update_epochs": 4}
        span = max(2, 64 // count)
        env = {"backend": "native"}
        seconds, _ = measure("ppo", "CartPole-v1", span, num_envs=count, env=env, hyperparams=hyperparams)
        points.append({"x": count, "seconds": seconds, "steps_per_second": 32 * count / sum(seconds.values())})
    return points


def over_widths(widths: Sequence[int]) -> list[dict[str, Any]]:
    """SAC on Pendulum, batches of 256, networks of width x width: per environment step."""
    points = []
    for width in widths:
        policy = {"hidden_sizes": [width, width], "activation": "relu"}
        hyperparams = {"learning_starts": 260, "batch_size": 256}
        seconds, weights = measure("sac", "Pendulum-v1", 270, num_envs=1, policy=policy, hyperparams=hyperparams)
        points.append({"x": weights, "width": width, "seconds": seconds, "steps_per_second": 1 / sum(seconds.values())})
    return points


def over_batches(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """DQN on CartPole, networks of 120 x 84: per environment step."""
    points = []
    for size in sizes:
        policy = {"hidden_sizes": [120, 84], "activation": "relu"}
        hyperparams = {"learning_starts": 2_100, "batch_size": size, "buffer_size": 20_000, "train_frequency": 1}
        seconds, _ = measure("dqn", "CartPole-v1", 2_150, num_envs=1, policy=policy, hyperparams=hyperparams)
        points.append({"x": size, "seconds": seconds, "steps_per_second": 1 / sum(seconds.values())})
    return points


def slopes(points: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """For each stage the exponents of its growth from point to point."""
    return {
        stage: [
            round(math.log(b["seconds"][stage] / a["seconds"][stage]) / math.log(b["x"] / a["x"]), 2)
            for a, b in pairwise(points)
        ]
        for stage in STAGES
    }


def plots(record: dict[str, Any]) -> str:
    """The three studies side by side."""
    return log_plot(
        [
            (title, label, "seconds per iteration", [Series(stage, _line(record[name], stage)) for stage in STAGES])
            for name, title, label in (
                ("envs", "PPO CartPole", "environments"),
                ("widths", "SAC Pendulum", "weights"),
                ("batches", "DQN CartPole", "batch size"),
            )
        ]
    )


def _line(study: dict[str, Any], stage: str) -> list[tuple[float, float]]:
    return [(point["x"], point["seconds"][stage]) for point in study["points"]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--plot", type=Path, default=PLOT)
    options = parser.parse_args()
    studies = {
        "envs": over_envs([1, 4, 16, 64, 256, 1024]),
        "widths": over_widths([32, 64, 128, 256, 512]),
        "batches": over_batches([32, 128, 512, 2048]),
    }
    record: dict[str, Any] = {
        "at_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python -m benchmarks.growth",
        "versions": versions(),
        "system": system_info("cpu"),
    }
    for name, points in studies.items():
        record[name] = {"points": points, "slopes": slopes(points)}
        print(name, json.dumps(record[name]["slopes"]), [round(point["steps_per_second"]) for point in points])
    print("largest last slope:", max(values[-1] for name in studies for values in record[name]["slopes"].values()))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(record, indent=1) + "\n")
    options.plot.write_text(plots(record))


if __name__ == "__main__":
    main()
