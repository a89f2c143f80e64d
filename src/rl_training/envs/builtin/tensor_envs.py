"""Batched environments as torch tensors, on any device: all environments step at once, and nothing waits for the device.

The only module of `envs/` that imports torch is this one; it is imported when a config says `env.backend: tensor`, and never by
worker processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from rl_training.envs.builtin.array_envs import classic_task
from rl_training.envs.builtin.classic_dynamics import DYNAMICS, Dynamics
from rl_training.utils.errors import EnvCreationError, UserError
from rl_training.utils.spaces import Array


@dataclass(frozen=True, slots=True)
class TensorStep:
    """One step of N environments, on their device."""

    obs: Tensor
    """(N, ...) float32 observations to act on next: the first of the new episode where one ended."""
    rewards: Tensor
    """(N,)"""
    terminated: Tensor
    """(N,) bool"""
    truncated: Tensor
    """(N,) bool: the time limit is reached, also where `terminated` is true."""
    final_obs: Tensor
    """(N, ...) float32 true successors: the final observation where an episode ended."""


class TensorVectorEnv(VectorEnv[Any, Any, Any]):
    """N environments with SAME_STEP autoreset. `step_tensors` stays on the device; `reset` and `step` speak NumPy like any
    Gymnasium vector environment and pass through the same states.

    Attributes:
        states: (N, S), changed in place.
        steps: (N,) int64 steps in the current episode, changed in place.
        generator: draws the first state of every episode; its stream does not depend on when episodes end.
        limit: steps after which an episode is truncated.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(
        self,
        dynamics: Dynamics,
        num_envs: int,
        limit: int,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.dynamics, self.num_envs, self.limit = dynamics, num_envs, limit
        self.device = torch.device(device)
        self.single_observation_space, self.single_action_space = dynamics.observation_space, dynamics.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._low, high = torch.tensor(dynamics.initial, dtype=dtype, device=self.device).T
        self._width = high - self._low
        self.states = torch.zeros((num_envs, len(dynamics.initial)), dtype=dtype, device=self.device)
        self.steps = torch.zeros(num_envs, dtype=torch.int64, device=self.device)
        self.generator = torch.Generator(device=self.device)
        self.reset()

    def observe(self) -> Tensor:
        """(N, ...) float32 observations of the current states, with memory of their own."""
        return self._observations(self.states)

    def _observations(self, states: Tensor) -> Tensor:
        return self.dynamics.observe(torch, states).to(torch.float32, copy=True)

    @torch.no_grad()
    def step_tensors(self, actions: Tensor) -> TensorStep:
        """Steps all environments with actions (N, ...) in the environment's own form, already on the device.

        Fresh states are drawn for every environment and taken where an episode ended: cheaper than asking which did.
        """
        states, rewards, terminated = self.dynamics.step(torch, self.states, actions)
        final_obs = self._observations(states)
        truncated = self.steps.add_(1) >= self.limit
        ended = terminated | truncated
        self.states.copy_(torch.where(ended.unsqueeze(-1), self.fresh_states(), states))
        self.steps.masked_fill_(ended, 0)
        return TensorStep(self.observe(), rewards, terminated, truncated, final_obs)

    def fresh_states(self) -> Tensor:
        """(N, S) first states of new episodes, drawn now."""
        drawn = torch.rand(self.states.shape, generator=self.generator, dtype=self.states.dtype, device=self.device)
        return drawn.mul_(self._width).add_(self._low)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Starts fresh episodes everywhere. One seed gives the generator that all environments share."""
        if options:
            raise UserError(
                f"tensor environments take no reset options, got {options}: use env.backend=sync for these."
            )
        if seed is not None:
            self.generator.manual_seed(seed)
        self.states.copy_(self.fresh_states())
        self.steps.zero_()
        return _array(self.observe()), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        if isinstance(self.single_action_space, spaces.Discrete) and not self.action_space.contains(actions):
            raise UserError(f"actions must be in {self.action_space}, got {actions}")
        step = self.step_tensors(torch.as_tensor(actions, device=self.device))
        terminated, truncated = _array(step.terminated), _array(step.truncated)
        ended, infos = terminated | truncated, dict[str, Any]()
        if ended.any():
            infos = {"final_obs": _array(step.final_obs), "_final_obs": ended}
        return _array(step.obs), _array(step.rewards).astype(np.float64), terminated, truncated, infos

    def get_state(self) -> dict[str, Any]:
        """Everything that decides the future, as arrays."""
        return {
            "states": _array(self.states),
            "steps": _array(self.steps),
            "generator": self.generator.get_state().numpy().copy(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Puts back what `get_state` gave; ValueError if that was of other environments or of another kind of device."""
        saved = {name: np.asarray(state[name]) for name in ("states", "steps", "generator")}
        for name, current in self.get_state().items():
            if saved[name].shape != current.shape or saved[name].dtype != current.dtype:
                raise ValueError(
                    f"{name} is {saved[name].dtype} {saved[name].shape}, not {current.dtype} {current.shape}"
                )
        self.states.copy_(torch.from_numpy(saved["states"]))
        self.steps.copy_(torch.from_numpy(saved["steps"]))
        self.generator.set_state(torch.from_numpy(saved["generator"]))


def make_tensor_env(
    env_id: str,
    num_envs: int,
    *,
    kwargs: dict[str, Any] | None = None,
    max_episode_steps: int | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> TensorVectorEnv:
    """The tensor version of a Gymnasium environment, with Gymnasium's time limit unless another is given."""
    if env_id not in DYNAMICS:
        raise EnvCreationError(
            f"environment {env_id!r} has no tensor version; env.backend=tensor has {', '.join(DYNAMICS)}.\n"
            "Use env.backend=sync or env.backend=async for any other."
        )
    dynamics, limit = classic_task(env_id, kwargs, max_episode_steps, "tensor")
    return TensorVectorEnv(dynamics, num_envs, limit, device=device, dtype=dtype)


def _array(tensor: Tensor) -> Array:
    """A copy on the CPU that later steps do not touch."""
    array = tensor.cpu().numpy()
    return array.copy() if tensor.device.type == "cpu" else array
