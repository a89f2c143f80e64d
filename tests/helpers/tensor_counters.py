"""The counter of `helpers.envs` as a tensor environment, scripted per environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.envs import Ending
from rl_training.envs.builtin.classic_dynamics import Dynamics
from rl_training.envs.builtin.tensor_envs import TensorVectorEnv

Script = tuple[tuple[int, Ending], ...]


@dataclass(frozen=True)
class Counting(Dynamics):
    """The state is what is observed: (steps in this episode, episode number). The reward is the count after the step."""

    lengths: Any = None
    terminates: Any = None

    initial = ((0.0, 0.0), (0.0, 0.0))
    observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __post_init__(self) -> None:
        """Not a config: nothing to check."""

    def step(self, xp: Any, states: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        states = states + torch.tensor([1.0, 0.0])
        at_end = states[:, 0] == per_episode(self.lengths, states)
        return states, states[:, 0].clone(), at_end & per_episode(self.terminates, states)


def per_episode(table: Tensor, states: Tensor) -> Tensor:
    """(N,) the entries of a table (N, episodes) for the episodes that the environments are in."""
    return table.gather(1, states[:, 1:].long() % table.shape[1]).squeeze(1)


class _TimeLimit:
    """A limit that depends on the episode: reached where the script says `truncated` or `both`."""

    def __init__(self, envs: TensorVectorEnv, limits: Tensor):
        self.envs, self.limits = envs, limits

    def __le__(self, steps: Tensor) -> Tensor:  # `steps >= limit`
        return steps >= per_episode(self.limits, self.envs.states)


def tensor_counters(*scripts: Script) -> TensorVectorEnv:
    """One environment per script; all scripts are repeated to a common number of episodes."""
    episodes = int(np.lcm.reduce([len(script) for script in scripts]))
    full = [script * (episodes // len(script)) for script in scripts]
    lengths = torch.tensor([[length for length, _ in script] for script in full])
    terminates = torch.tensor([[how in ("terminated", "both") for _, how in script] for script in full])
    truncates = torch.tensor([[how in ("truncated", "both") for _, how in script] for script in full])
    envs = CountingEnvs(Counting(lengths, terminates), len(scripts), limit=10**6)
    envs.limit = _TimeLimit(envs, lengths.masked_fill(~truncates, 10**6))  # type: ignore[assignment]
    return envs


class CountingEnvs(TensorVectorEnv):
    """Seeding starts the story again with episode 0."""

    def fresh_states(self) -> Tensor:
        return torch.stack((torch.zeros_like(self.states[:, 0]), self.states[:, 1] + 1), dim=-1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if seed is not None:
            self.states[:, 1] = -1.0
        return super().reset(seed=seed, options=options)
