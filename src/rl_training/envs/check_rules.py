"""What `check_env` makes of what it has seen: one function for each kind of finding."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.envs.check_play import Play, flat_obs_spaces
from rl_training.envs.check_report import EnvReport
from rl_training.utils.errors import SpaceError
from rl_training.utils.spaces import ActionAdapter, same_tree

_LARGE = 100.0
_SLOW = 300.0
"""Steps a second, below which environments hold up every algorithm."""


def check_spaces(report: EnvReport, observation: spaces.Space[Any], action: spaces.Space[Any]) -> bool:
    """Whether steps can be taken at all."""
    for key, leaf in flat_obs_spaces(observation).items():
        where = f"entry {key!r} of the observation space" if key else "the observation space"
        if not isinstance(leaf, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            report.add(
                "error",
                "observation-space",
                f"{where} is a {type(leaf).__name__}, which no policy can read",
                "turn it into Box, Discrete, MultiDiscrete or MultiBinary with gymnasium.wrappers.TransformObservation"
                + (", or leave it out with the wrapper FilterObservation" if key else ""),
            )
        elif 0 in (leaf.shape or ()):
            report.add("error", "observation-space", f"{where} has the shape {leaf.shape}, which holds no values")
        elif isinstance(leaf, spaces.Box) and len(leaf.shape) == 3:
            _check_image(report, leaf, where)
    try:
        ActionAdapter(action)
    except SpaceError as error:
        message, _, fix = str(error).partition("\n")
        report.add("error", "action-space", message, fix)
        return False
    return True


def _check_image(report: EnvReport, box: spaces.Box, where: str) -> None:
    if box.dtype != np.uint8:
        report.add(
            "warning",
            "images",
            f"{where} looks like an image ({box.shape}) of {box.dtype}: it takes {box.dtype.itemsize} times the memory of uint8",
            "use Box(0, 255, shape, np.uint8): such images are divided by 255 when they are read",
        )
    else:
        report.add(
            "info",
            "images",
            f"{where} looks like an image ({box.shape}); by default it is read as a flat vector",
            "register a convolutional encoder (docs/extending.md), or shrink it with gymnasium.wrappers.ResizeObservation",
        )


def check_values(report: EnvReport, seen: Play) -> None:
    if seen.bad_value is not None:
        report.add("error", "api", seen.bad_value, "return finite numbers; clip or replace what is not")
    if seen.outside is not None:
        report.add("warning", "bounds", seen.outside, "widen low and high of the space, or clip the observation")
    if seen.other_dtype is not None:
        report.add("info", "bounds", f"{seen.other_dtype}; it is converted", "return it with .astype(space.dtype)")
    if seen.overwritten:
        report.add(
            "info",
            "buffers",
            "the environment writes into an array that it has handed out as an observation",
            "return a copy (observation.copy()): AxiomRL makes one where it must, other code may not",
        )
    if seen.nan_at_termination:
        report.add("info", "final-observation", "NaN in the observation at a termination; nothing is learned from it")
    if seen.largest > _LARGE:
        report.add(
            "info",
            "bounds",
            f"observations reach {seen.largest:g}; networks learn best from numbers around 1",
            "set env.normalize_observations=true (PPO, A2C, TRPO), or scale them in the environment",
        )
    check_rewards(report, np.array(seen.rewards))


def check_rewards(report: EnvReport, rewards: np.ndarray[Any, Any]) -> None:
    finite = rewards[np.isfinite(rewards)]
    if len(finite) == 0:
        return
    report.facts["rewards"] = f"{finite.min():.4g} to {finite.max():.4g}, mean {finite.mean():.4g}"
    size = float(np.abs(finite).max())
    if size == 0.0:
        report.add(
            "info",
            "rewards",
            "random actions brought no reward at all",
            "check with more --steps; if it stays so, exploration will be hard: reward steps on the way, or use hindsight",
        )
    elif size > _LARGE or size < 1e-2:
        report.add(
            "info",
            "rewards",
            f"rewards reach {size:.3g}; losses are scaled for rewards around 1",
            "set env.normalize_rewards=true (PPO, A2C, TRPO), hyperparams.reward_scale (off-policy), or scale them",
        )


def check_episodes(report: EnvReport, seen: Play, limit: int | None, steps: int) -> None:
    report.facts["time_limit"] = "none declared" if limit is None else f"{limit} steps"
    if seen.lengths:
        mean = float(np.mean(seen.lengths))
        report.facts["episodes"] = f"{len(seen.lengths)} ended, {mean:.1f} steps each, {seen.terminated} terminated"
        return
    if limit is None:
        report.add(
            "warning",
            "endless",
            f"no episode ended in {steps} random steps, and there is no time limit: training returns cannot be measured, "
            "and evaluations are cut after 27,000 steps",
            "set env.max_episode_steps=1000 (a number that fits the task), or gym.register(..., max_episode_steps=1000)",
        )
    else:
        report.add("info", "endless", f"no episode ended in {steps} random steps; the time limit is {limit} steps")


def check_repeatability(
    report: EnvReport, first: Play, other: Play, again: Play, mixed: Play, twin: Play | None
) -> None:
    if first.draws:
        report.add(
            "warning",
            "shared-generators",
            "the environment draws from random, np.random or torch's global generator instead of its own",
            "use self.np_random, which super().reset(seed=seed) seeds",
        )
        if mixed.differs_at(again) is None:
            report.findings.pop()  # drawn, and of no consequence
    step = None if twin is None else first.differs_at(twin)
    if step is not None:
        report.add(
            "warning",
            "determinism",
            f"two environments with the same seed and actions differ {_at(step)}: no run can be repeated",
            "let everything random come from self.np_random; no clock, no os.urandom, no attributes of the class",
        )
    elif (step := first.differs_at(again)) is not None:
        report.add(
            "warning",
            "carried-state",
            f"after other episodes, the same seed and actions give something else ({_at(step)})",
            "set everything that changes in an episode in reset(), or set env.renew=true, which makes a new one for every episode",
        )
    if first.differs_at(other) is None and same_tree(first.generator, other.generator):
        report.add(
            "warning",
            "seeding",
            "two seeds give the same episodes, and leave self.np_random in the same state: the seed is not used",
            "call super().reset(seed=seed) first in reset(), and draw from self.np_random",
        )
    elif first.differs_at(other) is None:
        report.add("info", "seeding", "episodes are the same whatever the seed")


def space_text(space: spaces.Space[Any]) -> str:
    """A space on one line, without the bounds of every entry."""
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(float).min(initial=np.inf), space.high.astype(float).max(initial=-np.inf)
        return f"Box {space.shape} {space.dtype}, {low:g} to {high:g}"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return "; ".join(f"{key}: {space_text(leaf)}" for key, leaf in flat_obs_spaces(space).items())
    known = isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
    return " ".join(str(space).split()) if known else type(space).__name__


def _at(step: int) -> str:
    return "at the reset" if step == 0 else f"at step {step}"


def add_grade(report: EnvReport, problem: str | None) -> None:
    report.facts["resume_grade"] = "exact" if problem is None else "episode-boundary"
    if problem is not None:
        report.add(
            "warning",
            "resume",
            f"a resumed run starts fresh episodes (grade episode-boundary): {problem}",
            "use self.np_random only, set everything in reset() (or env.renew=true), or add get_state() and set_state(state)",
        )


def check_speed(report: EnvReport, speed: float) -> None:
    report.facts["steps_per_second"] = round(speed)
    if speed < _SLOW:
        report.add(
            "info",
            "speed",
            f"{speed:.3g} steps a second: the environment will take most of the training time",
            "step several in worker processes: env.backend=async with num_envs as many as there are cores",
        )
