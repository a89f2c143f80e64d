"""Where a run's time went, by stage, and what could make it faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.experiment.run.view import STAGES
from rl_training.zoo.run_records import RunRecord
from rl_training.zoo.values import number, setting

SHARES = (*STAGES, "other")
"""Parts of the training time; `other` is what no stage accounts for (mostly logging)."""
LIMITS = {"learn": 0.7, "env": 0.6, "inference": 0.5, "buffer": 0.4, "other": 0.3}
"""Share of the training time from which a stage is worth a word."""
ASIDE_LIMIT = 0.5
MIN_SECONDS = 10.0
"""Shorter runs say little about speed."""


@dataclass(frozen=True)
class Throughput:
    """Speed of one run."""

    steps_per_second: float
    shares: dict[str, float]
    """Of `SHARES`; they add up to 1."""
    train_seconds: float
    elapsed: float | None
    """Seconds of the whole run, with evaluations and checkpoints; None if it was not logged."""

    @property
    def aside_share(self) -> float | None:
        """Part of the whole time that went to evaluations and checkpoints."""
        if self.elapsed is None or self.elapsed <= 0:
            return None
        return min(max(1 - self.train_seconds / self.elapsed, 0.0), 1.0)


def throughput(run: RunRecord) -> Throughput | None:
    """Sums over the log lines, each weighted with the seconds it covers; None if the run logged no speed."""
    before, seconds = 0.0, 0.0
    spent = dict.fromkeys(STAGES, 0.0)
    for record in run.metrics:
        step, rate = number(record.get("step")), number(record.get("time/steps_per_second"))
        if step is None or rate is None or rate <= 0 or step <= before:
            continue
        span, before = (step - before) / rate, step
        seconds += span
        for stage in STAGES:
            spent[stage] += span * min(max(number(record.get(f"time/{stage}_share")) or 0.0, 0.0), 1.0)
    if seconds <= 0:
        return None
    total = max(seconds, sum(spent.values()))
    shares = {stage: value / total for stage, value in spent.items()}
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    elapsed = next((value for line in reversed(run.metrics) if (value := number(line.get("time/elapsed")))), None)
    return Throughput(before / seconds, shares, seconds, elapsed)


def slow_stage(speed: Throughput) -> str | None:
    """The stage that takes more than its limit, if one does."""
    if speed.train_seconds < MIN_SECONDS:
        return None
    over = [stage for stage, limit in LIMITS.items() if speed.shares[stage] >= limit]
    return max(over, key=lambda stage: speed.shares[stage]) if over else None


def speed_advice(stage: str, config: Mapping[str, Any], system: Mapping[str, Any]) -> str:
    """What to try when a stage takes most of the time; never what the run already does."""
    device = str(system.get("device") or "cpu")
    envs = number(setting(config, "num_envs")) or 1
    if stage == "learn":
        if setting(config, "execution") == "eager":
            return "`--set execution=auto`: steps are then recorded and repeated, which is 1.5 to 2.5 times as fast"
        threads = number(setting(config, "num_threads")) or 1
        if device == "cpu" and threads < (number(system.get("cpu_count")) or 1):
            return f"more threads, `--set num_threads={int(threads) + 1}`, or `--device cuda` where there is a GPU"
        return "the updates are the work to be done here: a smaller network or fewer updates per step would be faster"
    if stage == "env":
        backend = setting(config, "env.backend")
        if backend == "sync":
            return "`--set env.backend=async` (one process per environment) if there are spare cores"
        return f"more environments, `--num-envs {int(envs * 2)}`, or a vectorised version of the environment"
    if stage == "inference":
        if device != "cpu":
            return "a small network is quicker on the CPU (`--device cpu`); or step more environments per call"
        return f"step more environments per call of the policy: `--num-envs {int(envs * 2)}`"
    if stage == "buffer":
        return "step more environments at once, so that each write holds more rows"
    return "log less often (`--set logging.every=10000`) or without TensorBoard (`--set logging.tensorboard=false`)"
