"""Mistakes of an environment are named as the environment's, with its id, number, episode and step.

`CheckedEnv` stands around every environment that the factory makes, in this process and in workers. It looks at the *form* of what
comes back: tuples, types, shapes, errors. That costs well under a microsecond a step. The *values* (NaN) are looked at once
for all environments of a vector, in `EnvStepper`.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.utils.action_masks import MASK_KEY
from rl_training.utils.errors import AxiomError, EnvFailure
from rl_training.utils.user_code import user_place

ObsProblem = Callable[[Any], str | None]
"""Says what is wrong with an observation's form, or None."""

_FLAG_TYPES = frozenset((bool, np.bool_))
_REWARD_TYPES = frozenset((float, int, np.float64, np.float32, np.int64, np.int32))
RAISED = (Exception, SystemExit)
"""What an environment's code may raise: sys.exit() in it must not end the run as if it had succeeded."""

STEP_API = "obs, reward, terminated, truncated, info"
_OLD_API_FIX = (
    "That is the API of the old gym package: return terminated and truncated instead of done, "
    "or wrap the environment with shimmy (pip install shimmy)."
)
_VECTOR_REWARD_FIX = (
    "AxiomRL learns from one number: weigh the parts, e.g. with "
    "mo_gymnasium.wrappers.LinearReward(env, weight=np.array([0.5, 0.5]))."
)


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose mistakes become an EnvFailure that names it. It changes nothing that comes through."""

    def __init__(self, env: gym.Env[Any, Any], name: str, index: int | None = None, *, masks_unseen: bool = False):
        """`index` is the environment's number among those of a vector. With `masks_unseen` nobody knows of an action mask in its
        info, and one that turns up there is refused."""
        super().__init__(env)
        self._masks_unseen = masks_unseen
        self._name, self._index = name, index
        self._episode = self._step = 0
        self._obs_problem = obs_problem(env.observation_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._episode, self._step = self._episode + 1, 0
        try:
            result = self.env.reset(seed=seed, options=options)
        except AxiomError:  # says what it is itself
            raise
        except RAISED as error:
            raise self.raised("reset", error) from error
        if problem := reset_problem(result):
            raise self.failure(problem)
        if problem := self._obs_problem(result[0]):
            raise self.failure(f"reset() returned {problem}.")
        if self._masks_unseen and MASK_KEY in result[1]:
            raise self.failure(
                f"its info has an {MASK_KEY!r}, which was not looked for when it was made.\n"
                "Set env.action_masks=true to rule out what is not valid, or env.action_masks=false to do without."
            )
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._step += 1
        try:
            result = self.env.step(action)
        except AxiomError:  # says what it is itself
            raise
        except RAISED as error:
            raise self.raised("step", error) from error
        if type(result) is not tuple or len(result) != 5:
            raise self.failure(step_problem(result) or "")
        obs, reward, terminated, truncated, info = result
        if (
            type(terminated) not in _FLAG_TYPES
            or type(truncated) not in _FLAG_TYPES
            or type(reward) not in _REWARD_TYPES
            or type(info) is not dict
        ):
            return self._checked_slowly(obs, reward, terminated, truncated, info)
        if problem := self._obs_problem(obs):
            raise self.failure(f"step() returned {problem}.")
        if terminated or truncated:  # the reset may write into the array that was handed out
            return _copied(obs), reward, terminated, truncated, info
        return result

    def count_from_here(self) -> None:
        """The next episode is the first."""
        self._episode = 0

    def render(self) -> Any:
        try:
            return self.env.render()
        except AxiomError:  # says what it is itself
            raise
        except RAISED as error:
            raise self.raised("render", error) from error

    def close(self) -> None:
        try:
            self.env.close()
        except RAISED as error:  # everything of worth is done by then
            warnings.warn(str(self.raised("close", error)), stacklevel=2)

    def _checked_slowly(
        self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Types that are rare and may still be right, such as arrays with one value; they go on as plain ones."""
        problem = (
            flag_problem("terminated", terminated)
            or flag_problem("truncated", truncated)
            or reward_problem(reward)
            or (None if isinstance(info, dict) else f"an info of type {type(info).__name__}, not a dict")
            or self._obs_problem(obs)
        )
        if problem:
            raise self.failure(f"step() returned {problem}.")
        return _copied(obs), float(np.asarray(reward).item()), bool(terminated), bool(truncated), info

    def _where(self) -> str:
        number = "" if self._index is None else f"index {self._index}, "
        return f"environment {self._name!r} ({number}episode {self._episode}, step {self._step})"

    def failure(self, problem: str) -> EnvFailure:
        """An error that names the environment and where it is."""
        return EnvFailure(f"{self._where()}: {problem}")

    def raised(self, method: str, error: BaseException) -> EnvFailure:
        """An error for what a method of the environment raised."""
        if problem := _unpacking_problem(method, error):
            return self.failure(problem)
        return EnvFailure(f"{self._where()} failed in {method}(): {raised_text(error, self.unwrapped)}")


def raised_text(error: BaseException, env: object = None) -> str:
    """Type, first line and place of an error in code that is not ours, and the way out where it is known."""
    text = (str(error).strip().splitlines() or [""])[0][:500]
    kind = type(error).__name__
    what = f"it called sys.exit({text})" if isinstance(error, SystemExit) else f"{kind}: {text}" if text else kind
    place = _place(error, env)
    hint = ""
    if isinstance(error, TypeError) and "reset()" in text and ("'seed'" in text or "'options'" in text):
        hint = "\nreset must take both: def reset(self, *, seed=None, options=None), and call super().reset(seed=seed)."
    elif isinstance(error, ImportError):
        hint = "\nInstall what it needs."
    elif any(word in f"{type(error).__name__} {text}".lower() for word in ("display", "opengl", "egl", "glfw", "glx")):
        hint = "\nIt wants a display. Without one: MUJOCO_GL=egl or SDL_VIDEODRIVER=dummy, or run it under xvfb-run."
    return f"{what}{f' ({place})' if place else ''}{hint}"


def _unpacking_problem(method: str, error: BaseException) -> str | None:
    """A wrapper of Gymnasium's that could not take apart what the environment inside returned says no more than that."""
    if not isinstance(error, ValueError) or "values to unpack" not in str(error):
        return None
    if not traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_folder("gymnasium")):
        return None
    if method == "reset":
        return reset_problem(None, f"({error})")
    old = "got 4" in str(error)
    return step_problem((None,) * 4) if old else step_problem(None, f"({error})")


def _place(error: BaseException, env: object) -> str | None:
    """file:line of the newest call in the user's code, else in the environment's folder, else outside Gymnasium and AxiomRL."""
    if (place := user_place(error)) is not None:
        return place
    frames = traceback.extract_tb(error.__traceback__)
    home = _folder(type(env).__module__) if env is not None else "?"
    own = [frame for frame in frames if frame.filename.startswith(home)]
    passing = (_folder("rl_training"), _folder("gymnasium"), _folder("importlib"), "<")
    others = [frame for frame in frames if not frame.filename.startswith(passing)]
    newest = next(reversed(own or others), None)
    return None if newest is None else f"{newest.filename}:{newest.lineno}"


def _folder(module: str) -> str:
    """The folder of a module's file; strings throughout, as tracebacks have them."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return os.path.dirname(os.path.abspath(file)) + os.sep if file else "?"  # noqa: PTH100, PTH120


def reset_problem(result: Any, seen: str | None = None) -> str | None:
    """What is wrong with the form of what reset() returned; `seen` describes it where it is not at hand."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return None
    kind = seen or (f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}")
    return (
        f"reset() must return an observation and a dict of infos, not {kind}.\n"
        "Write `return observation, {}` at its end."
    )


def step_problem(result: Any, seen: str | None = None) -> str | None:
    """What is wrong with the form of what step() returned; `seen` describes it where it is not at hand."""
    if isinstance(result, tuple) and len(result) == 5:
        return None
    kind = seen or (f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}")
    problem = f"step() must return five values ({STEP_API}), not {kind}."
    return f"{problem}\n{_OLD_API_FIX}" if isinstance(result, tuple) and len(result) == 4 else problem


def flag_problem(name: str, flag: Any) -> str | None:
    """What is wrong with `terminated` or `truncated`: they must be true or false, and NaN is neither."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = np.asarray(flag)
            if value.size == 1 and value.dtype != object and value.item() in (0, 1):
                return None
        except (TypeError, ValueError):
            pass
    return f"{name}={_short(flag)}, which is neither true nor false"


def reward_problem(reward: Any) -> str | None:
    """What is wrong with the form of a reward: it must be one number."""
    try:
        value = np.asarray(reward)
    except (TypeError, ValueError):
        return f"the reward {_short(reward)}, which is not a number"
    if value.dtype != object and value.dtype.kind in "biuf" and value.size == 1:
        return None
    if value.dtype.kind in "biuf" and value.size > 1:
        return f"a reward of {value.size} numbers. {_VECTOR_REWARD_FIX.rstrip('.')}"
    return f"the reward {_short(reward)}, which is not a number"


def obs_problem(space: spaces.Space[Any]) -> ObsProblem:
    """A function that says what is wrong with the form of an observation of this space.

    For Box: shape, and a dtype of the same kind (float64 for float32 is usual and fine); bounds are not looked at.
    For Discrete and MultiDiscrete also the values, because they choose the inputs of a network.
    """
    if isinstance(space, spaces.Dict):
        return _dict_problem({key: obs_problem(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return _tuple_problem([obs_problem(sub) for sub in space.spaces])
    if isinstance(space, spaces.Discrete):
        return _discrete_problem(space)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return _array_problem(space)
    return lambda obs: None  # refused elsewhere, with a way out


def _array_problem(space: spaces.Space[Any]) -> ObsProblem:
    assert space.shape is not None
    shape, dtype = space.shape, np.dtype(space.dtype)
    whole = None if isinstance(space, spaces.Box) else space

    def problem(obs: Any) -> str | None:
        if type(obs) is np.ndarray and obs.shape == shape and obs.dtype is dtype and whole is None:
            return None
        try:
            array = np.asarray(obs)
        except (TypeError, ValueError) as error:
            return f"an observation that is no array: {error}"
        if array.shape != shape:
            return f"an observation of shape {array.shape}, its space has {shape}"
        if array.dtype.kind not in "biuf" or not np.can_cast(array.dtype, dtype, "same_kind"):
            return f"an observation of dtype {array.dtype}, its space has {dtype}: return it with .astype(np.{dtype})"
        if whole is not None and not whole.contains(array.astype(dtype)):
            return f"the observation {_short(array)}, which is not in its space {whole}"
        return None

    return problem


def _discrete_problem(space: spaces.Discrete) -> ObsProblem:
    low, high = int(space.start), int(space.start + space.n)

    def problem(obs: Any) -> str | None:
        if isinstance(obs, int | np.integer) and low <= obs < high:
            return None
        array = np.asarray(obs)
        if array.shape == () and array.dtype.kind in "iu" and low <= array.item() < high:
            return None
        return f"the observation {_short(obs)}, which is not in its space {space}"

    return problem


def _dict_problem(entries: dict[str, ObsProblem]) -> ObsProblem:
    keys = entries.keys()

    def problem(obs: Any) -> str | None:
        if not isinstance(obs, dict):
            return f"an observation of type {type(obs).__name__}, its space is a Dict of {', '.join(map(str, keys))}"
        if obs.keys() != keys:
            missing, extra = [*keys - obs.keys()], [*obs.keys() - keys]
            named = f"without {missing[0]!r}" if missing else f"with {extra[0]!r}"
            return f"an observation {named}, its space is a Dict of {', '.join(map(str, keys))}"
        for key, entry in entries.items():
            if found := entry(obs[key]):
                return f"in entry {key!r} {found}"
        return None

    return problem


def _tuple_problem(entries: list[ObsProblem]) -> ObsProblem:
    def problem(obs: Any) -> str | None:
        if not isinstance(obs, tuple | list) or len(obs) != len(entries):
            return f"the observation {_short(obs)}, its space is a Tuple of {len(entries)}"
        for place, (entry, value) in enumerate(zip(entries, obs)):
            if found := entry(value):
                return f"in entry {place} {found}"
        return None

    return problem


def _copied(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _copied(part) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(map(_copied, obs))
    return obs.copy() if isinstance(obs, np.ndarray) else obs


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
