"""What a vector environment hands out is looked at once a step, for all its environments: no NaN reaches a policy or a buffer.

The form of a single environment's answers is checked around it (`CheckedEnv`), that of somebody else's vector environment here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from rl_training.envs.checked_env import RAISED, flag_problem, raised_text, reset_problem, reward_problem, step_problem
from rl_training.utils.action_masks import mask_key, mask_space
from rl_training.utils.errors import AxiomError, EnvFailure, UserError
from rl_training.utils.spaces import Array, Observation, map_obs

_LARGEST = float(np.finfo(np.float32).max)
_TERMINAL = "Only the observation at a termination may be NaN, because nothing is learned from it."


class VectorChecks:
    """Steps and resets a vector environment, and names what is wrong in what it returns."""

    def __init__(self, envs: VectorEnv[Any, Any, Any]):
        self._envs, self.name, self._steps = envs, vector_name(envs), 0
        self._mask, self._mask_key = mask_space(envs.single_observation_space), mask_key(envs.single_observation_space)
        self._shapes = map_obs(lambda space: space.shape, _entries(envs.single_observation_space))
        self._foreign = not _all_ours(envs)

    def reset(self, **arguments: Any) -> Observation:
        """The first observations (N, ...), in memory of their own."""
        try:
            result = self._envs.reset(**arguments)
        except AxiomError:
            raise
        except RAISED as error:
            if not self._foreign:
                raise
            raise self._raised("reset", error) from error
        if problem := reset_problem(result):
            raise self._failure(problem)
        obs: Observation = map_obs(np.copy, result[0])
        if self._foreign:
            self._check_shapes(obs)
        self.usable(obs)
        return obs

    def step(self, actions: Array) -> tuple[Observation, Array, Array, Array, dict[str, Any]]:
        """(observations, rewards, terminated, truncated, infos), as the environment gave them."""
        self._steps += 1
        if not self._foreign:
            result = self._envs.step(actions)
        else:
            try:
                result = self._envs.step(actions)
            except AxiomError:
                raise
            except RAISED as error:
                raise self._raised("step", error) from error
            self._check_form(result)
        rewards = result[1]
        # The sum of squares is finite unless a number is not, or is huge: a third of the time that asking each takes.
        if not np.vdot(rewards, rewards) < np.inf and not np.isfinite(rewards).all():
            index = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise self._failure(f"step() returned the reward {rewards[index]}.", index)
        return result

    def usable(self, obs: Observation, exempt: Array | None = None) -> bool:
        """Whether all numbers are finite and within float32; EnvFailure unless those that are not lie in `exempt` rows (N,), and
        where no action is valid."""
        if not isinstance(obs, dict):
            return self._finite(obs, exempt)
        if self._mask is not None and self._foreign:  # ours have been looked at one by one
            self._check_masks(obs, exempt)
        found = [self._finite(values, exempt, key) for key, values in obs.items()]
        return all(found)

    def allowed(self, obs: Observation, actions: Array, rows: Array) -> None:
        """Raises UserError for an action that is not valid in one of the `rows` (N,) bool: no policy may choose one."""
        assert self._mask is not None and self._mask_key is not None and isinstance(obs, dict)
        start = getattr(self._envs.single_action_space, "start", 0)
        wrong = rows & ~self._mask.allowed(obs[self._mask_key], actions - start)
        if np.count_nonzero(wrong):
            index = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{self._where(index)}: action {actions[index]} was chosen, which its mask rules out.\n"
                "A policy of your own must ask its encoder for the mask: self.action_head(features, self.encoder.action_mask(obs))."
            )

    def _check_masks(self, obs: dict[str, Array], exempt: Array | None) -> None:
        assert self._mask is not None and self._mask_key is not None
        empty = self._mask.without_choice(obs[self._mask_key]).any(axis=-1)
        empty = empty if exempt is None else empty & ~exempt
        if np.count_nonzero(empty):
            raise self._failure(
                "no action is valid. Where nothing can be done the episode must terminate; its last mask is not looked at.",
                int(np.flatnonzero(empty)[0]),
            )

    def _finite(self, values: Array, exempt: Array | None, key: str | None = None) -> bool:
        if values.dtype.kind != "f" or np.vdot(values, values) < np.inf:
            return True
        rows = values.reshape(len(values), -1)
        bad = ~(np.abs(rows) <= _LARGEST)
        if not bad.any():
            return True
        named = bad.any(axis=1) if exempt is None else bad.any(axis=1) & ~exempt
        if not named.any():
            return False
        index = int(np.flatnonzero(named)[0])
        value = rows[index][bad[index]][0]
        entry = "" if key is None else f" in entry {key!r}"
        size = "" if not np.isfinite(value) else ", more than float32 holds,"
        raise self._failure(f"an observation with {value}{size}{entry} came back.\n{_TERMINAL}", index)

    def _check_form(self, result: Any) -> None:
        if problem := step_problem(result):
            raise self._failure(problem)
        obs, rewards, *flags, _ = result
        count = self._envs.num_envs
        self._check_shapes(obs)
        if np.shape(rewards) != (count,):
            problem = reward_problem(rewards[0]) if len(np.shape(rewards)) == 2 else None
            problem = problem or f"rewards of shape {np.shape(rewards)} for {count} environments"
            raise self._failure(f"step() returned {problem}.")
        for name, values in zip(("terminated", "truncated"), flags):
            if np.shape(values) != (count,):
                raise self._failure(f"step() returned {name} of shape {np.shape(values)} for {count} environments.")
            if np.asarray(values).dtype != np.bool_:
                for index, value in enumerate(values):
                    if problem := flag_problem(name, value):
                        raise self._failure(f"step() returned {problem}.", index)

    def _check_shapes(self, obs: Any) -> None:
        shapes, count = self._shapes, self._envs.num_envs
        parts = obs.items() if isinstance(obs, dict) else [(None, obs)]
        expected: Any = shapes if isinstance(shapes, dict) else {None: shapes}
        if {key for key, _ in parts} != set(expected):
            raise self._failure(f"an observation came back that is not of its space {self._envs.observation_space}.")
        for key, values in parts:
            if expected[key] is not None and np.shape(values) != (count, *expected[key]):
                raise self._failure(
                    f"an observation of shape {np.shape(values)} came back, its space has {(count, *expected[key])}."
                )

    def _failure(self, problem: str, index: int | None = None) -> EnvFailure:
        return EnvFailure(f"{self._where(index)}: {problem}")

    def _raised(self, method: str, error: BaseException) -> EnvFailure:
        return EnvFailure(f"{self._where(None)} failed in {method}(): {raised_text(error, self._envs.unwrapped)}")

    def _where(self, index: int | None) -> str:
        number = "" if index is None else f"index {index}, "
        return f"environment {self.name!r} ({number}step {self._steps} since the start)"


def vector_name(envs: VectorEnv[Any, Any, Any]) -> str:
    """The id of the environments in a vector, else the name of its class."""
    base = envs.unwrapped
    if base.spec is not None:
        return str(base.spec.id)
    made_by = next(iter(getattr(base, "env_fns", ())), None)
    made_by = getattr(made_by, "make", made_by)  # in workers
    return str(getattr(made_by, "env_id", type(base).__name__))


def _all_ours(envs: Any) -> bool:
    layers = [envs]
    while isinstance(layers[-1], VectorWrapper):
        layers.append(layers[-1].env)
    return all(type(layer).__module__.startswith("rl_training.") for layer in layers)


def _entries(space: Any) -> Any:
    return dict(space.spaces) if isinstance(getattr(space, "spaces", None), dict) else space
