"""Environments that keep something where observations do not show it, or draw where nobody expects it."""

from __future__ import annotations

import random
import tempfile
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from helpers.envs import CounterEnv, RandomWalkEnv

STEPS = [0]


class GlobalDraws(CounterEnv):
    """Draws its episode's hidden goal from NumPy's and Python's process-wide generators; the goal shows at the third step."""

    length = 7

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation = super().reset(seed=seed)
        self.goal = float(np.random.normal()) + random.random()  # noqa: NPY002 - the fault that is tested
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        super().step(action)
        return self._obs(), self._reward(), False, self.count >= self.length, {}

    def _obs(self) -> Any:
        return np.array([self.count, self.goal if self.count >= 3 else 0.0], dtype=np.float32)


class TorchDraws(GlobalDraws):
    """Draws from torch's process-wide generator."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation = CounterEnv.reset(self, seed=seed)
        self.goal = float(torch.randn(()))
        return observation


class LateGlobalDraws(GlobalDraws):
    """Draws only from its twentieth step on, after everybody has stopped watching."""

    length = 60

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.goal = 0.0
        return CounterEnv.reset(self, seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.count >= 20:
            self.goal = float(np.random.normal())  # noqa: NPY002
        return super().step(action)

    def _obs(self) -> Any:
        return np.array([self.count, self.goal if self.count >= 50 else 0.0], dtype=np.float32)


class EpisodeSeeds(RandomWalkEnv):
    """Like Crafter: each episode is seeded with a number drawn when the environment was made and the episode's number."""

    def __init__(self) -> None:
        super().__init__()
        self.own_seed, self.played = int(np.random.randint(2**31)), 0  # noqa: NPY002

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.played += 1
        self.np_random = np.random.default_rng((self.own_seed, self.played))
        return super().reset()


class Diary(RandomWalkEnv):
    """Keeps a list over all episodes that decides what comes after the next step."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[float] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.pages.append(float(len(self.pages)))
        return super().step(action)


class SharedCount(CounterEnv):
    """Every instance counts in an attribute of the class."""

    episodes: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        SharedCount.episodes += 1
        return super().reset(seed=seed)

    def _obs(self) -> Any:
        return np.array([self.count, 0.0], dtype=np.float32)


class ModuleCount(CounterEnv):
    """Every instance counts in a variable of the module."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        STEPS[0] += 1
        return super().step(action)


class ReadsClock(CounterEnv):
    """Remembers the time of its steps."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.before = time.perf_counter()
        return super().step(action)


class Box:
    """A simulator in another language: it cannot be looked into, and it remembers how often it was used."""

    def __init__(self) -> None:
        self._used = _endless()

    def step(self) -> int:
        return next(self._used)


def _endless() -> Any:
    count = 0
    while True:
        yield count
        count += 1


class OldWorld(RandomWalkEnv):
    """Like BipedalWalker: its simulator outlives resets, and what it remembers shows late in an episode."""

    def __init__(self) -> None:
        super().__init__()
        self.world = Box()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        used = self.world.step()
        observation, *rest = super().step(action)
        if self.count >= 4:
            observation = observation + np.array([used, 0], dtype=np.float32)
        return observation, *rest  # type: ignore[return-value]


class NewWorld(OldWorld):
    """Like LunarLander: each reset makes a new simulator."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.world = Box()
        return super().reset(seed=seed)


class SeedsFromTheClock(RandomWalkEnv):
    """Like panda-gym: a reset without a seed takes one from the operating system."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.np_random = np.random.default_rng(seed)
        return super().reset()


class DrawsBeforeSeeding(RandomWalkEnv):
    """Like Meta-World: chooses its task before it passes the seed on, which it does not do anyway."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.task = int(self.np_random.integers(100))
        return super().reset()

    def _obs(self) -> Any:
        return super()._obs() + np.float32(self.task)


class Creature:
    """Known by its place in memory; it knows the world it lives in."""

    def __init__(self, world: set[Creature]):
        self.world = world
        world.add(self)


class Crowd(RandomWalkEnv):
    """Like Crafter: keeps its creatures in a set, whose order is another in every process."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.creatures: set[Creature] = set()
        for _ in range(30):
            Creature(self.creatures)
        return super().reset(seed=seed)


class Queue:
    def __init__(self) -> None:
        self.randomizer = Randomizer()


class Randomizer:
    def __init__(self) -> None:
        self.rng = np.random.default_rng()


class InnerGenerator(RandomWalkEnv):
    """Like tetris-gymnasium: a part of a part has the generator, seeded once."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.queue.randomizer.rng = np.random.default_rng(seed)
        self.piece = float(self.queue.randomizer.rng.normal())
        return super().reset(seed=seed)

    def _obs(self) -> Any:
        return super()._obs() + np.float32(self.piece)


class OtherGenerator(RandomWalkEnv):
    """Its generator is not the PCG64 that Gymnasium would make."""

    kind: ClassVar[type[np.random.BitGenerator]] = np.random.MT19937

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.np_random = np.random.Generator(self.kind(seed))
        return super().reset()


class PhiloxGenerator(OtherGenerator):
    kind = np.random.Philox


class SeedFirst(RandomWalkEnv):
    """Insists on a seed for its first reset."""

    seeded = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None and not self.seeded:
            raise RuntimeError("the first reset needs a seed")
        self.seeded = True
        return super().reset(seed=seed)


class MujocoStyle(RandomWalkEnv):
    """Has a `get_state()` and, as MuJoCo's environments, a `set_state(qpos, qvel)`."""

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position}

    def set_state(self, qpos: Any, qvel: Any) -> None:
        raise AssertionError("not called")


class ObjectState(RandomWalkEnv):
    """Like tetris-gymnasium: what its `get_state` returns is no plain data."""

    def get_state(self) -> dict[str, Any]:
        return {"walk": self, "position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        raise AssertionError("not called")


class RaisingSetState(RandomWalkEnv):
    def get_state(self) -> dict[str, Any]:
        return {"position": self.position}

    def set_state(self, state: dict[str, Any]) -> None:
        raise OSError("no such simulator")


class OwnFolder(RandomWalkEnv):
    """Like the point mazes: each instance writes its model to a temporary file."""

    def __init__(self) -> None:
        super().__init__()
        self.path = tempfile.mktemp()


class EndlessBox(CounterEnv):
    """Never ends, and its actions are large."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.Box(-1, 1, (100,))
