"""Environments whose every number can be worked out by hand."""

from __future__ import annotations

import itertools
import os
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Ending = Literal["terminated", "truncated", "both"]


class CounterEnv(gym.Env[Any, Any]):
    """Counts its steps. The observation is (steps in this episode, episode number), the reward the count after the step.

    `script` lists the episodes as (length, how it ends) and starts over after the last; without one, episodes never end.
    """

    def __init__(self, script: tuple[tuple[int, Ending], ...] = (), n_actions: int = 3):
        self.observation_space = spaces.Box(0.0, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(n_actions)
        self.script = script
        self.count, self.episode = 0, -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        # Seeding starts the story again, so that the episode number depends on seed and actions alone.
        self.episode = 0 if seed is not None else self.episode + 1
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.count += 1
        ending = None
        if self.script:
            length, how = self.script[self.episode % len(self.script)]
            assert self.count <= length, "stepped after the end of the episode"
            ending = how if self.count == length else None
        terminated, truncated = ending in ("terminated", "both"), ending in ("truncated", "both")
        return self._obs(), self._reward(), terminated, truncated, {}

    def _reward(self) -> float:
        return float(self.count)

    def _obs(self) -> Any:
        return np.array([self.count, self.episode], dtype=np.float32)


class DictCounterEnv(CounterEnv):
    """The counter with a Dict observation of a Box and a Discrete."""

    def __init__(self, script: tuple[tuple[int, Ending], ...] = ()):
        super().__init__(script)
        self.observation_space = spaces.Dict({"count": spaces.Box(0.0, np.inf, (1,)), "parity": spaces.Discrete(2)})

    def _obs(self) -> Any:
        return {"count": np.array([self.count], dtype=np.float32), "parity": np.int64(self.count % 2)}


class RandomWalkEnv(CounterEnv):
    """A random walk; the length of an episode (5 to 13 steps) and how it ends come from the generator too."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        self.position = float(self.np_random.normal())
        self.length = int(self.np_random.integers(5, 14))
        self.ending: Ending = "terminated" if self.np_random.random() < 0.5 else "truncated"
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += float(self.np_random.normal()) + float(action)
        self.count += 1
        assert self.count <= self.length, "stepped after the end of the episode"
        ended = self.count == self.length
        ending = self.ending if ended else None
        return self._obs(), float(self.count), ending == "terminated", ending == "truncated", {}

    def _obs(self) -> Any:
        return np.array([self.position, self.count], dtype=np.float32)


class SelfExportingEnv(RandomWalkEnv):
    """Exports its own state, and counts the steps of all its instances to show whether it was replayed."""

    walks = itertools.count()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        next(self.walks)
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position, "count": self.count, "length": self.length, "ending": self.ending}

    def set_state(self, state: dict[str, Any]) -> None:
        self.position, self.count = state["position"], state["count"]
        self.length, self.ending = state["length"], state["ending"]


class BufferEnv(CounterEnv):
    """Hands out one and the same array, and writes into it."""

    def __init__(self, script: tuple[tuple[int, Ending], ...] = (), within: Literal["Box", "Dict", "Tuple"] = "Box"):
        super().__init__(script)
        self.within, self.buffer, box = within, np.zeros(2, np.float32), self.observation_space
        kinds = {"Box": box, "Dict": spaces.Dict({"x": box}), "Tuple": spaces.Tuple((box, box))}
        self.observation_space = kinds[within]  # type: ignore[assignment]

    def _obs(self) -> Any:
        self.buffer[:] = self.count, self.episode
        return {"Box": self.buffer, "Dict": {"x": self.buffer}, "Tuple": (self.buffer, self.buffer)}[self.within]


class OsRandomEnv(CounterEnv):
    """Draws from the operating system: no seed and no replay brings it back."""

    def _obs(self) -> Any:
        noise = int.from_bytes(os.urandom(4), "little")
        return np.array([self.count, noise % 65536], dtype=np.float32)


class GlobalCounterEnv(CounterEnv):
    """Shows a counter that all instances in the process share."""

    steps = itertools.count()

    def _obs(self) -> Any:
        return np.array([self.count, next(self.steps)], dtype=np.float32)


class OptionsEnv(CounterEnv):
    """Starts counting at `options["start"]`."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = int((options or {}).get("start", 0))
        return self._obs(), {}


class ConstantRewardEnv(CounterEnv):
    """Every step gives the same reward."""

    def __init__(self, reward: float = 1.0, script: tuple[tuple[int, Ending], ...] = ((5, "terminated"),)):
        super().__init__(script)
        self.reward = reward

    def _reward(self) -> float:
        return self.reward


class ExplodingRewardEnv(CounterEnv):
    """After `healthy_steps` steps of the instance the reward is a number whose square float32 cannot hold."""

    def __init__(self, healthy_steps: int, script: tuple[tuple[int, Ending], ...] = ((5, "terminated"),)):
        super().__init__(script)
        self.healthy_steps = healthy_steps

    def _reward(self) -> float:
        self.healthy_steps -= 1
        return 1.0 if self.healthy_steps >= 0 else 1e38


class RaisingEnv(CounterEnv):
    """Raises in its n-th step."""

    def __init__(self, fail_at: int):
        super().__init__()
        self.fail_at = fail_at

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.count + 1 == self.fail_at:
            raise ZeroDivisionError(f"the simulator broke at step {self.fail_at}")
        return super().step(action)
