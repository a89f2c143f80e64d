"""Measures a preset: one training run per seed, its last and its best checkpoint evaluated on fresh episodes.

The two are kept apart, because picking the best of many evaluations flatters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.api.agent import agent_of
from rl_training.experiment.config.loader import ResolvedConfig, resolve
from rl_training.experiment.run.build import complete_config
from rl_training.experiment.run.device import select_device
from rl_training.experiment.run.metadata import RunMetadata, system_info, utc_now
from rl_training.experiment.run.run_dir import CHECKPOINTS, EVALUATIONS, read_lines
from rl_training.experiment.run.runner import open_checkpoint, resume_run, start_run
from rl_training.experiment.run.session import TrainResult
from rl_training.experiment.versions import versions
from rl_training.utils.bootstrap import bootstrap_interval
from rl_training.utils.errors import AxiomError
from rl_training.zoo.result_files import TUNED_ON
from rl_training.zoo.seed_files import begun_runs


class Interrupted(AxiomError):
    """A signal stopped a run before its end; what it has is saved."""

    def __init__(self, result: TrainResult):
        super().__init__(result.stop_reason or "stopped")
        self.exit_code = result.exit_code


def measure_seed(
    preset: str, overrides: Mapping[str, Any], episodes: int, folder: str | Path, seed: int
) -> dict[str, Any]:
    """One training run, continued if the folder holds its beginning, and the evaluation of its last and best checkpoints."""
    settings = {"seed": seed, "output_dir": str(folder), "logging.console": "off", "logging.tensorboard": False}
    settings["video.every"] = 0
    config = resolve(preset, {**overrides, **settings})
    run_dir, seconds = _train(config, begun_runs(Path(folder), seed, config.config.algo))
    scores = {}
    for which in ("last", "best"):
        checkpoint, _ = open_checkpoint(run_dir, best=which == "best")
        evaluation = agent_of(checkpoint).evaluate(episodes, seed=10_000 + seed)
        scores[which] = {"mean": evaluation.mean, "std": evaluation.std, "step": checkpoint.info["step"]}
        if evaluation.success_rate is not None:
            scores[which]["success_rate"] = evaluation.success_rate
    metadata = RunMetadata.load(run_dir).values
    run = {
        "seed": seed,
        "steps": int(metadata["latest_metrics"]["global_step"]),
        "seconds": seconds,
        **scores,
        "curve": [[record["step"], round(record["mean"], 2)] for record in read_lines(run_dir / EVALUATIONS)],
    }
    grades = [entry["grade"] for entry in metadata["resumes"]]
    return {**run, "resume_grades": grades} if grades else run


def is_resumable(run_dir: Path) -> bool:
    """Whether a run got as far as its first checkpoint."""
    return any((run_dir / CHECKPOINTS).glob("step_*"))


def _train(config: ResolvedConfig, begun: Sequence[Path]) -> tuple[Path, float | None]:
    """(run directory of the finished run, seconds it took, or None if they are not known)."""
    resumable = [run for run in begun if is_resumable(run)]
    if resumable:
        run_dir = resumable[-1]
        if RunMetadata.load(run_dir).values["status"] != "completed":
            _check_ended(resume_run(run_dir))
        return run_dir, None
    begin = time.monotonic()
    result = _check_ended(start_run(config))
    assert result.run_dir is not None
    return result.run_dir, round(time.monotonic() - begin, 1)


def _check_ended(result: TrainResult) -> TrainResult:
    if result.exit_code:
        raise Interrupted(result)
    return result


def result_record(
    preset: str, overrides: Mapping[str, Any], episodes: int, runs: Sequence[Mapping[str, Any]], command: str
) -> dict[str, Any]:
    """The data file of one preset, from its measured seeds."""
    config, _ = complete_config(resolve(preset, overrides))  # in full, so that it means the same when defaults change
    means = np.array([run["last"]["mean"] for run in runs])
    low, high = bootstrap_interval(means)
    return {
        "preset": preset,
        "command": command,
        "measured_at_utc": utc_now(),
        "versions": versions(),
        "system": system_info(str(select_device(config.device))),
        "config": config.to_dict(),
        "tuned_on": TUNED_ON,
        "seeds": len(runs),
        "episodes_per_seed": episodes,
        "last_mean": round(float(means.mean()), 2),
        "last_interval_95": [round(low, 2), round(high, 2)],
        "last_lowest": round(float(means.min()), 2),
        "best_mean": round(float(np.mean([run["best"]["mean"] for run in runs])), 2),
        "runs": list(runs),
    }
