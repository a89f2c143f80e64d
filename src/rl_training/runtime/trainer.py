"""The training loops. A trainer's loop reads like its description: collect, update, then let the callbacks look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from operator import index
from typing import Any

from rl_training.algorithms.base import Algorithm, MetricMeans, Metrics
from rl_training.algorithms.off_policy import BatchAlgorithm, OffPolicyAlgorithm
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.sources import BatchSource
from rl_training.envs.contract import StepRecord
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector, ReplayCollector, RolloutCollector
from rl_training.runtime.evaluator import EvaluationResult
from rl_training.runtime.learner import Learned
from rl_training.runtime.overlap import Overlap
from rl_training.runtime.step_infos import LoggedMeans
from rl_training.runtime.throughput import StageTimer
from rl_training.utils import failpoints
from rl_training.utils.errors import ConfigError, UserError
from rl_training.utils.global_random import GlobalRandomStream
from rl_training.utils.seeding import derive_seed


class BaseTrainer(ABC):
    """Owns the outer loop and the counters. Frequencies everywhere count environment steps.

    Attributes:
        global_step: valid environment steps so far.
        previous_step: `global_step` before the current iteration.
        metrics: the newest update's metrics, still tensors.
        replay: the experience an off-policy run learns from, None otherwise. It is saved apart, because it is large.
        stop_reason: why the loop will end or ended; None for "all steps done".
        interrupted: the stop came from outside (a signal): finish fast, do not evaluate again.
    """

    def __init__(self, total_timesteps: int, callbacks: Sequence[Callback], timer: StageTimer, seed: int):
        self.total_timesteps, self.timer = total_timesteps, timer
        self.callbacks = _with_own_names(callbacks)
        self.global_random = GlobalRandomStream(derive_seed(seed, "global generators"))
        self.global_step = self.previous_step = self.iterations = self.resume_count = 0
        self.metrics: Metrics = {}
        self.last_evaluation: EvaluationResult | None = None
        self.stop_reason: str | None = None
        self.interrupted = False
        self._started = self._finished = False
        self.replay: ReplayBuffer | None = None
        self.logged = LoggedMeans()

    @abstractmethod
    def _start(self) -> None:
        """Prepares the first iteration of a run that was not resumed."""

    @abstractmethod
    def _iterate(self) -> int:
        """Collects and updates once; returns the number of valid environment steps taken."""

    @abstractmethod
    def episode_summary(self) -> dict[str, float]:
        """Means over the newest training episodes."""

    @property
    @abstractmethod
    def resume_grade(self) -> str | None:
        """How exactly the environments came back: `exact`, `episode-boundary`, or None if nothing was restored."""

    @property
    def resume_problem(self) -> str | None:
        """What stood in the way of an exact resume."""
        return None

    @property
    def progress(self) -> float:
        """Share of the training collected so far, for schedules."""
        return self._progress_at(self.global_step)

    def _progress_at(self, step: int) -> float:
        return min(step / self.total_timesteps, 1.0)

    @property
    def complete(self) -> bool:
        """The run ended, or may end, by its own rules and not by a signal."""
        return not self.interrupted

    def train(self) -> None:
        """Runs until `total_timesteps` is reached (overshooting by less than one rollout) or somebody calls `stop`."""
        self.timer.start()
        try:
            with self.global_random.active():
                self._loop()
        finally:
            self.timer.stop()
            for callback in self.callbacks:
                callback.close()

    def _listen(self, listeners: Sequence[Callback]) -> None:
        """Prepares for callbacks that want to see every step, if there are any."""
        if listeners:
            raise UserError(f"{listeners[0].key} wants to see every step, and learning from a dataset takes none.")

    def _loop(self) -> None:
        self._listen([callback for callback in self.callbacks if type(callback).on_step is not Callback.on_step])
        if not self._started:
            self._start()
            self._started = True
        self._notify("on_training_start")
        self._notify("on_catch_up")
        while self.global_step < self.total_timesteps and self.stop_reason is None:
            failpoints.hit("trainer.iteration")
            steps = self._iterate()
            self.previous_step, self.global_step = self.global_step, self.global_step + steps
            self.iterations += 1
            self._notify("on_iteration_end")
        self._finished = True
        self._notify("on_training_end")

    def stop(self, reason: str, *, interrupted: bool = False) -> None:
        """Ends training after the current iteration; without effect once the last one is done."""
        if not self._finished:
            self.stop_reason = self.stop_reason or reason
        self.interrupted = self.interrupted or interrupted

    def extend(self, total_timesteps: int, callbacks: Sequence[Callback]) -> None:
        """Allows another call of `train`, up to the new total and with these callbacks."""
        self.callbacks = _with_own_names(callbacks)
        self.total_timesteps, self.stop_reason = total_timesteps, None
        self.interrupted = self._finished = False

    def log(self, name: str, value: float, *, weight: int = 1) -> None:
        """Adds a number to the metrics: to `metrics.jsonl`, TensorBoard and `TrainResult.metrics`. Between two reports it is
        averaged; one that stands for several counts with their number as `weight`."""
        self.logged.add(name, value, weight)

    def report_evaluation(self, result: EvaluationResult) -> None:
        """Hands an evaluation to every callback."""
        self.last_evaluation = result
        for callback in self.callbacks:
            callback.on_evaluation(self, result)

    def report_metrics(self, metrics: dict[str, float]) -> None:
        """Hands the newest numbers to every callback."""
        for callback in self.callbacks:
            callback.on_metrics(self, metrics)

    def _notify(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def state_dict(self) -> dict[str, Any]:
        return {
            "global_step": self.global_step,
            "previous_step": self.previous_step,
            "iterations": self.iterations,
            "resume_count": self.resume_count,
            "stop_reason": None if self.interrupted else self.stop_reason,
            "metrics": {name: float(value) for name, value in self.metrics.items()},
            "last_evaluation": None if self.last_evaluation is None else asdict(self.last_evaluation),
            "timer": self.timer.state_dict(),
            "callbacks": {callback.key: callback.state_dict() for callback in self.callbacks},
            "global_random": self.global_random.state_dict(),
            "logged": self.logged.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the loop. Callbacks that are new since the checkpoint start fresh; vanished ones are forgotten."""
        self._started = True
        self.global_step, self.previous_step = index(state["global_step"]), index(state["previous_step"])
        self.iterations, self.resume_count = index(state["iterations"]), index(state["resume_count"]) + 1
        # The end of a run reports these once more, and a run that its own rules ended goes no further: a resume must know them.
        self.stop_reason, self.metrics = state.get("stop_reason"), dict(state.get("metrics", {}))
        self.last_evaluation = EvaluationResult.from_state(state.get("last_evaluation"))
        self.timer.load_state_dict(state["timer"])
        for callback in self.callbacks:
            if callback.key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.key])
        self.global_random.load_state_dict(state["global_random"])
        self.logged.load_state_dict(state.get("logged", {}))


def _with_own_names(callbacks: Sequence[Callback]) -> list[Callback]:
    keys = [callback.key for callback in callbacks]
    shared = sorted({key for key in keys if keys.count(key) > 1})
    if shared:
        raise ConfigError(f"two callbacks share the name {shared[0]!r}: set `name` on one of them")
    return list(callbacks)


class CollectingTrainer(BaseTrainer):
    """A trainer with environments."""

    def __init__(self, collector: Collector, total_timesteps: int, callbacks: Sequence[Callback]):
        super().__init__(total_timesteps, callbacks, collector.timer, collector.seed)
        self._collector, self.num_envs = collector, collector.stepper.num_envs

    def _start(self) -> None:
        self._collector.reset()

    def _listen(self, listeners: Sequence[Callback]) -> None:
        if listeners and not self._collector.sees_steps:
            raise UserError(
                f"{listeners[0].key} wants to see every step, and with env.backend=tensor steps never leave the device: "
                "use the backend native, sync or async."
            )

        def tell(step: StepRecord) -> None:
            for callback in listeners:
                callback.on_step(self, step)

        self._collector.on_step = tell if listeners else None

    @property
    def resume_grade(self) -> str | None:
        return self._collector.stepper.resume_grade

    @property
    def resume_problem(self) -> str | None:
        return self._collector.stepper.resume_problem

    def episode_summary(self) -> dict[str, float]:
        return self._collector.statistics.summary()

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "collector": self._collector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._collector.load_state_dict(state["collector"], self.resume_count)


class OnPolicyTrainer(CollectingTrainer):
    """Collect a rollout with the current policy, learn from it, forget it.

    With `overlap` an iteration learns from the rollout of the one before while it collects its own. The last iteration of a
    complete training learns from both; after an early stop the last rollout waits in the checkpoint. Schedules see the same
    progress either way: the share of steps before the rollout that is learned from.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any, RolloutBuffer],
        collector: RolloutCollector,
        total_timesteps: int,
        callbacks: Sequence[Callback] = (),
        *,
        overlap: Overlap | None = None,
    ):
        super().__init__(collector, total_timesteps, callbacks)
        self.algorithm, self.collector, self._overlap = algorithm, collector, overlap

    def _loop(self) -> None:
        with nullcontext() if self._overlap is None else self._overlap.running():
            super()._loop()

    def _iterate(self) -> int:
        if self._overlap is not None:
            return self._iterate_overlapped(self._overlap)
        rollout, steps = self.collector.collect()
        if steps:  # none, if every environment was only reset
            with self.timer.stage("learn"):
                self.metrics = self.algorithm.update(rollout, self.progress)
        return steps

    def _iterate_overlapped(self, overlap: Overlap) -> int:
        steps = overlap.collect(self._progress_at(self.previous_step), self.progress, self._report)
        if self.global_step + steps >= self.total_timesteps:
            overlap.finish(self._report)
        return steps

    def _report(self, learned: Learned) -> None:
        self.metrics = learned.metrics
        self.timer.add("learn", learned.seconds)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        return state if self._overlap is None else {**state, "waiting": self._overlap.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self._overlap is not None:
            self._overlap.load_state_dict(state["waiting"])


class OffPolicyTrainer(CollectingTrainer):
    """Step the environments, remember the transitions, and learn from batches drawn from a source.

    An iteration lasts until at least `train_frequency` environment steps have been taken; for each multiple of it that
    was passed, `gradient_steps` updates follow, so the update-to-data ratio does not depend on the number of environments.
    With `overlap` they follow in the next iteration, between the choice of its first actions and the step itself: a GPU then
    learns while the environments move. The last iteration leaves nothing to do.
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        collector: ReplayCollector,
        source: BatchSource,
        total_timesteps: int,
        callbacks: Sequence[Callback] = (),
        *,
        overlap: bool = False,
    ):
        """`source` is where batches come from: the collector's buffer, or a mixture with it."""
        super().__init__(collector, total_timesteps, callbacks)
        self.algorithm, self.collector, self.source, self.replay = algorithm, collector, source, collector.buffer
        self._overlap, self._due, self._ready = overlap, 0, False

    def _iterate(self) -> int:
        config, begin = self.algorithm.config, self.global_step
        now = begin
        while now // config.train_frequency == begin // config.train_frequency:
            random = now < config.learning_starts
            now += self.collector.collect(progress=self.progress, random=random, before_step=self._learn)
        self.algorithm.on_steps(begin, now)
        # Asked until it is true: neither the steps nor the buffer go back.
        self._ready = self._ready or (now >= config.learning_starts and len(self.source) >= config.batch_size)
        if self._ready:
            phases = now // config.train_frequency - begin // config.train_frequency
            self._due = phases * config.gradient_steps
        if not self._overlap or now >= self.total_timesteps:
            self._learn()
        return now - begin

    def _learn(self) -> None:
        """The updates that are due."""
        if self._due:
            with self.timer.stage("learn"):
                metrics = updated(self.algorithm, self.source, self._due, self.progress, ask=self.iterations % 100 == 0)
            self.metrics = {**metrics, **self.collector.explorer.metrics()}
            self._due = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "due": self._due, "source": self.source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._due = index(state["due"])
        self.source.load_state_dict(state["source"])


class OfflineTrainer(BaseTrainer):
    """Learn from a source of batches that does not grow. Steps are gradient steps, here and wherever frequencies count them."""

    resume_grade = "exact"

    def __init__(
        self,
        algorithm: BatchAlgorithm[Any],
        source: BatchSource,
        total_timesteps: int,
        callbacks: Sequence[Callback] = (),
        *,
        seed: int,
        updates_per_iteration: int = 100,
    ):
        """A run can be saved or stopped after every `updates_per_iteration` gradient steps."""
        super().__init__(total_timesteps, callbacks, StageTimer(), seed)
        self.algorithm, self.source, self._updates = algorithm, source, updates_per_iteration

    def _start(self) -> None:
        """There is nothing to prepare."""

    def _iterate(self) -> int:
        updates = min(self._updates, self.total_timesteps - self.global_step)
        with self.timer.stage("learn"):
            self.metrics = updated(self.algorithm, self.source, updates, self.progress, ask=True)
        self.algorithm.on_steps(self.global_step, self.global_step + updates)
        return updates

    def episode_summary(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "source": self.source.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.source.load_state_dict(state["source"])


def updated(
    algorithm: BatchAlgorithm[Any], source: BatchSource, updates: int, progress: float, *, ask: bool
) -> Metrics:
    """The means of the metrics of so many updates. Raises NonFiniteError if one went wrong, on a GPU only if `ask`."""
    means, metrics = MetricMeans(), Metrics()
    for _ in range(updates):
        batch = source.sample(algorithm.config.batch_size, progress)
        metrics = algorithm.update(batch, progress)
        source.feedback(batch, algorithm.priorities())
        if updates > 1:
            means.add_metrics(metrics)
    # Asking a GPU would stall it, and nothing is applied after a bad loss anyway: there, ask now and then.
    if ask or algorithm.device.type == "cpu":
        for optimizer in algorithm.optimizers().values():
            optimizer.raise_if_nonfinite()
    return metrics if updates == 1 else means.means()
