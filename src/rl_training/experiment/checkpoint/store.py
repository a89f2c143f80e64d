"""The checkpoints of a run: saved with rotation, found again newest first, damaged ones set aside.

``folder`` writes and reads a single one; its public names can be imported from here.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rl_training.experiment.checkpoint.codec import Json, Tree
from rl_training.experiment.checkpoint.files import fsync_folder, open_regular, sibling, sweep, write_bytes
from rl_training.experiment.checkpoint.folder import (
    MANIFEST,
    Checkpoint,
    FormatVersionError,
    hit,
    read_checkpoint,
    write_checkpoint,
    write_error,
)
from rl_training.utils.errors import CheckpointError, UserError

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "FormatVersionError",
    "read_checkpoint",
    "resolve_checkpoint",
    "write_checkpoint",
]

_STEP_FOLDER = re.compile(r"step_(\d{9}|[1-9]\d{9,17})")


class CheckpointStore:
    """The ``checkpoints/`` folder of a run: ``step_000050000/``, …, and the pointers ``latest`` and ``best``.

    After each save the newest ``keep`` checkpoints stay, and the best one. One process writes; others read.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        if keep < 1:
            raise UserError(f"checkpoint.keep must be at least 1, not {keep}")
        self.folder = Path(folder)
        self.keep = keep

    def path(self, step: int) -> Path:
        """Where the checkpoint of ``step`` is, or would be."""
        return self.folder / f"step_{step:09d}"

    def steps(self) -> list[int]:
        """Environment steps that have a checkpoint folder, ascending; not verified."""
        if not self.folder.is_dir():
            return []
        matches = [_STEP_FOLDER.fullmatch(entry.name) for entry in self.folder.iterdir() if entry.is_dir()]
        return sorted(int(match[1]) for match in matches if match)

    def save(self, step: int, groups: Mapping[str, Tree], info: Mapping[str, Json], *, best: bool = False) -> Path:
        """Write the checkpoint of ``step``, point to it, rotate. ``info`` gains ``step`` and ``best``."""
        path = self.path(step)
        # Saving the best step once more (as the last of a run) does not make it less good.
        best = best or _pointed_step(self.folder / "best") == step
        write_checkpoint(path, groups, {**info, "step": step, "best": best})
        try:
            if best:
                _point(self.folder / "best", path.name)
            _point(self.folder / "latest", path.name)
            self._rotate()
        except OSError as error:
            raise write_error(path, error) from error
        return path

    def load_latest(
        self, groups: Collection[str] | None = None, verify: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> tuple[Checkpoint, list[str]]:
        """The newest sound checkpoint, and a message for each damaged one that was set aside.

        ``verify`` may raise CheckpointError for damage that lies outside the checkpoint's own folder.
        """
        with contextlib.suppress(OSError):  # a run folder that can only be read can still be loaded
            sweep(self.folder)
        messages: list[str] = []
        for step in reversed(self.steps()):
            path = self.path(step)
            try:
                checkpoint = read_checkpoint(path, groups)
                verify(checkpoint)
            except FormatVersionError:
                raise
            except UserError:
                if path.exists():
                    raise
                continue  # rotated out by the run that writes here
            except CheckpointError as error:
                messages.append(f"{error}; {_set_aside(path)}")
                continue
            with contextlib.suppress(OSError):
                self._repair_pointers(step, best=checkpoint.info.get("best") is True)
            return checkpoint, messages
        found = "\n".join(messages) or "it holds no step_… folder"
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {found}")

    def load_best(self, groups: Collection[str] | None = None) -> Checkpoint:
        """The checkpoint with the best evaluation so far."""
        candidates = [step for step in [_pointed_step(self.folder / "best")] if step is not None]
        for step in self.steps():
            # A crash between folder and pointer leaves the pointer one behind; the folder has the flag too.
            with contextlib.suppress(CheckpointError):
                if read_checkpoint(self.path(step), ()).info.get("best") is True:
                    candidates.append(step)
        if not candidates:
            raise CheckpointError(f"no best checkpoint in {self.folder}: no evaluation has marked one yet")
        return read_checkpoint(self.path(max(candidates)), groups)

    def _rotate(self) -> None:
        steps = self.steps()
        pointed = {_pointed_step(self.folder / name) for name in ("latest", "best")}
        for step in steps[: -self.keep]:
            if step not in pointed:
                hit()
                # Renamed first, so that no reader meets a checkpoint with half of its files.
                doomed = sibling("del", self.path(step))
                self.path(step).rename(doomed)
                shutil.rmtree(doomed, ignore_errors=True)
                hit()
        sweep(self.folder)

    def _repair_pointers(self, step: int, *, best: bool) -> None:
        for name in ("best", "latest") if best else ("latest",):
            if _pointed_step(self.folder / name) != step:
                _point(self.folder / name, self.path(step).name)


def resolve_checkpoint(path: Path) -> Path:
    """The checkpoint folder that ``path`` means.

    ``path`` is a checkpoint folder, a run folder or its ``checkpoints`` folder (the newest one), or a pointer
    file ``RUN/checkpoints/latest`` or ``RUN/checkpoints/best``. Anything else is a UserError that says so.
    """
    path = Path(path)
    if not path.exists() and path.parent.is_dir():
        with contextlib.suppress(OSError):
            sweep(path.parent, path.name)
    if (path / MANIFEST).exists():
        return path
    if path.is_dir():
        store = CheckpointStore(path / "checkpoints" if (path / "checkpoints").is_dir() else path, keep=1)
        if steps := store.steps():
            return store.path(steps[-1])
        raise UserError(f"{path} holds no checkpoint; give a run folder that has saved one")
    if path.name in ("latest", "best") and path.parent.is_dir():
        store, step = CheckpointStore(path.parent, keep=1), _pointed_step(path)
        if step is not None and store.path(step).is_dir():
            return store.path(step)
        raise UserError(f"{path} points to no checkpoint; try the run folder {path.parent.parent}")
    if path.exists():
        raise UserError(f"{path} is a file; give the checkpoint folder that it is in: {path.parent}")
    raise UserError(f"{path} does not exist; give a run folder (runs/…) or a checkpoint (runs/…/checkpoints/step_…)")


def _point(pointer: Path, name: str) -> None:
    """Replace the small file ``pointer`` by one that says ``name``."""
    temporary = sibling("tmp", pointer)
    try:
        hit()
        temporary.unlink(missing_ok=True)
        write_bytes(temporary, [name.encode() + b"\n"])
        hit()
        temporary.replace(pointer)
        fsync_folder(pointer.parent)
        hit()
    finally:
        temporary.unlink(missing_ok=True)


def _pointed_step(pointer: Path) -> int | None:
    """The step a pointer file names; None when there is no such file or it makes no sense."""
    try:
        with open_regular(pointer) as file:
            match = _STEP_FOLDER.fullmatch(file.read(100).decode("ascii", "replace").strip())
    except (CheckpointError, OSError):
        return None
    return int(match[1]) if match else None


def _set_aside(path: Path) -> str:
    """Rename a damaged checkpoint so that no later load meets it; says what was done."""
    if not path.exists():
        return "it is gone now"
    count, target = 0, path.with_name(f"damaged-{path.name}")
    while os.path.lexists(target):
        count += 1
        target = path.with_name(f"damaged-{path.name}-{count}")
    try:
        path.rename(target)
    except OSError as error:
        return f"skipped, but could not be set aside: {error.strerror}"
    return f"set aside as {target.name}"
