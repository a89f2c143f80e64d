"""Videos of an evaluation: its environments side by side, encoded while they are played."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rl_training.envs.filming import FilmedEnv, Picture, frames_per_second
from rl_training.envs.inspection import layers_of
from rl_training.policies.policy import Policy
from rl_training.runtime.callbacks import Callback, Every
from rl_training.runtime.evaluator import EvaluationResult, EvaluationStopped, Evaluator
from rl_training.utils.disk import set_aside, sweep, writing
from rl_training.utils.process_random import preserved_process_random
from rl_training.utils.safe_files import special_kind
from rl_training.utils.spaces import Array
from rl_training.utils.video_file import VideoFile, require_encoder

if TYPE_CHECKING:
    from rl_training.runtime.trainer import BaseTrainer

MAX_VIEWS = 9
"""Most environments in one picture."""
MIN_WIDTH = 240
"""Pixels of a view: smaller pictures are enlarged, so that the caption fits and a grid world can be seen."""
CAPTION_HEIGHT, GAP = 24, 4
_GROUND, _INK = (24, 24, 27), (228, 228, 231)
_FADED = 0.35
"""Brightness that is left to a view whose episodes are over."""


@dataclass(frozen=True)
class Recording:
    """A video that was written."""

    path: Path
    frames: int
    fps: float
    cut: bool
    """Whether it ends before the episodes do, at its limit of seconds."""
    result: EvaluationResult
    """Of the episodes, which are played to their end also where the video is cut."""

    @property
    def seconds(self) -> float:
        return self.frames / self.fps

    @property
    def note(self) -> str | None:
        """What is to be said of a video that does not show everything."""
        return cut_note(self.path.name, self.seconds) if self.cut else None


def cut_note(name: str, seconds: float) -> str:
    return f"{name} was cut after {seconds:g} s of video; its episodes are longer (max_seconds or --video-seconds is the limit)"


class Film:
    """Watches an evaluation in environments that take pictures (see FilmedEnv), and writes them to a file as they come.

    A picture after the reset and one after each step of all environments. A view whose episodes are over keeps its last picture,
    dimmed. As a context: the file gets its name at the end, unless an error ended it.

    Attributes:
        cut: whether the limit of seconds was reached; nothing more is drawn then.
    """

    def __init__(self, path: Path, *, max_seconds: float):
        self.path, self._max_seconds = path, max_seconds
        self.cut = False
        self._views: Sequence[FilmedEnv] = ()
        self._file: VideoFile
        self._grid: Grid
        self._context = ExitStack()

    @property
    def frames(self) -> int:
        return self._file.frames

    @property
    def fps(self) -> float:
        return self._file.fps

    def __call__(self, envs: VectorEnv[Any, Any, Any], playing: Array, returns: Array, steps: Array) -> None:
        if self.cut:
            return
        if not self._views:
            self._begin(list(filmed(envs)))
        if self._file.frames >= self._limit:
            self.cut = True
            for view in self._views:
                view.filming = False
            return
        for index, view in enumerate(self._views):
            view.filming = bool(playing[index])
            if playing[index]:
                assert view.picture is not None
                self._grid.show(index, view.picture, caption(returns[index], steps[index]))
            else:
                self._grid.fade(index)
        self._file.write(self._grid.canvas)

    def _begin(self, views: Sequence[FilmedEnv]) -> None:
        self._views = views
        for view in views:
            view.picture = view.take_picture()
        self._grid = Grid([view.picture.shape[:2] for view in views if view.picture is not None])
        self._file = self._context.enter_context(VideoFile(self.path, frames_per_second(views[0])))
        self._limit = max(1, math.floor(self._max_seconds * self._file.fps))

    def recording(self, result: EvaluationResult) -> Recording:
        return Recording(self.path, self.frames, self.fps, self.cut, result)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._context.__exit__(kind, error, at)


def filmed(envs: VectorEnv[Any, Any, Any]) -> Iterator[FilmedEnv]:
    """The camera of each environment."""
    base = envs.unwrapped
    assert isinstance(base, SyncVectorEnv)
    for env in base.envs:
        yield next(layer for layer in layers_of(env) if isinstance(layer, FilmedEnv))


def check_filming(make_envs: Callable[[int], VectorEnv[Any, Any, Any]]) -> None:
    """Takes one picture of one environment, so that what is missing is said before a training begins and not in its midst."""
    require_encoder()
    with preserved_process_random():
        envs = make_envs(1)
        try:
            envs.reset(seed=0)
            next(filmed(envs)).take_picture()
        finally:
            envs.close()


def caption(episode_return: float, steps: int) -> str:
    return f"return {episode_return:.1f}   step {steps}"


def layout(count: int) -> tuple[int, int]:
    """(rows, columns) of a grid that is as square as `count` views allow, rather wide than high."""
    columns = math.ceil(math.sqrt(count))
    return math.ceil(count / columns), columns


class Grid:
    """The picture that holds all views, each below its caption.

    Attributes:
        canvas: (H, W, 3) uint8 with even sides, as H.264 wants them; it is drawn over.
    """

    def __init__(self, sizes: Sequence[tuple[int, ...]]):
        """`sizes` are (height, width) of the views' first pictures; smaller ones are padded to the largest."""
        height, width = (max(size[side] for size in sizes) for side in (0, 1))
        self._scale = max(1, math.ceil(MIN_WIDTH / width))
        self._height, self._width = height * self._scale, width * self._scale
        rows, self._columns = layout(len(sizes))
        whole = rows * (CAPTION_HEIGHT + self._height + GAP) - GAP, self._columns * (self._width + GAP) - GAP
        self.canvas: Picture = np.empty((*(side + side % 2 for side in whole), 3), np.uint8)
        self.canvas[:] = _GROUND
        self._faded: set[int] = set()

    def show(self, index: int, picture: Picture, text: str) -> None:
        """Draws one view; of a picture that has grown since the first one, what fits."""
        view, bar = self._place(index)
        enlarged = picture.repeat(self._scale, axis=0).repeat(self._scale, axis=1) if self._scale > 1 else picture
        enlarged = enlarged[: self._height, : self._width]
        if enlarged.shape != view.shape:
            view[:] = _GROUND
        top, left = (self._height - enlarged.shape[0]) // 2, (self._width - enlarged.shape[1]) // 2
        view[top : top + enlarged.shape[0], left : left + enlarged.shape[1]] = enlarged
        bar[:] = _written(text, self._width)

    def fade(self, index: int) -> None:
        """Dims a view whose episodes are over, once; its caption stays, which has the last return."""
        if index not in self._faded:
            self._faded.add(index)
            view, _ = self._place(index)
            view[:] = (view * _FADED).astype(np.uint8)

    def _place(self, index: int) -> tuple[Picture, Picture]:
        row, column = divmod(index, self._columns)
        top, left = row * (CAPTION_HEIGHT + self._height + GAP), column * (self._width + GAP)
        below = top + CAPTION_HEIGHT
        across = slice(left, left + self._width)
        return self.canvas[below : below + self._height, across], self.canvas[top:below, across]


def _written(text: str, width: int) -> Picture:
    """One line of text, (CAPTION_HEIGHT, width, 3)."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, CAPTION_HEIGHT), _GROUND)
    ImageDraw.Draw(image).text((6, 3), text, fill=_INK, font=ImageFont.load_default(15))
    return np.asarray(image)


class RecordVideos(Callback):
    """Records the policy every so many environment steps, and once more when the training is complete.

    In environments of its own, made for each video; the evaluations do not know of it. A signal stops a recording at once: it
    leaves no file, and a resume makes it up.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        policy: Policy,
        folder: Path,
        *,
        every: int,
        episodes: int,
        keep: int,
        max_seconds: float,
        deterministic: bool,
        notes: list[str],
    ):
        """`notes` gets a line for the first video that was cut."""
        self._evaluator, self._policy, self._folder = evaluator, policy, folder
        self._every, self._episodes, self._keep, self._max_seconds = Every(every), episodes, keep, max_seconds
        self._deterministic, self._notes, self._noted = deterministic, notes, False
        self.last_step, self._due = -1, False

    def on_training_start(self, trainer: BaseTrainer) -> None:
        with writing(self._folder):
            if os.path.lexists(self._folder) and (kind := special_kind(self._folder)) != "a folder":
                name = set_aside(self._folder).name
                self._notes.append(f"{self._folder} is {kind or 'a file'}, not a folder; set aside as {name}")
            self._folder.mkdir(exist_ok=True)
            sweep(self._folder)
            # What a killed process recorded after the checkpoint that is now resumed from will be recorded again.
            for step, path in self._videos():
                if step > trainer.global_step:
                    path.unlink()

    def on_catch_up(self, trainer: BaseTrainer) -> None:
        if self._due:
            self._record(trainer)

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        if self._every.passed(trainer.previous_step, trainer.global_step):
            self._record(trainer)

    def on_training_end(self, trainer: BaseTrainer) -> None:
        if trainer.complete and self.last_step != trainer.global_step:
            self._record(trainer)

    def _record(self, trainer: BaseTrainer) -> None:
        path = self._folder / f"step_{trainer.global_step:09d}.mp4"
        film = Film(path, max_seconds=self._max_seconds)
        try:
            with trainer.timer.stage("evaluate"), film:
                self._play(trainer, film)
        except EvaluationStopped:
            self._due = True
            return
        finally:
            self._evaluator.close()
        self._due, self.last_step = False, trainer.global_step
        if film.cut and not self._noted:
            self._noted = True
            self._notes.append(cut_note(path.name, film.frames / film.fps))
        with writing(self._folder):
            for _, old in self._videos()[: -self._keep]:
                old.unlink()

    def _play(self, trainer: BaseTrainer, film: Film) -> None:
        """Until the episodes, or the video, are over; EvaluationStopped after a signal."""
        try:
            self._evaluator.evaluate(
                self._policy,
                self._episodes,
                deterministic=self._deterministic,
                stream=trainer.global_step,
                stopped=lambda: trainer.interrupted or film.cut,
                watch=film,
            )
        except EvaluationStopped:
            if trainer.interrupted:
                raise

    def _videos(self) -> list[tuple[int, Path]]:
        """(step, file) of our own videos, oldest first; others in the folder are the user's."""
        matches = ((re.fullmatch(r"step_(\d{9,18})\.mp4", path.name), path) for path in self._folder.iterdir())
        return sorted((int(match[1]), path) for match, path in matches if match is not None)

    def state_dict(self) -> dict[str, Any]:
        return {"last_step": self.last_step, "due": self._due}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last_step, self._due = state["last_step"], state.get("due", False) is True
