"""What another goal would have brought: the reward and termination rules of a goal environment, for batches of goals."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.utils.errors import EnvCreationError, SpaceError
from rl_training.utils.spaces import Array, space_name, stored_obs

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")

Rule = Callable[[Array, Array, dict[str, Any]], Any]
"""(achieved, desired, info) -> reward or termination, in Gymnasium's GoalEnv convention."""


class GoalRules:
    """Asks an environment of its own, which is closed with this object.

    `compute_reward` is required. Without `compute_terminated` nothing is known of which goals end an episode.
    """

    def __init__(self, env: gym.Env[Any, Any]):
        self._closing = weakref.finalize(self, env.close)
        _check_space(env.observation_space)
        if not env.has_wrapper_attr("compute_reward"):
            raise SpaceError(
                f"{type(env.unwrapped).__name__} has goals but no compute_reward(achieved_goal, desired_goal, info), which "
                "hindsight needs:\nadd that method (see Gymnasium's GoalEnv), or set hyperparams.hindsight=0."
            )
        goals = _example_goals(env)
        self._reward = _for_batches(env.get_wrapper_attr("compute_reward"), goals)
        self.terminated: Callable[[Array, Array], Array] | None = None
        """Goals (B, ...) -> (B,) bool; None if the environment has no such rule."""
        if env.has_wrapper_attr("compute_terminated"):
            ends = _for_batches(env.get_wrapper_attr("compute_terminated"), goals)
            self.terminated = lambda achieved, desired: ends(achieved, desired).astype(np.bool_)

    def reward(self, achieved: Array, desired: Array) -> Array:
        """Goals (B, ...) -> (B,) float32."""
        return self._reward(achieved, desired).astype(np.float32)


def _check_space(space: spaces.Space[Any]) -> None:
    advice = "Use such an environment, e.g. env_id=BitFlip-v0, or set hyperparams.hindsight=0."
    if not isinstance(space, spaces.Dict):
        raise SpaceError(
            f"hindsight needs a goal environment, whose observations are a Dict of {', '.join(GOAL_KEYS)}, "
            f"not a {space_name(space)}.\n{advice}"
        )
    missing = [key for key in GOAL_KEYS if key not in space.spaces]
    if missing:
        raise SpaceError(f"hindsight needs a goal environment; this one's observations lack {missing[0]!r}.\n{advice}")
    achieved, desired = space["achieved_goal"].shape, space["desired_goal"].shape
    if achieved != desired:
        raise SpaceError(f"hindsight needs goals of one shape: achieved_goal has {achieved}, desired_goal {desired}.")


def _example_goals(env: gym.Env[Any, Any]) -> tuple[Array, Array]:
    """A few goals (B, ...) as the replay buffer keeps them, in the last pair reached."""
    starts = [env.reset(seed=seed)[0] for seed in range(3)]
    columns = [np.stack([start[key] for start in starts]) for key in ("achieved_goal", "desired_goal")]
    achieved, desired = (stored_obs(column) for column in columns)
    assert not isinstance(achieved, dict) and not isinstance(desired, dict)
    return np.concatenate([achieved, achieved[:1]]), np.concatenate([desired, achieved[:1].astype(desired.dtype)])


def _for_batches(rule: Rule, goals: tuple[Array, Array]) -> Callable[[Array, Array], Array]:
    """The rule itself if it answers the example goals at once as it does one by one, else a loop over it."""

    def at_once(achieved: Array, desired: Array) -> Array:
        return np.asarray(rule(achieved, desired, {}))

    def one_by_one(achieved: Array, desired: Array) -> Array:
        return np.array([np.asarray(rule(a, d, {})).item() for a, d in zip(achieved, desired)])

    try:
        expected = one_by_one(*goals)
    except Exception as error:  # whatever the environment's own code raises
        raise EnvCreationError(
            f"hindsight asks {getattr(rule, '__name__', 'the environment')} with goals alone, and an empty info; "
            f"here it failed: {type(error).__name__}: {error}"
        ) from error
    try:
        found = at_once(*goals)
    except Exception:
        return one_by_one
    return at_once if found.shape == expected.shape and np.allclose(found, expected) else one_by_one
