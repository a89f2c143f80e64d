"""Pictures of environments, and what is said where there are none."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs.factory import make_vector_env
from rl_training.envs.filming import FilmedEnv, frames_per_second
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.runtime.video import check_filming, filmed
from rl_training.utils.errors import EnvCreationError


class Drawn(gym.Env[Any, Any]):
    """Renders whatever it is told to; its picture is as bright as the episode is old."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 12}
    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, what: Any = None):
        self.render_mode, self.what, self.age = render_mode, what, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        return np.zeros(1, np.float32), 1.0, self.age == 3, False, {}

    def render(self) -> Any:
        if isinstance(self.what, BaseException):
            raise self.what
        if self.render_mode is None:
            return None
        return np.full((4, 6, 3), self.age, np.uint8) if self.what is None else self.what


def film_of(make: Any = None, env_id: str = "Drawn", **env: Any) -> Any:
    config = TrainConfig(env_id=env_id, num_envs=1, env=env)
    return make_vector_env(config, 1, custom=make, film=True)


def test_the_last_picture_of_an_episode_stays_through_the_reset_that_follows() -> None:
    envs = film_of(Drawn)
    (camera,) = filmed(envs)
    envs.reset(seed=0)
    assert camera.take_picture().max() == 0
    shown = []
    for _ in range(5):
        envs.step(np.zeros(1, np.int64))
        assert camera.picture is not None
        shown.append(int(camera.picture.max()))
    assert shown == [1, 2, 3, 1, 2]


def test_wrappers_that_change_observations_do_not_change_the_picture() -> None:
    wrappers = ["AddRenderObservation", "GrayscaleObservation"]
    envs = film_of(None, "CartPole-v1", wrappers=wrappers)
    envs.reset(seed=0)
    (camera,) = filmed(envs)
    assert envs.single_observation_space.shape == (400, 600)
    assert camera.take_picture().shape == (400, 600, 3)
    envs.step(np.zeros(1, np.int64))
    assert camera.picture is not None and len(np.unique(camera.picture.reshape(-1, 3), axis=0)) > 2, "in colour"


def test_a_render_mode_of_the_config_gives_way() -> None:
    envs = film_of(None, "CartPole-v1", kwargs={"render_mode": "human"})
    envs.reset(seed=0)
    assert next(filmed(envs)).take_picture().shape == (400, 600, 3)


@pytest.mark.parametrize(
    ("what", "shape"), [(np.zeros((5, 7), np.uint8), (5, 7, 3)), (np.zeros((5, 7, 4), np.uint8), (5, 7, 3))]
)
def test_grey_and_transparent_pictures_become_rgb(what: Any, shape: tuple[int, ...]) -> None:
    assert FilmedEnv(Drawn("rgb_array", what), "Drawn").take_picture().shape == shape


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Drawn(), r"render\(\) returned nothing.*\n.*render_mode=None and needs 'rgb_array'.*def make\(render"),
        (lambda: Drawn("rgb_array", "text"), r"render\(\) returned a str"),
        (lambda: Drawn("rgb_array", np.zeros((2, 2, 3))), r"an array of shape \(2, 2, 3\) and float64"),
        (
            lambda: Drawn("rgb_array", gym.error.DependencyNotInstalled("pygame is not installed")),
            r"cannot be drawn: .*pygame is not installed.*\n.*pip install \"axiomrl\[video\]\"",
        ),
        (lambda: Drawn("rgb_array", ModuleNotFoundError("No module named 'pygame'")), r"axiomrl\[video\]"),
        (lambda: Drawn("rgb_array", RuntimeError("boom")), "cannot be drawn: .*boom"),
    ],
)
def test_what_is_missing_is_said_with_the_way_out(make: Any, message: str) -> None:
    with pytest.raises(EnvCreationError, match=message) as caught:
        check_filming(lambda count: film_of(make))
    assert caught.value.exit_code == 2


def test_an_environment_that_draws_no_pictures_is_refused() -> None:
    class Text(Drawn):
        metadata = {"render_modes": ["ansi", "human"]}

    gym.register("FilmedText-v0", Text)
    try:
        with pytest.raises(EnvCreationError, match="does not offer the render_mode 'rgb_array', only ansi, human"):
            film_of(None, "FilmedText-v0")
    finally:
        del gym.registry["FilmedText-v0"]


def test_mujoco_without_a_screen_gets_its_own_advice() -> None:
    class FatalError(RuntimeError):
        __module__ = "mujoco"

    with pytest.raises(EnvCreationError, match="MUJOCO_GL=egl"):
        check_filming(lambda count: film_of(lambda: Drawn("rgb_array", FatalError("no OpenGL platform library"))))


@pytest.mark.parametrize(("said", "fps"), [(12, 12.0), (None, 30.0), ("fast", 30.0), (0, 30.0), (float("nan"), 30.0)])
def test_the_speed_is_the_environments_own(said: Any, fps: float) -> None:
    env = Drawn("rgb_array")
    env.metadata = {"render_fps": said}
    assert frames_per_second(env) == fps
