"""Run folders as a training leaves them, made by hand in a moment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.config.yaml_files import dump_yaml


def write_run(
    path: Path,
    *,
    algo: str = "ppo",
    env_id: str = "CartPole-v1",
    seed: int = 0,
    status: str = "completed",
    curve: Sequence[tuple[int, float]] = ((1000, 100.0),),
    metrics_step: int | None = None,
    episodes: Sequence[float] | None = None,
    created: str = "2026-01-01T00:00:00+00:00",
    **config: Any,
) -> Path:
    """A run whose evaluations are `curve`; `episodes` are the returns of the newest one; `config` adds config keys."""
    path.mkdir(parents=True)
    (path / "checkpoints").mkdir()
    steps = metrics_step if metrics_step is not None else (curve[-1][0] if curve else None)
    values = {
        "algo": algo,
        "env_id": env_id,
        "seed": seed,
        "total_timesteps": steps or 1000,
        "hyperparams": {"learning_rate": 0.001},
        "policy": {"hidden_sizes": [64, 64]},
        "env": {"kwargs": {}},
        **config,
    }
    (path / "config.yaml").write_text(dump_yaml(values))
    metadata = {"schema": 1, "created_at_utc": created, "command": ["axiomrl", "train"], "status": status}
    (path / "metadata.json").write_text(
        json.dumps(
            {**metadata, "algo": algo, "env_id": env_id, "seed": seed, "versions": {}, "system": {}, "resumes": []}
        )
    )
    lines = [_evaluation(step, [mean] * 3) for step, mean in curve]
    if episodes is not None:
        lines[-1] = _evaluation(curve[-1][0], episodes)
    (path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "metrics.jsonl").write_text(
        "" if steps is None else json.dumps({"step": steps, "global_step": steps}) + "\n"
    )
    return path


def _evaluation(step: int, returns: Sequence[float]) -> dict[str, Any]:
    mean = sum(returns) / len(returns)
    low, high = min(returns), max(returns)
    return {
        "step": step,
        "mean": mean,
        "ci_low": low,
        "ci_high": high,
        "returns": list(returns),
        "episodes": len(returns),
    }


def write_result(
    path: Path,
    scores: Sequence[float],
    *,
    algo: str = "ppo",
    env_id: str = "CartPole-v1",
    preset: str = "ppo/cartpole",
    steps: int = 1000,
    seeds_asked: int | None = None,
    **config: Any,
) -> Path:
    """A result file with one seed per score; like the older ones it leaves defaults out of its config."""
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = [
        {
            "seed": seed,
            "steps": steps,
            "seconds": 1.0,
            "last": {"mean": score, "std": 0.0, "step": steps},
            "best": {"mean": score + 1, "std": 0.0, "step": steps},
            "curve": [[steps, score]],
        }
        for seed, score in enumerate(scores)
    ]
    mean = sum(scores) / len(scores)
    record = {
        "preset": preset,
        "command": f"axiomrl zoo benchmark {preset}",
        "measured_at_utc": "2026-01-02T00:00:00+00:00",
        "versions": {},
        "system": {"gpu": None, "cpu": "test"},
        "config": {"algo": algo, "env_id": env_id, "seed": 0, "total_timesteps": steps, **config},
        "seeds": len(runs),
        "seeds_asked": seeds_asked,
        "episodes_per_seed": 100,
        "last_mean": mean,
        "last_interval_95": [min(scores), max(scores)],
        "best_mean": mean + 1,
        "runs": runs,
    }
    path.write_text(json.dumps(record))
    return path
