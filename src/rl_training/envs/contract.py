"""The step contract: every vector environment, whatever its autoreset mode, becomes one kind of record per step.

Gymnasium's vector environments end episodes in three ways. NEXT_STEP returns the final observation and spends the following call
on the reset; SAME_STEP returns the new episode's first observation and puts the final one into `infos`; DISABLED leaves the reset
to the caller. `EnvStepper` is the only place that knows. Everyone else sees: the observation acted on, the action, the reward,
the true next observation, `terminated` (do not bootstrap), `truncated` (bootstrap), and `valid` (false for a step that was
not the policy's: the reset call of NEXT_STEP, or the step in which a worker died).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import create_empty_array

from rl_training.envs.bootstrap_ends import BOOTSTRAP_ENDS
from rl_training.envs.builtin.array_envs import ArrayVectorEnv
from rl_training.envs.vector_checks import VectorChecks
from rl_training.envs.vector_state import export_vector_state, restore_vector_state
from rl_training.utils.action_masks import mask_key, mask_space
from rl_training.utils.errors import UserError
from rl_training.utils.nested import flat_obs
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import Array, Observation, map_obs


@dataclass(slots=True)  # not frozen: that would take longer than any other line of a step
class StepRecord:
    """One step of N environments."""

    obs: Observation
    """(N, ...) observations the actions were chosen for."""
    actions: Array
    """(N, ...) actions in the environment's own form."""
    rewards: Array
    """(N,) float64."""
    next_obs: Observation
    """(N, ...) the true successors: the final observation where an episode ended."""
    terminated: Array
    """(N,) bool: the episode reached a terminal state; its value is zero."""
    truncated: Array
    """(N,) bool: the episode was cut short; its last state still has a value. Never true where `terminated` is."""
    valid: Array
    """(N,) bool: false where this was not a step of the policy."""
    success: Array | None = None
    """(N,) float64: whether episodes that ended here reached their goal, by their info's `is_success` or `success`; NaN where no
    episode ended or it does not say; None if no episode says so."""
    infos: dict[str, Any] = field(default_factory=dict)
    """What the vector environment said beside: arrays (N,), each with a mask `_key` of the environments that said it. Where it
    resets in the same step, `final_info` has those of ended episodes."""
    bootstrap_ends: Array | None = None
    """(N,) bool: nothing after this step is worth anything to the learner, although the episode goes on (a life was lost); None
    where no environment says so."""

    @property
    def ended(self) -> Array:
        """(N,) bool: the next action begins an episode, or answers to a step that was not the policy's."""
        return self.terminated | self.truncated | ~self.valid


class EnvStepper:
    """Steps a vector environment under the step contract and remembers what the next action is chosen for.

    Attributes:
        obs: the observations (N, ...) that the next actions answer to.
        mask: the space of the action masks in them, None without.
        resume_grade: "exact" or "episode-boundary" after a restore, None before.
        resume_problem: what stood in the way of an exact restore.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]):
        self.envs = envs
        self.num_envs = envs.num_envs
        self.mode = _autoreset_mode(envs)
        self.obs: Observation = cast(
            "Observation", create_empty_array(envs.single_observation_space, envs.num_envs, fn=np.zeros)
        )
        self._begun = False  # before the first reset there is nothing to export
        self.resume_grade: str | None = None
        self.resume_problem: str | None = None
        self._awaiting_reset = np.zeros(self.num_envs, dtype=np.bool_)
        self._checks = VectorChecks(envs)
        self.mask = mask_space(envs.single_observation_space)
        self._mask_key = mask_key(envs.single_observation_space)

    @property
    def action_masks(self) -> Array | None:
        """(N, n) which actions may come next; None without masks."""
        return None if self._mask_key is None or not isinstance(self.obs, dict) else self.obs[self._mask_key]

    def reset(self, seed: int) -> Observation:
        """Starts fresh episodes everywhere; environment i gets its own stream derived from `seed`."""
        self.obs, self._begun = self._checks.reset(seed=self._env_seeds(seed)), True
        self._awaiting_reset = np.zeros(self.num_envs, dtype=np.bool_)
        return self.obs

    def step(self, actions: Array) -> StepRecord:
        """Takes one step in every environment with actions in the environments' own form."""
        obs, valid = self.obs, ~self._awaiting_reset
        if self.mask is not None:
            self._checks.allowed(obs, actions, valid)
        new_obs, rewards, terminated, truncated, infos = self._checks.step(actions)
        # Copies, because a vector environment may hand out its own buffers and overwrite them in the next step.
        terminated = np.array(terminated, dtype=np.bool_)
        truncated = np.asarray(truncated, dtype=np.bool_) > terminated  # and not terminated
        ended = terminated | truncated
        any_ended = np.count_nonzero(ended) > 0  # much faster than any() on few numbers
        next_obs = new_obs = map_obs(np.array, new_obs)
        if "worker_restarted" in infos:
            valid = valid & ~infos["worker_restarted"]
        if self.mode is AutoresetMode.NEXT_STEP:
            self._awaiting_reset = ended
        elif any_ended:
            if self.mode is AutoresetMode.SAME_STEP:
                next_obs = _with_final_obs(new_obs, infos, ended)
            else:
                new_obs = self._checks.reset(options={"reset_mask": ended})
        finite = self._checks.usable(next_obs, exempt=terminated)
        if new_obs is not next_obs:
            self._checks.usable(new_obs)
        elif not finite:
            # NEXT_STEP: the action that answers to a terminal observation is ignored, but it must be a number.
            new_obs = map_obs(lambda values: _blanked(values, terminated), new_obs)
        self.obs = new_obs
        success = _final_success(infos, ended) if any_ended else None
        rewards = np.array(rewards, dtype=np.float64)
        bootstrap_ends = _bootstrap_ends(infos, ended) if BOOTSTRAP_ENDS in infos else None
        return StepRecord(obs, actions, rewards, next_obs, terminated, truncated, valid, success, infos, bootstrap_ends)

    def restart(self, rows: Array) -> None:
        """Starts fresh episodes in the environments of `rows` (N,) bool, in the midst of the others'."""
        if not isinstance(self.envs.unwrapped, SyncVectorEnv):
            raise UserError(
                f"an episode of {self._checks.name} did not end, and a vector environment like this cannot restart a single one.\n"
                "Give it a time limit, e.g. env.max_episode_steps=1000."
            )
        self.obs = self._checks.reset(options={"reset_mask": rows})
        self._awaiting_reset = self._awaiting_reset & ~rows

    def state_dict(self) -> dict[str, Any]:
        return {
            "obs": map_obs(np.copy, self.obs),
            "awaiting_reset": self._awaiting_reset.copy(),
            "envs": export_vector_state(self.envs) if self._begun else None,
        }

    def load_state_dict(self, state: dict[str, Any], fallback_seed: int) -> None:
        """Brings the environments back; see `resume_grade` for how well that went."""
        seeds, self._begun = self._env_seeds(fallback_seed), True
        fresh = restore_vector_state(self.envs, state["envs"], state["obs"], seeds)
        if fresh is None:
            self.resume_grade, self.resume_problem = "exact", None
            self.obs = map_obs(np.copy, state["obs"])
            self._awaiting_reset = np.array(state["awaiting_reset"], dtype=np.bool_)
        else:
            self.resume_grade = "episode-boundary"
            self.obs, self.resume_problem = fresh
            self._awaiting_reset = np.zeros(self.num_envs, dtype=np.bool_)

    def close(self) -> None:
        self.envs.close()

    def _env_seeds(self, seed: int) -> Any:
        base = self.envs.unwrapped
        if hasattr(base, "env_fns") or isinstance(base, ArrayVectorEnv):
            return [derive_seed(seed, "env", index) for index in range(self.num_envs)]
        return derive_seed(seed, "env")  # native vector environments have one generator and take one seed


def _blanked(values: Array, rows: Array) -> Array:
    values = values.copy()
    values[rows] = 0
    return values


def _autoreset_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    mode = envs.metadata.get("autoreset_mode")
    if not isinstance(mode, AutoresetMode):
        raise UserError(
            f"the vector environment {envs} does not say how it resets finished episodes.\n"
            'Set metadata["autoreset_mode"] to a gymnasium.vector.AutoresetMode; guessing would corrupt the returns.'
        )
    return mode


def _bootstrap_ends(infos: dict[str, Any], ended: Array) -> Array:
    """(N,) where the infos say so and the episode goes on."""
    said = np.asarray(infos[BOOTSTRAP_ENDS]).astype(np.bool_) & np.asarray(infos.get(f"_{BOOTSTRAP_ENDS}", True))
    return said & ~ended


def _final_success(infos: dict[str, Any], ended: Array) -> Array | None:
    """(N,) what the infos of ended episodes say about their goals; SAME_STEP keeps those infos apart."""
    final = infos.get("final_info", infos)
    for name in ("is_success", "success"):
        values = final.get(name)
        if isinstance(values, np.ndarray) and values.shape == ended.shape:
            said = ended & np.asarray(final.get(f"_{name}", True))
            success = np.full(len(ended), np.nan)
            with suppress(TypeError, ValueError):  # an environment may mean something else by the word
                success[said] = values[said].astype(np.float64)
            return success
    return None


def _with_final_obs(reset_obs: Observation, infos: dict[str, Any], ended: Array) -> Observation:
    """The reset observations with the rows of ended episodes replaced by their final observations."""
    if "final_obs" not in infos:
        raise UserError('a SAME_STEP vector environment ended an episode without infos["final_obs"]')
    next_obs, finals = map_obs(np.copy, reset_obs), infos["final_obs"][ended]
    if isinstance(next_obs, dict):
        for key, rows in next_obs.items():
            rows[ended] = [flat_obs(final)[key] for final in finals]
    else:  # a batch of rows, or one object per environment
        next_obs[ended] = list(finals) if finals.dtype == object else finals
    return next_obs
