"""Where an environment says which actions are valid, and the wrappers that bring it into one form: an entry of its observations.

Three ways are known: an entry `action_mask` of a Dict observation, a method `action_masks()` of the environment or a wrapper, and
`info["action_mask"]` of reset and step. The first two are seen without playing. For the third an environment must be reset; that is
done with another one, which is thrown away, and only where the environment's code names `action_mask` (or the config says that
there are masks): nobody else's run is touched. One that is overlooked like this is noticed at its first reset, by `CheckedEnv`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from rl_training.envs.checked_env import RAISED, CheckedEnv
from rl_training.utils.action_masks import MASK_KEY, METHOD, OBSERVATION_KEY, ActionMask, with_mask_space
from rl_training.utils.errors import AxiomError, EnvCreationError
from rl_training.utils.spaces import Array, space_name

MaskSource = Literal["observation", "method", "info"]
MaskSetting = bool | Literal["auto"]

SOURCES: dict[MaskSource, str] = {
    "observation": f"the entry {MASK_KEY!r} of its observations",
    "method": f"its method {METHOD}()",
    "info": f"info[{MASK_KEY!r}]",
}
"""In words."""


class MaskedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations hold the mask as an entry. It remembers nothing.

    The mask of a terminal observation means nothing, and some environments cannot say it: every action counts as valid there.
    """

    def __init__(self, env: CheckedEnv, source: MaskSource):
        super().__init__(env)
        mask = ActionMask.of(env.action_space)
        assert mask is not None, "masks_of refuses other actions"
        self.source, self._mask, self._checked = source, mask, env
        self._dict = isinstance(env.observation_space, spaces.Dict)
        self.observation_space = with_mask_space(env.observation_space, mask)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, self._current(obs, info)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        mask = np.ones(self._mask.shape, np.int8) if terminated else self._current(obs, info)
        return self._joined(obs, mask), reward, terminated, truncated, info

    def _joined(self, obs: Any, mask: Array) -> dict[str, Any]:
        return {**obs, MASK_KEY: mask} if self._dict else {OBSERVATION_KEY: obs, MASK_KEY: mask}

    def _current(self, obs: Any, info: dict[str, Any]) -> Array:
        """What the environment says now, (n,) int8 with a valid choice for every dimension; else EnvFailure."""
        if self.source == "observation":
            given = obs[MASK_KEY]
        elif self.source == "method":
            given = self._asked()
        elif MASK_KEY in info:
            given = info[MASK_KEY]
        else:
            raise self._checked.failure(f"there is no {MASK_KEY!r} in its info: reset() and step() must both give one.")
        try:
            mask = self._mask.flat(given)
        except (TypeError, ValueError) as error:
            raise self._checked.failure(f"{SOURCES[self.source]} is not an action mask: {error}.") from error
        if np.count_nonzero(empty := self._mask.without_choice(mask)):
            where = f" in dimension {int(np.flatnonzero(empty)[0])}" if len(empty) > 1 else ""
            raise self._checked.failure(
                f"no action is valid{where}, says {SOURCES[self.source]}.\n"
                "Where nothing can be done the episode must terminate; its last mask is not looked at."
            )
        return mask

    def _asked(self) -> Any:
        # Looked up each time: an environment may be made anew for every episode.
        try:
            return self.env.get_wrapper_attr(METHOD)()
        except RAISED as error:
            raise self._checked.raised(METHOD, error) from error


def mask_source(
    env: gym.Env[Any, Any], setting: MaskSetting, another: Callable[[], gym.Env[Any, Any]], seed: int, name: str
) -> MaskSource | None:
    """Where this environment says which actions are valid; None if it does not, or nobody wants to know.

    `another` makes one like it, for a look at the info of a reset with `seed`.
    """
    if setting is False:
        return None
    source = _seen_source(env)
    if source is None and (setting is True or _names_masks(env)):
        source = "info" if _has_info_mask(env, another, seed) else None
    if source is None:
        if setting is True:
            raise EnvCreationError(
                f"env.action_masks is true, but environment {name!r} has no masks: no method {METHOD}(), no entry {MASK_KEY!r} in "
                f"a Dict observation, and no {MASK_KEY!r} in the info of reset().\nAdd one of them, or leave out env.action_masks."
            )
        return None
    check_maskable(env.action_space, source, name)
    return source


def check_maskable(action_space: spaces.Space[Any], source: MaskSource, name: str) -> None:
    """Raises EnvCreationError for masks of actions that are not chosen from a list."""
    if ActionMask.of(action_space) is None:
        raise EnvCreationError(
            f"environment {name!r} has action masks ({SOURCES[source]}), but {space_name(action_space)} actions: only a choice "
            "among Discrete or MultiDiscrete actions can be ruled out.\nSet env.action_masks=false if it is something else."
        )


def _seen_source(env: gym.Env[Any, Any]) -> MaskSource | None:
    """A source that shows without playing."""
    space = env.observation_space
    if isinstance(space, spaces.Dict) and MASK_KEY in space.spaces:
        return "observation"
    if env.has_wrapper_attr(METHOD) and callable(env.get_wrapper_attr(METHOD)):
        return "method"
    return None


def _has_info_mask(env: gym.Env[Any, Any], another: Callable[[], gym.Env[Any, Any]], seed: int) -> bool:
    try:
        probe = another()
    except AxiomError:  # an object that cannot be copied, for example
        return False
    if probe.unwrapped is env.unwrapped:  # not ours to play with
        return False
    try:
        return MASK_KEY in probe.reset(seed=seed)[1]
    except RAISED:  # the environment itself will raise it where it is named
        return False
    finally:
        probe.close()


def _names_masks(env: gym.Env[Any, Any]) -> bool:
    """Whether `action_mask` occurs as a text in the code of the environment, its wrappers, or their modules."""
    while True:
        for kind in type(env).__mro__:
            if kind.__module__.partition(".")[0] in ("builtins", "typing", "abc") or kind in (gym.Env, gym.Wrapper):
                continue
            module = sys.modules.get(kind.__module__)
            shared = vars(module).values() if module is not None else ()
            if any(map(_holds_key, (*vars(kind).values(), *shared))):
                return True
        if not isinstance(env, gym.Wrapper):
            return False
        env = env.env


def _holds_key(value: Any) -> bool:
    if isinstance(value, property):
        value = value.fget
    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        return any(constant == MASK_KEY for constant in _constants(function.__code__))
    return isinstance(value, str) and value == MASK_KEY


def _constants(value: Any) -> Iterator[Any]:
    if isinstance(value, types.CodeType):
        value = value.co_consts
    if isinstance(value, tuple):
        for part in value:
            yield from _constants(part)
    else:
        yield value


class MaskedVector(VectorWrapper[Any, Any, Any, Any, Any]):
    """A vector environment whose Dict observations have a mask as an entry: the space says now that it is one."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], mask: ActionMask):
        super().__init__(envs)
        self.single_observation_space = with_mask_space(envs.single_observation_space, mask)
        self.observation_space = batch_space(self.single_observation_space, envs.num_envs)


def with_vector_masks(envs: VectorEnv[Any, Any, Any], setting: MaskSetting, name: str) -> VectorEnv[Any, Any, Any]:
    """The vector environment itself, or wrapped if its observations have an entry with masks. Elsewhere they are refused: what is
    said in an info or by a method is gone for the final observations."""
    if setting is False:
        return envs
    space = envs.single_observation_space
    if isinstance(space, spaces.Dict) and MASK_KEY in space.spaces:
        check_maskable(envs.single_action_space, "observation", name)
        mask = ActionMask.of(envs.single_action_space)
        assert mask is not None
        if space[MASK_KEY].shape != mask.shape:
            raise EnvCreationError(
                f"environment {name!r}: the entry {MASK_KEY!r} of its observations has the shape {space[MASK_KEY].shape}, and "
                f"there are {mask.shape[0]} choices.\nGive one number for each, or set env.action_masks=false."
            )
        return MaskedVector(envs, mask)
    inner = envs.unwrapped
    spoken = isinstance(inner, SyncVectorEnv) and any(_seen_source(env) == "method" for env in inner.envs)
    if spoken or setting is True:
        found = f"has masks only in {SOURCES['method']}" if spoken else f"has no entry {MASK_KEY!r} in its observations"
        raise EnvCreationError(
            f"the vector environment {name!r} {found}, and of vector environment objects only masks in Dict observations are "
            "known.\n"
            "Give the id or the class of the environments, e.g. PPO(MyEnv, num_envs=8), or set env.action_masks=false."
        )
    return envs
