"""The wrappers that a config may name: Gymnasium's own, ours and registered ones. A config imports nothing."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.utils.coerce import FieldError, did_you_mean
from rl_training.utils.errors import ConfigError, EnvCreationError
from rl_training.utils.registry import Registry

WrapperClass = type[gym.Wrapper[Any, Any, Any, Any]]
WrapperEntry = str | dict[str, Any]
"""A wrapper's name, or a mapping with `name` and its arguments."""

_NOT_FOR_TRAINING = {
    "Autoreset": "env.autoreset says when a finished environment is reset",
    **dict.fromkeys(
        ("ArrayConversion", "JaxToNumpy", "JaxToTorch", "NumpyToTorch"), "observations and actions stay NumPy arrays"
    ),
}
"""Gymnasium's wrappers that a config may not name, and why."""


def _accept(name: str, thing: Any) -> WrapperClass:
    if not (isinstance(thing, type) and issubclass(thing, gym.Wrapper)):
        raise ConfigError(f"wrapper {name!r} must be a class derived from gymnasium.Wrapper, not {thing!r}")
    return thing


WRAPPERS: Registry[WrapperClass] = Registry("wrapper", _accept)
for _name in gym.wrappers.__all__:
    if _name not in _NOT_FOR_TRAINING and _name != "vector":
        WRAPPERS.register(_name, f"gymnasium.wrappers:{_name}")
WRAPPERS.register("ActionRepeat", "rl_training.envs.action_repeat:ActionRepeat")
WRAPPERS.register("SelectObservations", "rl_training.envs.select_observations:SelectObservations")


def register_wrapper(name: str, wrapper: WrapperClass | str) -> None:
    """Makes a wrapper known to `env.wrappers`: a class derived from gymnasium.Wrapper, or "module:Class", which is imported when
    it is needed. Its first argument is the environment, the others come from the config by name."""
    WRAPPERS.register(name, wrapper)


def checked_wrappers(entries: Sequence[WrapperEntry], key: str) -> list[dict[str, Any]]:
    """The entries of a config key as mappings with `name` and the wrapper's arguments; FieldError for what will not work."""
    return [_checked_entry(entry, f"{key}[{index}]") for index, entry in enumerate(entries)]


def _checked_entry(given: WrapperEntry, key: str) -> dict[str, Any]:
    entry = _as_mapping(given)
    name = entry.get("name")
    if not isinstance(name, str):
        raise FieldError(key, "a wrapper needs its name, such as {name: FrameStackObservation, stack_size: 4}")
    if reason := _NOT_FOR_TRAINING.get(name):
        raise FieldError(f"{key}.name", f"{name} is not for training: {reason}")
    if not name.isidentifier():
        raise FieldError(
            f"{key}.name",
            f"a config imports nothing, so a wrapper goes by the name it is registered under, got {name!r}{WRAPPERS.way_out}",
        )
    try:
        wrapper = WRAPPERS[name]
    except ConfigError as error:
        raise FieldError(f"{key}.name", str(error)) from None
    _check_arguments(wrapper, {argument: value for argument, value in entry.items() if argument != "name"}, name, key)
    return entry


def _as_mapping(entry: WrapperEntry) -> dict[str, Any]:
    return {"name": entry} if isinstance(entry, str) else dict(entry)


def _check_arguments(wrapper: WrapperClass, arguments: dict[str, Any], name: str, key: str) -> None:
    accepted = _parameters(wrapper)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    for argument in arguments:
        if argument not in accepted and not takes_any:
            hint = did_you_mean(argument, accepted) or (f"; it takes {', '.join(accepted)}" if accepted else "")
            raise FieldError(f"{key}.{argument}", f"{name} has no argument {argument!r}{hint}")
    for argument, parameter in accepted.items():
        needed = parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if "Callable" in str(parameter.annotation) and (needed or arguments.get(argument) is not None):
            raise FieldError(
                key,
                f"{name} takes a function as {argument!r}, which a config cannot hold: register a wrapper of your own",
            )
        if needed and argument not in arguments:
            raise FieldError(key, f"{name} needs its argument {argument!r}")


def _parameters(wrapper: WrapperClass) -> dict[str, inspect.Parameter]:
    """The constructor's parameters after the environment."""
    return dict(list(inspect.signature(wrapper).parameters.items())[1:])


@dataclass(frozen=True)
class WrapperMaker:
    """Puts one wrapper around an environment."""

    wrapper: WrapperClass
    arguments: dict[str, Any]

    def __call__(self, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        try:
            return self.wrapper(env, **self.arguments)
        except Exception as error:  # whatever the wrapper's own code raises over its arguments or this environment
            text = (str(error).strip().splitlines() or [""])[0]
            raise EnvCreationError(
                f"the wrapper {self.wrapper.__name__} does not fit this environment: {type(error).__name__}: {text}"
            ) from error


def wrapper_makers(entries: Sequence[WrapperEntry]) -> tuple[WrapperMaker, ...]:
    """What the factory applies, innermost first. Holds the classes, because worker processes may know no registered names."""
    makers = []
    for entry in map(_as_mapping, entries):
        wrapper = WRAPPERS[entry["name"]]
        parameters = _parameters(wrapper)
        arguments = {
            argument: _native(value, parameters.get(argument))
            for argument, value in entry.items()
            if argument != "name"
        }
        makers.append(WrapperMaker(wrapper, arguments))
    return tuple(makers)


def _native(value: Any, parameter: inspect.Parameter | None) -> Any:
    """A list of the config as what wrappers expect: an array where they say so, else a tuple."""
    if not isinstance(value, list):
        return value
    if parameter is not None and "ndarray" in str(parameter.annotation):
        return np.array(value)
    return tuple(_native(item, None) for item in value)
