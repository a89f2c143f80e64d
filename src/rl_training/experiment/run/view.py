"""A run as its panel shows it: built from metrics and evaluations as they come, in bounded memory, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.experiment.run.reference import Band, Reference, value_at
from rl_training.utils.numbers import finite

HISTORY_LINES = 2000
"""How many lines of a long log are read for the curves of a run's past; a panel has room for far fewer."""
STAGES = ("env", "inference", "buffer", "learn")
"""The stages of training that are shown first, in this order."""


class History:
    """A curve of any length in bounded memory: whenever it is full, neighbours are averaged in pairs."""

    def __init__(self, capacity: int = 512):
        self._capacity = capacity
        self._stored: list[tuple[float, float]] = []
        self._stride = 1  # values behind each stored point
        self._waiting, self._steps, self._values = 0, 0.0, 0.0  # the next point: how many values, and their sums

    def add(self, step: float, value: float) -> None:
        self._waiting, self._steps, self._values = self._waiting + 1, self._steps + step, self._values + value
        if self._waiting < self._stride:
            return
        self._stored.append((self._steps / self._stride, self._values / self._stride))
        self._waiting, self._steps, self._values = 0, 0.0, 0.0
        if len(self._stored) >= self._capacity:
            pairs = zip(self._stored[::2], self._stored[1::2], strict=True)
            self._stored = [((a + b) / 2, (x + y) / 2) for (a, x), (b, y) in pairs]
            self._stride *= 2

    @property
    def points(self) -> list[tuple[float, float]]:
        """(step, value) in order."""
        if not self._waiting:
            return list(self._stored)
        return [*self._stored, (self._steps / self._waiting, self._values / self._waiting)]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation: an `EvaluationResult`, or a line of evaluations.jsonl, without its single episodes."""

    step: int
    mean: float
    ci_low: float
    ci_high: float
    episodes: int
    deterministic: bool
    success_rate: float | None
    cut_episodes: int = 0
    """Those that did not end."""

    @classmethod
    def from_record(cls, step: int, record: Mapping[str, Any]) -> Evaluation | None:
        """From the keys of evaluations.jsonl; None if the mean was not finite or the line is not whole."""
        mean, low, high = (finite(record.get(key)) for key in ("mean", "ci_low", "ci_high"))
        if mean is None or low is None or high is None:
            return None
        success = finite(record.get("success_rate"))
        episodes = int(finite(record.get("episodes")) or 0)
        cut = int(finite(record.get("cut_episodes")) or 0)
        return cls(step, mean, low, high, episodes, bool(record.get("deterministic")), success, cut)

    @property
    def text(self) -> str:
        """Mean, interval, number of episodes."""
        return (
            f"evaluation return {number(self.mean)} (95 % interval {number(self.ci_low)} to {number(self.ci_high)}, "
            f"{self.episodes} {'deterministic' if self.deterministic else 'stochastic'} episodes){self.success_text}{self.cut_text}"
        )

    @property
    def cut_text(self) -> str:
        return f", {self.cut_episodes} of them cut before their end" if self.cut_episodes else ""

    @property
    def success_text(self) -> str:
        return "" if self.success_rate is None else f", success {self.success_rate:.0%}"


class RunView:
    """What is known of a run so far."""

    def __init__(self, title: str, total_timesteps: int, reference: Reference | None = None):
        self.title, self.total_timesteps, self.reference = title, total_timesteps, reference
        self.status = "running"
        self.step, self.elapsed = 0, 0.0
        self.metrics: Mapping[str, Any] = {}
        self.returns, self.scores = History(), History()
        self.evaluation: Evaluation | None = None
        self.best: Evaluation | None = None
        self._times = History()  # elapsed seconds by step

    def add_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """The newest numbers, with the keys of metrics.jsonl."""
        self.metrics, self.step = metrics, max(self.step, step)
        if (value := self.episode_return) is not None:
            self.returns.add(step, value)
        if (elapsed := finite(metrics.get("time/elapsed"))) is not None:
            self.elapsed = elapsed
            self._times.add(step, elapsed)

    def add_evaluation(self, step: int, record: Mapping[str, Any]) -> Evaluation | None:
        """An evaluation, with the keys of evaluations.jsonl; None if its mean is not finite."""
        self.step = max(self.step, step)
        evaluation = Evaluation.from_record(step, record)
        if evaluation is None:
            return None
        self.evaluation = evaluation
        self.scores.add(step, evaluation.mean)
        if self.best is None or evaluation.mean > self.best.mean:
            self.best = evaluation
        return evaluation

    @property
    def progress(self) -> float:
        """Share of the steps taken, at most 1."""
        return min(self.step / self.total_timesteps, 1.0)

    @property
    def episode_return(self) -> float | None:
        """Mean return of the newest training episodes."""
        return finite(self.metrics.get("episode_return"))

    @property
    def steps_per_second(self) -> float | None:
        return finite(self.metrics.get("time/steps_per_second"))

    @property
    def eta(self) -> float | None:
        """Seconds left at the pace of the second half of the steps so far.

        The first half is left out: it may hold random actions without learning. None before the first metrics.
        """
        points = self._times.points
        if not points or self.step == 0:
            return None
        half = self.step / 2
        before = value_at([(0.0, 0.0), *points], half) or 0.0
        return (self.elapsed - before) / half * max(self.total_timesteps - self.step, 0)

    @property
    def stages(self) -> dict[str, float]:
        """Share of the training time by stage; `other` is what no stage accounts for (statistics, logging)."""
        shares = {
            key.removeprefix("time/").removesuffix("_share"): share
            for key, value in self.metrics.items()
            if key.startswith("time/") and key.endswith("_share") and (share := finite(value)) is not None
        }
        if not shares:
            return {}
        ordered = {stage: shares.pop(stage) for stage in STAGES if stage in shares} | shares
        return {**ordered, "other": max(1.0 - sum(ordered.values()), 0.0)}

    @property
    def band(self) -> Band | None:
        """The reference seeds at the newest evaluation, or at the current step before the first one."""
        if self.reference is None:
            return None
        return self.reference.at(self.evaluation.step if self.evaluation is not None else self.step)

    @property
    def place(self) -> str | None:
        """Where the newest evaluation lies in the band: see `Band.place`."""
        if self.band is None or self.evaluation is None:
            return None
        return self.band.place(self.evaluation.mean, self.evaluation.ci_low, self.evaluation.ci_high)

    def to_dict(self) -> dict[str, Any]:
        """JSON values for scripts."""
        evaluation, band = self.evaluation, self.band
        return {
            "status": self.status,
            "step": self.step,
            "total_timesteps": self.total_timesteps,
            "elapsed_seconds": self.elapsed,
            "eta_seconds": self.eta if self.status == "running" else None,
            "steps_per_second": self.steps_per_second,
            "stages": self.stages,
            "episode_return": self.episode_return,
            "evaluation": None if evaluation is None else vars(evaluation),
            "best": None if self.best is None else {"step": self.best.step, "mean": self.best.mean},
            "reference": None
            if self.reference is None
            else {
                "preset": self.reference.preset,
                "last_mean": self.reference.last_mean,
                "last_interval_95": list(self.reference.last_interval),
                "band": None if band is None else vars(band),
                "place": self.place,
            },
        }


def number(value: float | None) -> str:
    """A score as people read it: one decimal, two for small ones."""
    if value is None:
        return "-"
    if abs(value) >= 1e7:
        return f"{value:.3g}"
    return f"{value:,.1f}" if abs(value) >= 10 or value == 0 else f"{value:,.2f}"
