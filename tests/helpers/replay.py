"""A simulated stream of steps, and the naive lists of transitions that a replay buffer must agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_training.data.replay_buffer import ReplayBuffer


@dataclass
class Transition:
    obs: np.ndarray
    action: int
    reward: float
    next_obs: np.ndarray
    terminated: bool
    truncated: bool


class Stream:
    """N environments with random episode ends, dummy steps after some ends, and now and then an episode lost to a dead worker.

    Observations are (3,) = (env, episode, step), or with `frame_stack` k stacks (k, 2, 2) of random uint8 frames, so no two are
    equal. `lists[i]` has every valid transition of environment i.
    """

    def __init__(self, num_envs: int, seed: int, frame_stack: int = 1, end: float = 0.2, invalid: float = 0.05):
        self.rng = np.random.default_rng(seed)
        self.n, self.k, self.end, self.invalid = num_envs, frame_stack, end, invalid
        self.lists: list[list[Transition]] = [[] for _ in range(num_envs)]
        self.episode = [-1] * num_envs
        self.time = [0] * num_envs
        self.awaiting = [False] * num_envs
        self.obs = [self._first(env) for env in range(num_envs)]

    def _frame(self) -> np.ndarray:
        return self.rng.integers(0, 256, (2, 2), dtype=np.uint8)

    def _first(self, env: int) -> np.ndarray:
        self.episode[env] += 1
        self.time[env] = 0
        if self.k > 1:
            return np.repeat(self._frame()[None], self.k, axis=0)
        return np.array([env, self.episode[env], 0], dtype=np.float32)

    def _next(self, env: int) -> np.ndarray:
        self.time[env] += 1
        if self.k > 1:
            return np.concatenate([self.obs[env][1:], self._frame()[None]])
        return np.array([env, self.episode[env], self.time[env]], dtype=np.float32)

    def step(self) -> dict[str, Any]:
        """The next step as keyword arguments of `ReplayBuffer.add`."""
        columns: dict[str, list[Any]] = {
            k: [] for k in ("obs", "actions", "rewards", "next_obs", "terminated", "truncated", "valid")
        }
        for env in range(self.n):
            obs, action, reward = self.obs[env], int(self.rng.integers(100)), float(self.rng.normal())
            terminated = truncated = False
            if self.awaiting[env] or self.rng.random() < self.invalid:
                valid, self.awaiting[env] = False, False
                next_obs = self.obs[env] = self._first(env)
            else:
                valid, next_obs = True, self._next(env)
                draw = self.rng.random()
                terminated, truncated = draw < self.end / 2, self.end / 2 <= draw < self.end
                self.lists[env].append(Transition(obs, action, reward, next_obs, terminated, truncated))
                self.obs[env] = next_obs
                if terminated or truncated:
                    self.awaiting[env] = bool(self.rng.random() < 0.5)
                    if not self.awaiting[env]:
                        self.obs[env] = self._first(env)
            for name, value in zip(columns, (obs, action, reward, next_obs, terminated, truncated, valid)):
                columns[name].append(value)
        return {name: torch.from_numpy(np.stack(values)) for name, values in columns.items()}

    def feed(self, buffer: ReplayBuffer, steps: int) -> None:
        for _ in range(steps):
            buffer.add(**self.step())

    def expected(
        self, env: int, count: int, n_step: int, gamma: float
    ) -> tuple[np.ndarray, int, float, np.ndarray, float]:
        """(obs, action, n-step reward, next_obs, discount) of one transition, step by step."""
        steps = self.lists[env]
        reward, m = 0.0, 0
        while True:
            step = steps[count + m]
            reward += gamma**m * step.reward
            m += 1
            newest = count + m == len(steps)
            # A lost episode shows in the list as an observation that does not follow on.
            lost = not newest and not np.array_equal(steps[count + m].obs, step.next_obs)
            if m == n_step or step.terminated or step.truncated or newest or lost:
                return (
                    steps[count].obs,
                    steps[count].action,
                    reward,
                    step.next_obs,
                    0.0 if step.terminated else gamma**m,
                )
