"""Pictures of an environment while it is played in."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from rl_training.envs.checked_env import RAISED, raised_text
from rl_training.utils.errors import AxiomError, EnvCreationError

RGB = "rgb_array"
"""The render mode whose pictures are arrays."""
DEFAULT_FPS = 30.0

Picture = npt.NDArray[np.uint8]
"""(H, W, 3) RGB."""


class FilmedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Takes a picture after every step. None after a reset: it may follow an episode's end at once, within one step of a vector,
    and the last picture of that episode is the one to show.

    Attributes:
        picture: after the newest step.
        filming: False takes no more of them.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str):
        super().__init__(env)
        self._name, self.filming = name, True
        self.picture: Picture | None = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        outcome = self.env.step(action)
        if self.filming:
            self.picture = self.take_picture()
        return outcome

    def take_picture(self) -> Picture:
        """What the environment looks like now; its wrappers see and change observations, not this."""
        try:
            rendered = self.env.render()
        except AxiomError:  # says what it is itself
            raise
        except RAISED as error:
            text, way_out = raised_text(error), _way_out(self.env, error)
            known = "MUJOCO_GL" in text and "MUJOCO_GL" in way_out  # it has been said
            raise EnvCreationError(
                f"environment {self._name!r} cannot be drawn: {text}" + ("" if known else f"\n{way_out}")
            ) from error
        return _as_picture(rendered, self.env, self._name)


def frames_per_second(env: gym.Env[Any, Any]) -> float:
    """What the environment says of its speed, if it is a number one can play at."""
    fps = env.metadata.get("render_fps")
    usable = isinstance(fps, int | float | np.number) and math.isfinite(fps) and 0.1 <= fps <= 1000
    return float(fps) if usable else DEFAULT_FPS  # type: ignore[arg-type]


def check_offers_pictures(name: str, metadata: object) -> None:
    """Refuses a class of environments that says it draws, but no pictures. One that says nothing may draw all the same."""
    modes = metadata.get("render_modes") if isinstance(metadata, dict) else None
    if modes and RGB not in modes:
        raise EnvCreationError(
            f"environment {name!r} cannot be recorded: it does not offer the render_mode {RGB!r}, "
            f"only {', '.join(map(str, modes))}."
        )


def _as_picture(rendered: Any, env: gym.Env[Any, Any], name: str) -> Picture:
    picture = np.asarray(rendered)
    if picture.ndim == 2 or (picture.ndim == 3 and picture.shape[2] == 1):  # shades of grey
        picture = np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)
    if picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] in (3, 4) and picture.size:
        return picture[:, :, :3]
    what = "nothing" if rendered is None else f"a {type(rendered).__name__}"
    if isinstance(rendered, np.ndarray):
        what = f"an array of shape {rendered.shape} and {rendered.dtype}"
    raise EnvCreationError(
        f"environment {name!r} cannot be recorded: render() returned {what}, not a picture (height, width, 3) of uint8.\n"
        f"It has render_mode={env.render_mode!r} and needs {RGB!r}: give the id, or a class or function with that argument, such "
        f"as def make(render_mode=None); make an environment object with render_mode={RGB!r}."
    )


def _way_out(env: gym.Env[Any, Any], error: BaseException) -> str:
    modules = {base.__module__.partition(".")[0] for base in type(error).__mro__}
    if any(base.__module__.startswith("gymnasium.envs.mujoco") for base in type(env.unwrapped).__mro__) or modules & {
        "mujoco",
        "glfw",
        "OpenGL",
    }:
        return (
            "MuJoCo draws with OpenGL; without a screen, say how before the program starts: MUJOCO_GL=egl (or osmesa)."
        )
    if isinstance(error, NotImplementedError):
        return f"It has no render() for the render_mode {RGB!r}: write one that returns (height, width, 3) of uint8."
    if isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        return 'Most environments draw with pygame: pip install "axiomrl[video]"'
    return 'The error is its own; try it alone: gym.make(ID, render_mode="rgb_array"), reset() and render().'
