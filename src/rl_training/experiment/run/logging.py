"""Where numbers go: `metrics.jsonl`, `evaluations.jsonl`, TensorBoard, metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.experiment.run.event_file import EventFile
from rl_training.experiment.run.metadata import utc_now
from rl_training.experiment.run.run_dir import EVALUATIONS, METRICS, TENSORBOARD, append_line
from rl_training.runtime.callbacks import Callback, Every
from rl_training.runtime.evaluator import EvaluationResult
from rl_training.runtime.throughput import RateMeter
from rl_training.runtime.trainer import BaseTrainer
from rl_training.utils.disk import set_aside, writing
from rl_training.utils.json_lines import cut_after
from rl_training.utils.safe_files import special_kind


class MetricReader(Callback):
    """Turns the trainer's tensors into numbers at the logging cadence and hands them to `report`.

    This is the one place where an update's metrics are read from the device.
    """

    def __init__(self, every: int):
        self._every = Every(every)
        self._always = every == 0
        self._rates: RateMeter | None = None
        self.latest: dict[str, float] = {}

    def on_training_start(self, trainer: BaseTrainer) -> None:
        self._rates = RateMeter(trainer.timer, trainer.global_step)

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        if self._always or self._every.passed(trainer.previous_step, trainer.global_step):
            self.read(trainer)

    def on_training_end(self, trainer: BaseTrainer) -> None:
        if trainer.metrics and self.latest.get("global_step") != trainer.global_step:
            self.read(trainer)

    def read(self, trainer: BaseTrainer) -> None:
        assert self._rates is not None
        self.latest = {
            "global_step": trainer.global_step,
            **trainer.episode_summary(),
            **{f"train/{name}": float(value) for name, value in trainer.metrics.items()},
            **{f"time/{name}": value for name, value in self._rates.read(trainer.global_step).items()},
            "time/elapsed": trainer.timer.elapsed,
            **trainer.logged.take(),
        }
        trainer.report_metrics(self.latest)

    def state_dict(self) -> dict[str, Any]:
        # Without the times, which no resumed run has in common with one that was never stopped.
        return {"latest": {name: value for name, value in self.latest.items() if not name.startswith("time/")}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.latest = dict(state.get("latest", {}))


class RunLogger(Callback):
    """Writes metrics and evaluations into the run directory."""

    def __init__(self, run_dir: Path, *, tensorboard: bool, notes: list[str]):
        """`notes` gets a line for each log that had to be mended."""
        self._run_dir, self._tensorboard, self._notes = run_dir, tensorboard, notes
        self._events: EventFile | None = None
        self._written: dict[str, int | None] = {METRICS: -1, EVALUATIONS: -1}
        """The step of each log's newest line; None in a checkpoint that does not say."""

    def on_training_start(self, trainer: BaseTrainer) -> None:
        # What a killed process logged after the checkpoint that is now resumed from will be logged again.
        for name, step in self._written.items():
            path = self._run_dir / name
            with writing(path):
                if (kind := special_kind(path)) is not None:
                    self._notes.append(f"{path} is {kind}, not a log; set aside as {set_aside(path).name}")
                damaged = cut_after(path, trainer.global_step if step is None else step)
            if damaged:
                self._notes.append(f"{path}: {damaged:,} damaged lines after the checkpoint were cut off")
        if self._tensorboard:
            purge = trainer.global_step + 1 if trainer.global_step else None
            self._events = EventFile(self._run_dir / TENSORBOARD, purge)

    def on_metrics(self, trainer: BaseTrainer, metrics: dict[str, float]) -> None:
        self._append(METRICS, trainer, metrics)
        named = {name: value for name, value in metrics.items() if name != "global_step"}
        self._write_scalars(trainer, {name if "/" in name else f"rollout/{name}": named[name] for name in named})

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        self._append(EVALUATIONS, trainer, result.to_dict())
        scalars = {"evaluation/mean_return": result.mean, "evaluation/mean_length": result.mean_length}
        if result.success_rate is not None:
            scalars["evaluation/success_rate"] = result.success_rate
        self._write_scalars(trainer, scalars)

    def state_dict(self) -> dict[str, Any]:
        return {"written": dict(self._written)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._written = dict(state.get("written", dict.fromkeys(self._written)))

    def _append(self, name: str, trainer: BaseTrainer, record: Mapping[str, Any]) -> None:
        append_line(self._run_dir / name, {"step": trainer.global_step, "at_utc": utc_now(), **record})
        self._written[name] = trainer.global_step

    def _write_scalars(self, trainer: BaseTrainer, scalars: dict[str, float]) -> None:
        if self._events is not None:
            self._events.add_scalars(scalars, trainer.global_step)
