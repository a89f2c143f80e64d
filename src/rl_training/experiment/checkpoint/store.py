"""The checkpoints of a run: saved with rotation, found again newest first, damaged ones passed over.

Whoever reads changes nothing. Only the run's one writer, which holds its lock, sweeps, sets damaged checkpoints aside and rotates.

``folder`` writes and reads a single one; its public names can be imported from here.
"""

import contextlib
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from rl_training.experiment.checkpoint.codec import Json, Tree
from rl_training.experiment.checkpoint.folder import (
    MANIFEST,
    Checkpoint,
    FormatVersionError,
    hit,
    read_checkpoint,
    write_checkpoint,
)
from rl_training.utils.disk import discard, replace_file, set_aside, standing_in, sweep, writing
from rl_training.utils.errors import CheckpointError, UserError
from rl_training.utils.safe_files import SpecialFileError, open_regular

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "FormatVersionError",
    "read_checkpoint",
    "resolve_checkpoint",
    "write_checkpoint",
]

_STEP_FOLDER = re.compile(r"step_(\d{9}|[1-9]\d{9,17})")
_OLD = ".old-"
"""Begins the name of a checkpoint that was moved aside for its replacement; a crash may leave it without one."""
_TRIES = 3
"""How often a reader looks again when what it was about to read has been rotated out."""

Verify = Callable[[Checkpoint], None]
"""May raise CheckpointError for damage that lies outside the checkpoint's own folder."""


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
        names = [entry.name.removeprefix(_OLD) for entry in self.folder.iterdir() if entry.is_dir()]
        return sorted({int(match[1]) for match in map(_STEP_FOLDER.fullmatch, names) if match})

    def best_step(self) -> int | None:
        """The step that ``best`` points to."""
        return _pointed_step(self.folder / "best")

    def save(self, step: int, groups: Mapping[str, Tree], info: Mapping[str, Json], *, best: bool = False) -> Path:
        """Write the checkpoint of ``step``, point to it, rotate. ``info`` gains ``step`` and ``best``."""
        path = self.path(step)
        # Saving the best step once more (as the last of a run) does not make it less good.
        best = best or self.best_step() == step
        write_checkpoint(path, groups, {**info, "step": step, "best": best})
        with writing(path):
            if best:
                _point(self.folder / "best", step)
            _point(self.folder / "latest", step)
            self._rotate()
        return path

    def load_latest(
        self, groups: Collection[str] | None = None, verify: Verify = lambda checkpoint: None
    ) -> tuple[Checkpoint, list[str]]:
        """The newest sound checkpoint, and a message for each damaged one that was passed over. Changes nothing."""
        tries, steps = 0, self.steps()
        while True:
            try:
                checkpoint, damaged = self._newest_sound(groups, verify)
                return checkpoint, [f"{error}; passed over" for error in damaged.values()]
            except CheckpointError:
                tries, before, steps = tries + 1, steps, self.steps()
                # If nothing was rotated meanwhile, looking again would find the same.
                if steps == before or tries == _TRIES:
                    raise

    def recover(self, verify: Verify = lambda checkpoint: None) -> tuple[Checkpoint, list[str]]:
        """The same for the run's one writer: leftovers are swept first, and damaged checkpoints are set aside."""
        with writing(self.folder):
            sweep(self.folder)
        checkpoint, damaged = self._newest_sound(None, verify)
        return checkpoint, [f"{error}; {_set_aside(path)}" for path, error in damaged.items()]

    def roll_back(self, step: int, best_step: int | None) -> None:
        """Makes the folder what it was when the save of ``step``, its newest checkpoint, had ended."""
        with writing(self.folder):
            if best_step is not None and self.path(best_step).is_dir():
                _point(self.folder / "best", best_step)
            else:
                (self.folder / "best").unlink(missing_ok=True)
            _point(self.folder / "latest", step)
            self._rotate()

    def load_best(self, groups: Collection[str] | None = None) -> Checkpoint:
        """The checkpoint with the best evaluation so far."""
        candidates = [step for step in [self.best_step()] if step is not None]
        for step in self.steps():
            # A crash between folder and pointer leaves the pointer one behind; the folder has the flag too.
            with contextlib.suppress(CheckpointError, UserError):  # damaged, or rotated out just now
                if read_checkpoint(self.path(step), ()).info.get("best") is True:
                    candidates.append(step)
        if not candidates:
            raise CheckpointError(f"no best checkpoint in {self.folder}: no evaluation has marked one yet")
        return read_checkpoint(self.path(max(candidates)), groups)

    def _newest_sound(
        self, groups: Collection[str] | None, verify: Verify
    ) -> tuple[Checkpoint, dict[Path, CheckpointError]]:
        """(the newest sound checkpoint, what is wrong with those that came before it)."""
        damaged: dict[Path, CheckpointError] = {}
        for step in reversed(self.steps()):
            path = self.path(step)
            try:
                checkpoint = read_checkpoint(path, groups)
                verify(checkpoint)
            except FormatVersionError:
                raise
            except UserError:
                if standing_in(path).exists():
                    raise
            except CheckpointError as error:
                if standing_in(path).exists():
                    damaged[path] = error
            else:
                return checkpoint, damaged
            # One that is gone by now was rotated out by the run that writes here.
        found = "\n".join(map(str, damaged.values())) or "it holds no step_… folder"
        raise CheckpointError(f"no usable checkpoint in {self.folder}: {found}")

    def _rotate(self) -> None:
        sweep(self.folder)
        pointed = {_pointed_step(self.folder / name) for name in ("latest", "best")}
        for step in self.steps()[: -self.keep]:
            if step not in pointed:
                hit()
                discard(self.path(step))
                hit()


def resolve_checkpoint(path: Path) -> Path:
    """The checkpoint folder that ``path`` means.

    ``path`` is a checkpoint folder, a run folder or its ``checkpoints`` folder (the newest one), or a pointer
    file ``RUN/checkpoints/latest`` or ``RUN/checkpoints/best``. Anything else is a UserError that says so.
    """
    path = Path(path)
    if (standing_in(path) / MANIFEST).exists():
        return path
    if path.is_dir():
        store = CheckpointStore(path / "checkpoints" if (path / "checkpoints").is_dir() else path, keep=1)
        if steps := store.steps():
            return store.path(steps[-1])
        raise UserError(f"{path} holds no checkpoint; give a run folder that has saved one")
    if path.name in ("latest", "best") and path.parent.is_dir():
        store, step = CheckpointStore(path.parent, keep=1), _pointed_step(path)
        if step is not None and standing_in(store.path(step)).is_dir():
            return store.path(step)
        raise UserError(f"{path} points to no checkpoint; try the run folder {path.parent.parent}")
    if path.exists():
        raise UserError(f"{path} is a file; give the checkpoint folder that it is in: {path.parent}")
    raise UserError(f"{path} does not exist; give a run folder (runs/…) or a checkpoint (runs/…/checkpoints/step_…)")


def _point(pointer: Path, step: int) -> None:
    """Let the small file ``pointer`` say ``step``."""
    if _pointed_step(pointer) != step:
        hit()
        replace_file(pointer, f"step_{step:09d}\n".encode())
        hit()


def _pointed_step(pointer: Path) -> int | None:
    """The step a pointer file names; None when there is no such file or it makes no sense.

    One that cannot be read is an error: with an unknown best the rotation would take it away.
    """
    try:
        with open_regular(pointer) as file:
            match = _STEP_FOLDER.fullmatch(file.read(100).decode("ascii", "replace").strip())
    except (FileNotFoundError, SpecialFileError):
        return None
    except OSError as error:
        raise CheckpointError(f"{pointer} cannot be read: {error.strerror}") from error
    return int(match[1]) if match else None


def _set_aside(path: Path) -> str:
    """Rename a damaged checkpoint so that no later load meets it; says what was done."""
    try:
        return f"set aside as {set_aside(path).name}"
    except OSError as error:
        return f"skipped, but could not be set aside: {error.strerror}"
