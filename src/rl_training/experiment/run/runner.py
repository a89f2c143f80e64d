"""Starting and resuming runs that live in run directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym

from rl_training.experiment.checkpoint.replay_segments import ReplaySegments
from rl_training.experiment.checkpoint.snapshot import Spaces, check_policy_fits, config_of, spaces_of
from rl_training.experiment.checkpoint.store import Checkpoint, CheckpointStore, read_checkpoint, resolve_checkpoint
from rl_training.experiment.config.loader import ResolvedConfig, load_config, resolve
from rl_training.experiment.config.stored import stored_config
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import build_algorithm, complete_config
from rl_training.experiment.run.changes import (
    ENV_ID,
    FREE_TO_CHANGE,
    Change,
    changed_config,
    changes_learning,
    describe,
    recorded_changes,
)
from rl_training.experiment.run.device import select_device
from rl_training.experiment.run.env_source import EnvSource
from rl_training.experiment.run.lock import RunLock
from rl_training.experiment.run.memory import check_buffers
from rl_training.experiment.run.metadata import RunMetadata
from rl_training.experiment.run.reference import Reference, save_reference
from rl_training.experiment.run.run_dir import CHECKPOINTS, CONFIG, METADATA, make_run_dir, write_atomically
from rl_training.experiment.run.session import TrainingSession, TrainResult
from rl_training.runtime.callbacks import Callback
from rl_training.utils.disk import sweep, writing
from rl_training.utils.errors import CheckpointError, UserError
from rl_training.utils.safe_files import MAX_INT

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
    changes: Mapping[str, Any] | None = None,
    env_id: str | None = None,
    find_reference: FindReference | None = None,
) -> TrainResult:
    """Continues a run.

    A run folder, or its newest checkpoint, continues in place; an older checkpoint, or a saved agent, continues in a new run
    directory, because the run it came from went on differently. `changes` are config values by dotted key, which the run's
    lineage records. `env_id` names the environment of a run whose own was handed over in Python; any other environment is
    another task, which begins with fresh episodes in a new run directory.
    """
    run_dir = _run_to_continue(Path(path))
    with nullcontext() if run_dir is None else RunLock(run_dir) as lock:
        checkpoint, notes = _take_checkpoint(Path(path), run_dir)
        config = _config_to_resume(run_dir, checkpoint)
        named: list[Change] = []
        if env_id is not None and env_id != config.env_id:
            if checkpoint is None or config.env_id in gym.registry:
                notes = [*notes, f"{env_id} instead of {config.env_id}: another task, so it starts with fresh episodes"]
                if lock is not None:
                    lock.release()
                run_dir, lock = None, None
            if checkpoint is not None and run_dir is None:
                forget_envs(checkpoint)
            if run_dir is not None:
                named = [Change(key=ENV_ID, old=config.env_id, new=env_id)]
            config = replace(config, env_id=env_id)
        if run_dir is None and checkpoint is not None:
            notes = [*notes, f"continues {checkpoint.path} in a new run directory"]
        asked = {"total_timesteps": total_timesteps, "device": device}
        wanted = {**(changes or {}), **{key: value for key, value in asked.items() if value is not None}}
        if run_dir is not None and "output_dir" in wanted:
            raise UserError(f"the run stays in its folder {run_dir}, so output_dir cannot change on resume")
        config, changed = changed_config(config, wanted)
        if checkpoint is not None:
            _check_total(checkpoint, config, wanted)
        if changes_learning(changed):
            notes = [*notes, f"not the same run from here on: {describe(changed)}"]
        return _run(config, run_dir, checkpoint, notes, (), find_reference, [*named, *changed], lock)


def _config_to_resume(run_dir: Path | None, checkpoint: Checkpoint | None) -> TrainConfig:
    if checkpoint is None:
        assert run_dir is not None
        return load_config(run_dir / CONFIG)
    if "runtime" not in checkpoint.groups:
        raise UserError(f"{checkpoint.path} holds a policy but no training state, so there is nothing to resume.")
    config = config_of(checkpoint)
    return config if run_dir is None else _current_config(run_dir, config)


def _check_total(checkpoint: Checkpoint, config: TrainConfig, wanted: Mapping[str, Any]) -> None:
    step = checkpoint.groups["runtime"].get("global_step")
    if "total_timesteps" in wanted and isinstance(step, int) and config.total_timesteps <= step <= MAX_INT:
        raise UserError(
            f"the run has taken {step:,} steps already, and total_timesteps={config.total_timesteps:,} counts those too: "
            f"ask for more, e.g. --total-timesteps {2 * step}"
        )


def forget_envs(checkpoint: Checkpoint) -> None:
    """Takes the environments' own state out of a checkpoint that goes on in other ones."""
    collector = checkpoint.groups.get("runtime", {}).get("collector")
    if isinstance(collector, dict) and isinstance(collector.get("envs"), dict):
        collector["envs"]["envs"] = None


def _run(
    source: TrainConfig | ResolvedConfig,
    run_dir: Path | None,
    checkpoint: Checkpoint | None,
    notes: Sequence[str],
    callbacks: Sequence[Callback],
    find_reference: FindReference | None,
    changed: Sequence[Change] = (),
    lock: RunLock | None = None,
) -> TrainResult:
    config, hyperparams = complete_config(source)
    device = select_device(config.device)
    env_source = EnvSource()
    envs = env_source.training_envs(config)
    try:
        spaces = Spaces.of(envs)
        if checkpoint is not None:
            if config.env_id != config_of(checkpoint).env_id and spaces != (trained := spaces_of(checkpoint)):
                raise UserError(
                    f"{config.env_id} has other spaces than the run was trained on, so it cannot go on there:\n"
                    f"observations {spaces.observation}, not {trained.observation}; actions {spaces.action}, not {trained.action}"
                )
            check_policy_fits(checkpoint, config, hyperparams, spaces)
        algorithm = build_algorithm(config, hyperparams, spaces.observation, spaces.action, device)
        check_buffers(config, hyperparams, spaces, device)
        env_source.check_video(config)
        # Only now, when the config has proved to be runnable, is anything written.
        resumed_in_place = run_dir is not None
        if run_dir is None:
            run_dir = make_run_dir(config)
        # A run whose hyperparameters changed on the way is not what a result of the same config was measured on.
        mixed = changes_learning(changed) or (resumed_in_place and any(key != ENV_ID for key in _recorded(run_dir)))
        reference = find_reference(config) if find_reference is not None and not mixed else None
        save_reference(run_dir, reference)
        session = TrainingSession(
            config, algorithm, envs, env_source, run_dir=run_dir, lock=lock, callbacks=callbacks, reference=reference
        )
        session.notes += notes
        if checkpoint is not None:
            try:
                session.resume(checkpoint, changed)
            except CheckpointError as error:
                if not changes_learning(changed):
                    raise
                raise UserError(f"the saved state does not go with {describe(changed)}: {error}") from error
        if resumed_in_place:  # only now, when the state has proved to fit
            write_atomically(run_dir / CONFIG, config.to_yaml())
        return session.train()
    finally:
        if envs is not None:
            envs.close()


def _current_config(run_dir: Path, saved: TrainConfig) -> TrainConfig:
    """The run's own config file, which may have changed since the checkpoint only in what leaves the training as it was."""
    path = run_dir / CONFIG
    if not path.exists():
        return saved
    # What a resume has changed stands in the lineage first; a kill can come before it stands in the file.
    current = stored_config(resolve(path, _recorded(run_dir), "metadata.json").config.to_dict())
    if current.algo != saved.algo:
        raise UserError(f"{path} is for algorithm {current.algo!r}, but the run's checkpoints are of {saved.algo!r}.")
    expected = resolve(saved, _recorded(run_dir), "metadata.json").config.to_dict()
    for section in sorted(set(expected) - FREE_TO_CHANGE):
        if current.to_dict()[section] != expected[section]:
            raise UserError(
                f"{path} was edited: {section!r} differs from the checkpoint, and a resumed run must be the same run.\n"
                f"Undo the edit, or start a new run with it: axiomrl train --config {path}"
            )
    return current


def _recorded(run_dir: Path) -> dict[str, Any]:
    try:
        return recorded_changes(RunMetadata.load(run_dir).values.get("resumes"))
    except UserError:  # not there yet, or damaged: then the session makes a new one and says so
        return {}


def open_checkpoint(path: str | Path, *, best: bool = False) -> tuple[Checkpoint, list[str]]:
    """The checkpoint that a path means: of a run the newest sound one or the best, otherwise the folder itself.

    Also returns what had to be skipped on the way. Nothing is changed, so a run can be read while it trains.
    """
    path = Path(path)
    run_dir = _run_of(path)
    if best:
        if run_dir is None:
            raise UserError(f"{path} is not in a run folder, so it has no best checkpoint")
        if not _means_run(path, run_dir):
            raise UserError(f"{path} is one checkpoint; name the run for its best one: {run_dir}")
        return CheckpointStore(run_dir / CHECKPOINTS, keep=1).load_best(), []
    if run_dir is not None and _means_run(path, run_dir):
        store = CheckpointStore(run_dir / CHECKPOINTS, keep=1)
        return store.load_latest(verify=ReplaySegments(store.folder).verify)
    return read_checkpoint(resolve_checkpoint(path)), []


def _take_checkpoint(path: Path, run_dir: Path | None) -> tuple[Checkpoint | None, list[str]]:
    """(the checkpoint to resume from, what is to be said about it) for the one who may write; mends what a crash left.

    None for a run that was killed before its first checkpoint: it begins again.
    """
    if run_dir is None:
        return read_checkpoint(resolve_checkpoint(path)), []
    store, segments = CheckpointStore(run_dir / CHECKPOINTS, keep=1), ReplaySegments(run_dir / CHECKPOINTS)
    with writing(run_dir):
        sweep(run_dir)
    segments.recover()
    if _means_run(path, run_dir):
        if not store.steps() and not any(store.folder.glob("damaged-*")):
            return None, ["the run had no checkpoint yet, so it begins again"]
        return store.recover(segments.verify)
    checkpoint = read_checkpoint(resolve_checkpoint(path))
    segments.verify(checkpoint)
    return checkpoint, []


def _run_to_continue(path: Path) -> Path | None:
    """The run that a resume of `path` continues in place; None if it needs a run directory of its own."""
    run_dir = _run_of(path)
    if run_dir is None or _means_run(path, run_dir):
        return run_dir
    store = CheckpointStore(run_dir / CHECKPOINTS, keep=1)
    newest = [store.path(step).resolve() for step in store.steps()[-1:]]
    return run_dir if resolve_checkpoint(path).resolve() in newest else None


def _means_run(path: Path, run_dir: Path) -> bool:
    """Whether a path in a run names the run itself, and not one of its checkpoints."""
    return path == run_dir or path.name in (CHECKPOINTS, "latest")


def _run_of(path: Path) -> Path | None:
    """The run directory that `path` is or lies in; `path` may be seen from inside the run, as `latest` or `.`."""
    whole = path.absolute()  # not resolve(), which would follow a link out of the run
    for candidate in (path, path.parent, path.parent.parent, whole.parent, whole.parent.parent):
        if (candidate / CHECKPOINTS).is_dir() and any((candidate / name).is_file() for name in (METADATA, CONFIG)):
            return candidate
    return None
