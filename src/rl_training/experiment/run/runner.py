"""Starting and resuming runs that live in run directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rl_training.experiment.checkpoint.replay_segments import ReplaySegments
from rl_training.experiment.checkpoint.snapshot import Spaces, check_policy_fits, config_of
from rl_training.experiment.checkpoint.store import Checkpoint, CheckpointStore, read_checkpoint, resolve_checkpoint
from rl_training.experiment.config.loader import ResolvedConfig, load_config
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import EnvSource, build_algorithm, complete_config, select_device
from rl_training.experiment.run.reference import Reference, save_reference
from rl_training.experiment.run.run_dir import CHECKPOINTS, CONFIG, METADATA, make_run_dir, write_atomically
from rl_training.experiment.run.session import TrainingSession, TrainResult
from rl_training.runtime.callbacks import Callback
from rl_training.utils.errors import UserError

FREE_TO_CHANGE = {"total_timesteps", "device", "output_dir", "evaluation", "checkpoint", "logging", "stopping"}
"""Config keys that a resume may change: none of them alters what a step of training computes, but for schedules, which
follow the new total."""

FindReference = Callable[[TrainConfig], Reference | None]
"""From a config with every hyperparameter written out to what a run of it is measured against."""


def start_run(
    source: TrainConfig | ResolvedConfig,
    callbacks: Sequence[Callback] = (),
    *,
    find_reference: FindReference | None = None,
) -> TrainResult:
    """A new run from its beginning, in a run directory of its own."""
    return _run(source, None, None, (), callbacks, find_reference)


def resume_run(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    device: str | None = None,
    find_reference: FindReference | None = None,
) -> TrainResult:
    """Continues a run.

    A run folder, or its newest checkpoint, continues in place; an older checkpoint, or a saved agent, continues in a new run
    directory, because the run it came from went on differently.
    """
    run_dir, checkpoint, notes = _find_checkpoint(Path(path))
    if "runtime" not in checkpoint.groups:
        raise UserError(f"{checkpoint.path} holds a policy but no training state, so there is nothing to resume.")
    config = config_of(checkpoint)
    if run_dir is not None:
        config = _current_config(run_dir, config)
    else:
        notes = [*notes, f"continues {checkpoint.path} in a new run directory"]
    if total_timesteps is not None:
        config = replace(config, total_timesteps=total_timesteps)
    if device is not None:
        config = replace(config, device=device)
    return _run(config, run_dir, checkpoint, notes, (), find_reference)


def _run(
    source: TrainConfig | ResolvedConfig,
    run_dir: Path | None,
    checkpoint: Checkpoint | None,
    notes: Sequence[str],
    callbacks: Sequence[Callback],
    find_reference: FindReference | None,
) -> TrainResult:
    config, hyperparams = complete_config(source)
    device = select_device(config.device)
    env_source = EnvSource()
    envs = env_source.training_envs(config)
    try:
        spaces = Spaces.of(envs)
        if checkpoint is not None:
            check_policy_fits(checkpoint, config, hyperparams, spaces)
        algorithm = build_algorithm(config, hyperparams, spaces.observation, spaces.action, device)
        # Only now, when the config has proved to be runnable, is anything written.
        if run_dir is None:
            run_dir = make_run_dir(config)
        else:
            write_atomically(run_dir / CONFIG, config.to_yaml())
        reference = find_reference(config) if find_reference is not None else None
        save_reference(run_dir, reference)
        session = TrainingSession(
            config, algorithm, envs, env_source, run_dir=run_dir, callbacks=callbacks, reference=reference
        )
        if checkpoint is not None:
            session.resume(checkpoint, notes)
        return session.train()
    finally:
        if envs is not None:
            envs.close()


def _current_config(run_dir: Path, saved: TrainConfig) -> TrainConfig:
    """The run's own config file, which may have changed since the checkpoint only in what leaves the training as it was."""
    path = run_dir / CONFIG
    if not path.exists():
        return saved
    current = load_config(path)
    if current.algo != saved.algo:
        raise UserError(f"{path} is for algorithm {current.algo!r}, but the run's checkpoints are of {saved.algo!r}.")
    for section in sorted(set(saved.to_dict()) - FREE_TO_CHANGE):
        if current.to_dict()[section] != saved.to_dict()[section]:
            raise UserError(
                f"{path} was edited: {section!r} differs from the checkpoint, and a resumed run must be the same run.\n"
                f"Undo the edit, or start a new run with it: axiomrl train --config {path}"
            )
    return current


def open_checkpoint(path: str | Path, *, best: bool = False) -> tuple[Checkpoint, list[str]]:
    """The checkpoint that a path means: of a run the newest sound one or the best, otherwise the folder itself.

    Also returns what had to be skipped on the way.
    """
    path = Path(path)
    run_dir = _run_of(path)
    if best:
        if run_dir is None:
            raise UserError(f"{path} is not in a run folder, so it has no best checkpoint")
        return CheckpointStore(run_dir / CHECKPOINTS, keep=1).load_best(), []
    _, checkpoint, notes = _find_checkpoint(path)
    return checkpoint, notes


def _find_checkpoint(path: Path) -> tuple[Path | None, Checkpoint, list[str]]:
    """(run to continue in place or None, checkpoint, what was skipped)."""
    run_dir = _run_of(path)
    if run_dir is not None and (path == run_dir or path.name in (CHECKPOINTS, "latest")):
        segments = ReplaySegments(run_dir / CHECKPOINTS)
        checkpoint, notes = CheckpointStore(run_dir / CHECKPOINTS, keep=1).load_latest(verify=segments.verify)
        return run_dir, checkpoint, notes
    folder = resolve_checkpoint(path)
    checkpoint = read_checkpoint(folder)
    if run_dir is not None:
        store = CheckpointStore(run_dir / CHECKPOINTS, keep=1)
        if folder.resolve() == store.path(store.steps()[-1]).resolve():
            return run_dir, checkpoint, []
    return None, checkpoint, []


def _run_of(path: Path) -> Path | None:
    """The run directory that `path` is or lies in."""
    for candidate in (path, path.parent, path.parent.parent):
        if (candidate / METADATA).is_file() and (candidate / CHECKPOINTS).is_dir():
            return candidate
    return None
