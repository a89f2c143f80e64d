"""Arguments that do not exist, with those that were meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, TypeVar

from rl_training.api.other_names import NAMES, Where, right_name
from rl_training.experiment.registry import TrainerKind
from rl_training.utils.coerce import did_you_mean
from rl_training.utils.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

_POLICY_NAMES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy", "MlpLstmPolicy", "LinearPolicy")


def named_mistakes(method: Callable[P, R]) -> Callable[P, R]:
    """The method, with a UserError that names the right argument where Python would raise TypeError for an unknown one."""
    parameters = inspect.signature(method).parameters
    where: Where = method.__name__ if method.__name__ in NAMES else "method"

    @functools.wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                right = right_name(where, name)
                hint = f". Instead: {right}" if right else did_you_mean(name, list(parameters)[1:])
                raise UserError(f"{method.__name__}() has no argument {name!r}{hint}")
        return method(*args, **kwargs)

    return checked


def unknown_setting(name: str, family: TrainerKind, known: Iterable[str]) -> str:
    """The message for a keyword that no agent of this kind has."""
    right = right_name("constructor", name, family) or right_name("load", name)
    return f"unknown setting {name!r}" + (f". Instead: {right}" if right else did_you_mean(name, known))


def refuse_policy_name(algorithm: str, env: Any) -> None:
    """`PPO("MlpPolicy", env)` is how other libraries spell it."""
    if isinstance(env, str) and env in _POLICY_NAMES:
        raise UserError(
            f"{env!r} is not an environment, and there is no policy to name: the network follows from the observation space.\n"
            f'Write {algorithm}("CartPole-v1"), with policy={{"hidden_sizes": [64, 64]}} for another network '
            "(docs/from-sb3.md has all such names)."
        )


def missing_environment(algorithm: str, settings: Mapping[str, Any]) -> str:
    """The message for an agent without an environment, or with one that is called `env`."""
    named = "; `env` is the section of settings of that name" if "env" in settings else ""
    return f'the environment is the first argument, without a name, such as {algorithm}("CartPole-v1"){named}'


def unknown_attribute(agent: str, name: str) -> str:
    """The message for an attribute that no agent has."""
    right = right_name("method", name)
    return f"{agent} has no attribute {name!r}" + (f". Instead: {right}" if right else "")
