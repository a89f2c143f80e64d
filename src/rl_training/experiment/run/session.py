"""One training run from start, or from a checkpoint, to its end."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from gymnasium.vector import VectorEnv

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.checkpoint.replay_segments import INFO as REPLAY_SEGMENTS
from rl_training.experiment.checkpoint.replay_segments import ReplaySegments
from rl_training.experiment.checkpoint.snapshot import (
    REPLAY_LEFT_OUT,
    REPLAY_LEFT_OUT_NOTE,
    Spaces,
    config_of,
    restore,
    take_snapshot,
)
from rl_training.experiment.checkpoint.store import Checkpoint, CheckpointStore, write_checkpoint
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.console.lines import make_console
from rl_training.experiment.run.build import build_trainer
from rl_training.experiment.run.changes import Change
from rl_training.experiment.run.env_source import EnvSource
from rl_training.experiment.run.lock import RunLock
from rl_training.experiment.run.logging import MetricReader, RunLogger
from rl_training.experiment.run.memory import memory_named
from rl_training.experiment.run.metadata import RunMetadata
from rl_training.experiment.run.reference import Reference
from rl_training.experiment.run.run_dir import CHECKPOINTS, CONFIG, CRASH, SCRATCH, VIDEOS, write_atomically
from rl_training.experiment.run.signals import stop_on_signals
from rl_training.experiment.versions import changed_versions, run_versions
from rl_training.runtime.callbacks import (
    Callback,
    Evaluate,
    SaveCheckpoints,
    StopOnNoImprovement,
    StopOnReward,
    StopOnTime,
)
from rl_training.runtime.evaluator import EvaluationResult, Evaluator
from rl_training.runtime.step_infos import LogInfos
from rl_training.runtime.video import RecordVideos
from rl_training.utils.errors import AxiomError, NonFiniteError, WriteError

VERSIONS = "versions"
"""In a checkpoint's info: what it was computed with."""


@dataclass(frozen=True)
class TrainResult:
    """How a call to train ended."""

    metrics: dict[str, float]
    """The newest numbers; `global_step` is always there."""
    evaluation: EvaluationResult | None
    """The last evaluation, if any."""
    stop_reason: str | None
    """Why it ended before `total_timesteps`; None if it did not."""
    exit_code: int
    """0, or 130 / 143 after a signal."""
    resume_grade: str | None
    """`exact`, `other-versions` or `episode-boundary` for a resumed run."""
    run_dir: Path | None = None
    checkpoint_path: Path | None = None
    """The newest checkpoint."""
    best_checkpoint_path: Path | None = None
    best_score: float | None = None
    """Mean return of the best evaluation, which the best checkpoint had."""
    reference: Reference | None = None
    """The shipped result that the run is measured against."""
    notes: tuple[str, ...] = field(default=())
    """What had to be said while resuming, e.g. a damaged checkpoint that was skipped."""


class TrainingSession:
    """The parts of one run, wired together. Without a run directory it trains in memory and writes nothing."""

    def __init__(
        self,
        config: TrainConfig,
        algorithm: Algorithm[Any, Any],
        envs: VectorEnv[Any, Any, Any] | None,
        env_source: EnvSource,
        *,
        run_dir: Path | None = None,
        lock: RunLock | None = None,
        callbacks: Sequence[Callback] = (),
        reference: Reference | None = None,
    ):
        """`envs` is None for a run that learns from its source's dataset; `lock` is the run's, if it is held already."""
        self.config, self.algorithm, self.run_dir = config, algorithm, run_dir
        self.reference = reference
        self.spaces = Spaces.of(env_source.dataset if envs is None else envs)
        self.envs = envs
        self.metadata: RunMetadata | None = None
        self.store: CheckpointStore | None = None
        self.notes: list[str] = []
        self._replay_left_out = False
        self._versions = run_versions(config.env_id, envs)
        self._changed_versions: list[str] = []
        self._reader = MetricReader(config.logging.every)
        self._env_source = env_source
        self._lock: RunLock | None = None
        if run_dir is not None:
            self._lock = lock or RunLock(run_dir)
            self._lock.acquire()
            if self._lock.unsupported:
                self.notes.append(f"{run_dir}: this disk has no locks; make sure that no other process trains there")
            self.store = CheckpointStore(run_dir / CHECKPOINTS, config.checkpoint.keep)
            self.metadata = RunMetadata.open(run_dir, config, str(algorithm.device), self.notes)
        self._saver = SaveCheckpoints(self._save, every=config.checkpoint.every) if self.store is not None else None
        self._before, self._after = self._own_callbacks()
        # A run's scratch folder goes with the run; without a run directory it goes with the session.
        self._temporary = tempfile.TemporaryDirectory(prefix="axiomrl-") if run_dir is None else None
        scratch = Path(self._temporary.name) if self._temporary is not None else run_dir / SCRATCH  # type: ignore[operator]
        ordered = [*self._before, *callbacks, *self._after]
        with self._failure_recorded():
            self.trainer = build_trainer(config, algorithm, envs, env_source, ordered, scratch)
        self._segments = ReplaySegments(run_dir / CHECKPOINTS) if run_dir is not None else None

    def resume(self, checkpoint: Checkpoint, changes: Sequence[Change] = ()) -> None:
        """Continues from a checkpoint; the lineage says from which, and how exactly the environments came back."""
        restore(checkpoint, self.algorithm, self.trainer)  # if it does not fit, the run stays as it is
        in_place = self.store is not None and checkpoint.path.parent == self.store.folder
        before, now = config_of(checkpoint), self.config
        if not in_place or (before.total_timesteps, before.stopping) != (now.total_timesteps, now.stopping):
            self.trainer.stop_reason = None  # whoever asks for more, or for other rules, gets it
        with self._failure_recorded():
            if in_place:
                self._roll_back(checkpoint)
            self._record_resume(checkpoint, changes)

    def _roll_back(self, checkpoint: Checkpoint) -> None:
        """Makes the run's files what they were when the checkpoint had been saved."""
        assert self.store is not None and self.metadata is not None and self._segments is not None and self._saver
        step = self.trainer.global_step
        if self._saver.best_step is None and self._saver.best > float("-inf"):  # saved before checkpoints named it
            self._saver.best_step = step if checkpoint.info.get("best") is True else self.store.best_step()
        self.store.roll_back(step, self._saver.best_step)
        self._segments.adopt(checkpoint)
        if self.trainer.replay is not None:
            self._segments.collect_garbage(self.store.path(saved) for saved in self.store.steps())
        best = self.store.best_step()
        self.metadata.values["best_checkpoint"] = (
            None if best is None else f"{CHECKPOINTS}/{self.store.path(best).name}"
        )

    def _record_resume(self, checkpoint: Checkpoint, changes: Sequence[Change]) -> None:
        self._replay_left_out = bool(checkpoint.info.get(REPLAY_LEFT_OUT))
        if self._replay_left_out:
            self.notes.append(REPLAY_LEFT_OUT_NOTE)
        elif self.resume_grade != "exact":
            self.notes.append(
                "the environments could not be brought back exactly, so fresh episodes were started (grade episode-boundary): "
                f"{self.trainer.resume_problem}"
            )
        self._changed_versions = changed_versions(checkpoint.info.get(VERSIONS), self._versions)
        if self._changed_versions:
            self.notes.append(
                "other versions than those of the checkpoint, so the numbers may be others than those of a run never stopped "
                f"(no better grade than other-versions): {'; '.join(self._changed_versions[:5])}"
            )
        if self.metadata is not None:
            self.metadata.add_resume(
                checkpoint.path.name, self.trainer.global_step, self.resume_grade or "unknown", self.notes, changes
            )
        if self.store is not None and not self.store.steps():
            # A new run directory: from here on, a kill at any instant must leave something to resume from in it.
            self._save(self.trainer.global_step, checkpoint.info.get("best") is True)

    def extend(self, config: TrainConfig, callbacks: Sequence[Callback]) -> None:
        """Prepares a further call of `train`, up to the new config's `total_timesteps`, with that call's callbacks."""
        if self._lock is not None and self.metadata is not None:
            self._lock.acquire()
            self.metadata.check_unchanged()
        self.config = config
        self.trainer.extend(config.total_timesteps, [*self._before, *callbacks, *self._after])
        if self.run_dir is not None and self.metadata is not None:
            write_atomically(self.run_dir / CONFIG, config.to_yaml())
            self.metadata.update(status="running", stop_reason=None)

    @property
    def resume_grade(self) -> str | None:
        """`exact`, `other-versions` or `episode-boundary` after a resume, None before one."""
        if self._replay_left_out:
            return "episode-boundary"
        grade = self.trainer.resume_grade
        return "other-versions" if grade == "exact" and self._changed_versions else grade

    def train(self) -> TrainResult:
        """Runs the training loop with signals, threads and failures taken care of."""
        try:
            with _torch_settings(self.config), stop_on_signals(self._interrupt) as received, self._failure_recorded():
                with memory_named("the run was training"):
                    self.trainer.train()
                self._record_end("interrupted" if received.number else "completed", self.trainer.stop_reason)
        finally:
            if self._lock is not None:
                self._lock.release()
        return self._result(received.exit_code)

    @contextmanager
    def _failure_recorded(self) -> Iterator[None]:
        """Whatever ends the run here stands in its metadata, if the disk still lets it."""
        try:
            yield
        except BaseException as error:
            status, reason = "failed", str(error) if isinstance(error, AxiomError) else repr(error)
            if isinstance(error, KeyboardInterrupt):
                status, reason = "interrupted", "stopped at once by a signal"
            with suppress(AxiomError):  # a full disk must not hide the error that matters
                if isinstance(error, NonFiniteError):
                    self._save_crash(error)
            with suppress(AxiomError):
                try:
                    self._record_end(status, reason)
                except WriteError:
                    if self.metadata is not None:
                        self.metadata.overwrite()
            raise

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(groups, info) of the whole state, for a checkpoint that stands alone."""
        groups, info = self._state()
        if self.trainer.replay is not None:
            groups["replay"] = self.trainer.replay.state_dict()
        return groups, info

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        groups, info = take_snapshot(self.config, self.algorithm, self.spaces, self.trainer)
        return groups, {**info, VERSIONS: self._versions}

    def _own_callbacks(self) -> tuple[list[Callback], list[Callback]]:
        """What runs before and after the user's callbacks: whatever changes state comes before the checkpoint."""
        config, callbacks = self.config, list[Callback]()
        if config.evaluation.every > 0:
            evaluator = Evaluator(
                self._env_source.evaluation_envs(config),
                num_envs=config.evaluation.num_envs,
                seed=config.seed,
                device=self.algorithm.device,
                max_episode_steps=config.evaluation.max_episode_steps,
            )
            callbacks.append(
                Evaluate(
                    evaluator,
                    self.algorithm.policy,
                    every=config.evaluation.every,
                    episodes=config.evaluation.episodes,
                    deterministic=config.evaluation.deterministic,
                )
            )
        if config.video.every > 0 and self.run_dir is not None:
            callbacks.append(self._record_videos(self.run_dir / VIDEOS))
        if config.stopping.reward is not None:
            callbacks.append(StopOnReward(config.stopping.reward))
        if config.stopping.patience is not None:
            callbacks.append(StopOnNoImprovement(config.stopping.patience))
        if config.stopping.max_seconds is not None:
            callbacks.append(StopOnTime(config.stopping.max_seconds))
        if config.logging.info_keys:
            callbacks.append(LogInfos(config.logging.info_keys))
        after: list[Callback] = [self._reader]
        if self.run_dir is not None:
            after.append(RunLogger(self.run_dir, tensorboard=config.logging.tensorboard, notes=self.notes))
        after.append(make_console(config, self.run_dir, self.reference))
        if self._saver is not None:
            after.append(self._saver)
        return callbacks, after

    def _record_videos(self, folder: Path) -> RecordVideos:
        video, evaluation = self.config.video, self.config.evaluation
        evaluator = Evaluator(
            self._env_source.evaluation_envs(self.config, film=True),
            num_envs=video.episodes,
            seed=self.config.seed,
            device=self.algorithm.device,
            max_episode_steps=evaluation.max_episode_steps,
        )
        return RecordVideos(
            evaluator,
            self.algorithm.policy,
            folder,
            **asdict(video),
            deterministic=evaluation.deterministic,
            notes=self.notes,
        )

    def _save(self, step: int, best: bool) -> None:
        assert self.store is not None and self.metadata is not None and self._segments is not None
        groups, info = self._state()
        if self.trainer.replay is not None:
            info[REPLAY_SEGMENTS] = self._segments.save(self.trainer.replay)
            groups["replay"] = {"head": self.trainer.replay.head_state()}
        path = self.store.save(step, groups, info, best=best)
        if self.trainer.replay is not None:
            self._segments.collect_garbage(self.store.path(saved) for saved in self.store.steps())
        if best:
            self.metadata.values["best_checkpoint"] = f"{CHECKPOINTS}/{path.name}"
        self.metadata.update(latest_metrics=self._latest_metrics())

    def _save_crash(self, error: NonFiniteError) -> None:
        """Keeps the state for inspection, apart from the checkpoints that a resume may use."""
        if self.run_dir is not None:
            groups, info = self.snapshot()
            write_checkpoint(self.run_dir / CRASH, groups, {**info, "error": str(error)})

    def _interrupt(self, name: str) -> None:
        self.trainer.stop(f"stopped by {name}", interrupted=True)

    def _record_end(self, status: str, reason: str | None) -> None:
        if self.metadata is not None:
            reached = {"latest_metrics": self._latest_metrics()} if hasattr(self, "trainer") else {}
            self.metadata.update(status=status, stop_reason=reason, **reached)

    def _latest_metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = {**self._reader.latest, "global_step": self.trainer.global_step}
        if self.trainer.last_evaluation is not None:
            metrics["evaluation/mean_return"] = self.trainer.last_evaluation.mean
        return metrics

    def _result(self, exit_code: int) -> TrainResult:
        steps = self.store.steps() if self.store is not None else []
        latest = self.store.path(steps[-1]) if self.store is not None and steps else None
        best = self.metadata.values.get("best_checkpoint") if self.metadata is not None else None
        return TrainResult(
            metrics=self._latest_metrics(),
            evaluation=self.trainer.last_evaluation,
            stop_reason=self.trainer.stop_reason,
            exit_code=exit_code,
            resume_grade=self.resume_grade,
            run_dir=self.run_dir,
            checkpoint_path=latest,
            best_checkpoint_path=self.run_dir / best if self.run_dir is not None and best else None,
            best_score=self._saver.best if self._saver is not None and best else None,
            reference=self.reference,
            notes=tuple(self.notes),
        )


@contextmanager
def _torch_settings(config: TrainConfig) -> Iterator[None]:
    """A fixed number of threads, because the order of a parallel sum, and so its last bit, depends on it; and TF32 if wanted."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_num_threads(config.num_threads)
    torch.set_float32_matmul_precision("high" if config.precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)
