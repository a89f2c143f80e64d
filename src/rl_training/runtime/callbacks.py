"""Callbacks: what happens around the training loop, each with its own state in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rl_training.envs.contract import StepRecord
from rl_training.policies.policy import Policy
from rl_training.runtime.evaluator import EvaluationResult, EvaluationStopped, Evaluator
from rl_training.utils.errors import UserError

if TYPE_CHECKING:
    from rl_training.runtime.trainer import BaseTrainer


class Callback:
    """Override what you need; what is not overridden costs nothing. `trainer.log(name, value)` adds a number to the metrics,
    `trainer.stop(reason)` ends the training after the current iteration: iteration boundaries are the only moments at which a
    run can be saved or stopped."""

    name: str | None = None
    """Key of the state in checkpoints; the class name if None. Two callbacks of one class need different names."""

    @property
    def key(self) -> str:
        return self.name or type(self).__name__

    def on_training_start(self, trainer: BaseTrainer) -> None:
        """Before the first iteration, also of a resumed run."""

    def on_catch_up(self, trainer: BaseTrainer) -> None:
        """After that, when all callbacks have started: what an interruption left undone."""

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        """After each collect-and-update; `trainer.metrics` holds the newest metrics."""

    def on_step(self, trainer: BaseTrainer, step: StepRecord) -> None:
        """After each step of all environments: what was observed, done and rewarded, and `step.infos`. The arrays are the
        trainer's own: copy what you keep, change nothing. `trainer.global_step` moves at the end of an iteration."""

    def on_metrics(self, trainer: BaseTrainer, metrics: dict[str, float]) -> None:
        """At the logging cadence, with the newest metrics as numbers."""

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        """After each evaluation."""

    def on_training_end(self, trainer: BaseTrainer) -> None:
        """After the last iteration, unless an error ended it."""

    def close(self) -> None:
        """Lets go of what was opened since the start (files, panels, environments), also after an error."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, arrays and JSON values that a resume needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` returned."""


def checked_callbacks(given: Callback | Iterable[Callback]) -> list[Callback]:
    """One callback, or several, as a list."""
    callbacks = list(given) if isinstance(given, Iterable) else [given]
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise UserError(
                f"a callback is an object of a class derived from rl_training.Callback, not {callback!r:.100}"
            )
    return callbacks


class Every:
    """Says when another multiple of `period` environment steps has been passed."""

    def __init__(self, period: int):
        self.period = period

    def passed(self, before: int, now: int) -> bool:
        return self.period > 0 and now // self.period > before // self.period


class Evaluate(Callback):
    """Evaluates every so many environment steps, and once more when the training is complete.

    A signal stops an evaluation at once. It leaves no trace but the note that it is due, and a resume makes it up.
    """

    def __init__(self, evaluator: Evaluator, policy: Policy, *, every: int, episodes: int, deterministic: bool):
        self._evaluator, self._policy = evaluator, policy
        self._every, self._episodes, self._deterministic = Every(every), episodes, deterministic
        self.last_step, self._due = -1, False

    def on_catch_up(self, trainer: BaseTrainer) -> None:
        if self._due:
            self._evaluate(trainer)

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        if self._every.passed(trainer.previous_step, trainer.global_step):
            self._evaluate(trainer)

    def on_training_end(self, trainer: BaseTrainer) -> None:
        if trainer.complete and self.last_step != trainer.global_step:
            self._evaluate(trainer)

    def close(self) -> None:
        self._evaluator.close()

    def _evaluate(self, trainer: BaseTrainer) -> None:
        try:
            with trainer.timer.stage("evaluate"):
                result = self._evaluator.evaluate(
                    self._policy,
                    self._episodes,
                    deterministic=self._deterministic,
                    stream=trainer.global_step,
                    stopped=lambda: trainer.interrupted,
                )
        except EvaluationStopped:
            self._due = True
            return
        self._due = False
        self.last_step = trainer.global_step
        trainer.report_evaluation(result)

    def state_dict(self) -> dict[str, Any]:
        return {"last_step": self.last_step, "due": self._due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last_step, self._due = state["last_step"], state.get("due", False) is True


class StopOnReward(Callback):
    """Stops when an evaluation's mean return reaches the threshold."""

    def __init__(self, threshold: float):
        self.threshold = threshold

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        if result.mean >= self.threshold:
            trainer.stop(f"evaluation return {result.mean:.1f} reached {self.threshold:g}")


class StopOnNoImprovement(Callback):
    """Stops after `patience` evaluations in a row without a new best mean."""

    def __init__(self, patience: int):
        self.patience = patience
        self.best = float("-inf")
        self.waited = 0

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        if result.mean > self.best:
            self.best, self.waited = result.mean, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            trainer.stop(f"no improvement in {self.waited} evaluations (best {self.best:.1f})")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


class StopOnTime(Callback):
    """Stops once training has taken so many seconds, all resumes counted."""

    def __init__(self, max_seconds: float):
        self.max_seconds = max_seconds

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        if trainer.timer.elapsed >= self.max_seconds:
            trainer.stop(f"time limit of {self.max_seconds:g} s reached")


class SaveCheckpoints(Callback):
    """Saves at the start, every so many environment steps, at each new best evaluation, and at the end.

    `save(step, best)` does the writing; where to is not this layer's business.
    """

    def __init__(self, save: Callable[[int, bool], None], *, every: int):
        self._save, self._every = save, Every(every)
        self.best = float("-inf")
        self.best_step: int | None = None
        self.saved_step = -1
        self._best_pending = self._evaluated_since = False

    def on_training_start(self, trainer: BaseTrainer) -> None:
        if self.saved_step < 0:  # from here on, a kill at any instant leaves something to resume from
            self._write(trainer)

    def on_catch_up(self, trainer: BaseTrainer) -> None:
        if self._evaluated_since:
            self._write(trainer)

    def on_evaluation(self, trainer: BaseTrainer, result: EvaluationResult) -> None:
        self._evaluated_since = True  # callbacks that listen to evaluations have changed
        if result.mean > self.best:
            self.best, self._best_pending = result.mean, True

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        if self._best_pending or self._every.passed(trainer.previous_step, trainer.global_step):
            self._write(trainer)

    def on_training_end(self, trainer: BaseTrainer) -> None:
        if self._evaluated_since or self.saved_step != trainer.global_step:
            self._write(trainer)

    def _write(self, trainer: BaseTrainer) -> None:
        best, self._best_pending, self._evaluated_since = self._best_pending, False, False
        self.saved_step = trainer.global_step
        if best:
            self.best_step = trainer.global_step
        with trainer.timer.stage("checkpoint"):
            self._save(trainer.global_step, best)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_step": self.best_step, "saved_step": self.saved_step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.saved_step = state["best"], state["saved_step"]
        self.best_step = state.get("best_step")
