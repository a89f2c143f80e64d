"""Episodes with random actions, as `check_env` plays them: what was seen, and whether two plays were the same."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.carried import generator_state
from rl_training.utils.action_masks import mask_key
from rl_training.utils.nested import flat_obs
from rl_training.utils.process_random import preserved_process_random, process_random_state, seed_process_random
from rl_training.utils.spaces import ActionAdapter, Array, same_tree


@dataclass
class Play:
    """What happened in so many steps. Observations are kept as digests: images would fill the memory."""

    digests: list[bytes] = field(default_factory=list)
    """One for each reset and step, of the observation, the reward and the flags."""
    rewards: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """Of the episodes that ended."""
    terminated: int = 0
    seconds: float = 0.0
    draws: bool = False
    """Something was drawn from the process-wide generators."""
    generator: dict[str, Any] = field(default_factory=dict)
    """The state of the environment's own generator after the seeded reset."""
    outside: str | None = None
    """The first observation outside the bounds of its space."""
    largest: float = 0.0
    """The largest number in an observation, of either sign."""
    other_dtype: str | None = None
    """The dtype of an observation that is not its space's."""
    overwritten: bool = False
    """An observation changed after it was handed out."""
    bad_value: str | None = None
    """The first NaN or infinity that is not allowed, with where it was."""
    nan_at_termination: bool = False

    def differs_at(self, other: Play) -> int | None:
        """The first step in which two plays are not the same, over the length of the shorter; None if there is none."""
        pairs = zip(self.digests, other.digests)
        return next((step for step, (mine, others) in enumerate(pairs) if mine != others), None)


def random_actions(env: gym.Env[Any, Any], seed: int) -> Callable[[Any], Any]:
    """Gives an action for each observation, in the environment's own form and as training begins with them."""
    adapter, generator = ActionAdapter(env.action_space), np.random.default_rng(seed)
    key = mask_key(env.observation_space)

    def choose(obs: Any) -> Any:
        return adapter.to_env(adapter.sample(generator, 1, None if key is None else obs[key][None]))[0]

    return choose


def play(env: gym.Env[Any, Any], steps: int, seed: int, *, action_seed: int, process_seed: int = 0) -> Play:
    """Resets with the seed, takes random actions, and resets without one after each end.

    The process-wide generators begin at `process_seed`, and are afterwards as they were before.
    """
    seen, choose = Play(), random_actions(env, action_seed)
    with preserved_process_random():
        seed_process_random(process_seed)
        before = process_random_state()
        begin = time.perf_counter()
        obs, _ = env.reset(seed=seed)
        _look(seen, env, obs, None, 0)
        seen.generator = generator_state(env.unwrapped.np_random)
        length = 0
        for step in range(1, steps + 1):
            handed_out, copy = obs, _leaves(obs, copy=True)
            obs, reward, terminated, truncated, _ = env.step(choose(obs))
            length += 1
            _look(seen, env, obs, (float(reward), bool(terminated), bool(truncated)), step)
            seen.overwritten = seen.overwritten or (obs is not handed_out and _changed(handed_out, copy))
            seen.overwritten = seen.overwritten or (obs is handed_out and isinstance(obs, np.ndarray))
            if terminated or truncated:
                seen.lengths.append(length)
                seen.terminated += bool(terminated)
                length = 0
                obs, _ = env.reset()
                _look(seen, env, obs, None, step)
        seen.seconds = time.perf_counter() - begin
        seen.draws = not same_tree(before, process_random_state())
    return seen


def _leaves(obs: Any, *, copy: bool = False) -> dict[str, Array]:
    flat = flat_obs(obs)
    parts = flat if isinstance(flat, dict) else {"": flat}
    return {key: np.array(value) if copy else np.asarray(value) for key, value in parts.items()}


def _changed(obs: Any, copy: dict[str, Array]) -> bool:
    return any(
        not np.array_equal(value, copy[key], equal_nan=value.dtype.kind == "f") for key, value in _leaves(obs).items()
    )


def _look(seen: Play, env: gym.Env[Any, Any], obs: Any, outcome: tuple[float, bool, bool] | None, step: int) -> None:
    digest = hashlib.sha256(repr(outcome).encode())
    spaces_of = flat_obs_spaces(env.observation_space)
    for key, value in _leaves(obs).items():
        digest.update(f"{key}{value.dtype}{value.shape}".encode())
        digest.update(value.tobytes())
        if isinstance(box := spaces_of.get(key), spaces.Box):
            _look_at_box(seen, box, key, value, outcome, step)
    seen.digests.append(digest.digest())
    if outcome is not None:
        seen.rewards.append(outcome[0])
        if not np.isfinite(outcome[0]):
            seen.bad_value = seen.bad_value or f"step {step} returned the reward {outcome[0]}"


def _look_at_box(
    seen: Play, box: spaces.Box, key: str, value: Array, outcome: tuple[float, bool, bool] | None, step: int
) -> None:
    where = f"entry {key!r} of an observation" if key else "an observation"
    if value.dtype != box.dtype:
        seen.other_dtype = seen.other_dtype or f"{where} has dtype {value.dtype}, its space {box.dtype}"
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        if outcome is not None and outcome[1]:
            seen.nan_at_termination = True
        else:
            seen.bad_value = seen.bad_value or f"{where} is {value[~np.isfinite(value)][0]} after step {step}"
        return
    seen.largest = max(seen.largest, float(np.abs(value.astype(np.float64)).max(initial=0.0)))
    if seen.outside is None:
        low, high = box.low.astype(np.float64), box.high.astype(np.float64)
        with np.errstate(invalid="ignore"):  # rounding is no matter
            beyond = (value < low - 1e-5 * (1 + np.abs(low))) | (value > high + 1e-5 * (1 + np.abs(high)))
        if beyond.any():
            place = int(np.flatnonzero(beyond.ravel())[0])
            bounds = f"{low.ravel()[place]:g} to {high.ravel()[place]:g}"
            seen.outside = f"{where} holds {value.ravel()[place]:g} after step {step}, its space says {bounds}"


def flat_obs_spaces(space: Any) -> dict[str, spaces.Space[Any]]:
    """The leaves of an observation space by their flat keys; "" for a space that is one itself."""
    if isinstance(space, spaces.Dict):
        parts = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        parts = [(str(index), entry) for index, entry in enumerate(space.spaces)]
    else:
        return {"": space}
    leaves = {}
    for key, entry in parts:
        for inner, leaf in flat_obs_spaces(entry).items():
            leaves[f"{key}/{inner}" if inner else str(key)] = leaf
    return leaves
