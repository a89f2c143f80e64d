"""Runs with metrics for the report's tests: in memory, or as folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.run_folders import write_run
from rl_training.zoo.run_records import RunRecord


def lines(**columns: Sequence[float | None]) -> list[dict[str, Any]]:
    """Log lines at steps 1000, 2000, ...: `lines(episode_return=[1, 2])`; a `__` in a name stands for `/`."""
    count = len(next(iter(columns.values())))
    return [
        {"step": 1000 * (index + 1), **{name.replace("__", "/"): values[index] for name, values in columns.items()}}
        for index in range(count)
    ]


def evaluations(*means: float, margin: float = 1.0) -> list[dict[str, Any]]:
    """Evaluations at steps 1000, 2000, ... whose intervals reach `margin` to both sides."""
    return [
        {
            "step": 1000 * (index + 1),
            "mean": mean,
            "ci_low": mean - margin,
            "ci_high": mean + margin,
            "deterministic": True,
        }
        for index, mean in enumerate(means)
    ]


def record(
    *,
    metrics: Sequence[Mapping[str, Any]] = (),
    evaluations: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    status: str = "completed",
    seed: int = 0,
    path: Path = Path("runs/one"),
) -> RunRecord:
    """A run of PPO on CartPole, in memory."""
    values = {"algo": "ppo", "env_id": "CartPole-v1", "seed": seed, "total_timesteps": 10_000, **(config or {})}
    return RunRecord(
        path,
        str(values["algo"]),
        str(values["env_id"]),
        seed,
        status,
        values,
        dict(metadata or {}),
        [dict(line) for line in metrics],
        [dict(line) for line in evaluations],
    )


def learning_run(path: Path, *, seed: int = 0, gain: float = 50.0, points: int = 8, **options: Any) -> Path:
    """A run folder whose return rises by about `gain` per 1000 steps, with speeds, versions and hardware."""
    curve = [(1000 * (index + 1), gain * (index + 1) + seed) for index in range(points)]
    run = write_run(path, seed=seed, curve=curve, **options)
    metrics = lines(
        episode_return=[0.8 * mean for _, mean in curve],
        train__entropy_loss=[0.69 - 0.02 * index for index in range(points)],
        train__approx_kl=[0.01] * points,
        train__explained_variance=[0.5] * points,
        time__steps_per_second=[1000.0] * points,
        time__env_share=[0.2] * points,
        time__inference_share=[0.1] * points,
        time__buffer_share=[0.1] * points,
        time__learn_share=[0.5] * points,
        time__elapsed=[1.5 * (index + 1) for index in range(points)],
    )
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    change_metadata(
        run,
        versions={"axiomrl": "0.1.0", "torch": "2.6.0"},
        system={"os": "Linux", "cpu": "Test CPU", "cpu_count": 2, "device": "cpu", "gpu": None},
        git={"commit": "0123456789abcdef", "dirty": False},
    )
    return run


def change_metadata(run: Path, **values: Any) -> None:
    """Sets keys of metadata.json."""
    path = run / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
