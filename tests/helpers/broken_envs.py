"""Environments with one mistake each. All count their steps like CounterEnv and make the mistake in step `AT` of an episode."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from helpers.envs import CounterEnv

AT = 3


class _Late(CounterEnv):
    """Changes what step() returns, from step AT on."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        return self.mistake(*result) if self.count >= AT else result

    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        raise NotImplementedError


class OldStepAPI(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, info


class StepReturnsObservation(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs


class WrongShape(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs[:1], reward, terminated, truncated, info


class LostDtype(CounterEnv):
    """The space says whole numbers, the observations have halves, which would be cut off."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 100, (2,), np.int64)

    def _obs(self) -> Any:
        return np.array([self.count + 0.5, self.episode])


class NaNObservation(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return np.array([np.nan, 0.0], np.float32), reward, terminated, truncated, info


class InfiniteObservation(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return np.array([0.0, -np.inf], np.float32), reward, terminated, truncated, info


class NaNTruncated(_Late):
    """NaN in the last observation of an episode that is cut short, from which a value is bootstrapped."""

    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return np.array([np.nan, 0.0], np.float32), reward, False, True, info


class NaNTerminal(_Late):
    """NaN in the last observation of an episode that terminates: nobody learns from it, so it is no mistake."""

    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return np.array([np.nan, 0.0], np.float32), reward, True, False, info


class NaNReward(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, float("nan"), terminated, truncated, info


class VectorReward(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, np.array([1.0, 2.0]), terminated, truncated, info


class NoReward(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, None, terminated, truncated, info


class NaNFlag(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, float("nan"), truncated, info


class NoFlag(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, None, info


class NoInfo(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        return obs, reward, terminated, truncated, None


class Leaves(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        sys.exit(0)


class Raises(_Late):
    def mistake(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
        raise ZeroDivisionError("the simulator broke: 100 % of it")


class ResetWithoutInfo(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=seed)[0]  # two numbers, which would unpack into observation and info


class OldResetAPI(CounterEnv):
    def seed(self, seed: int) -> None:
        self.episode = seed

    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class RaisesInReset(CounterEnv):
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        raise OSError("the licence server is gone")


class OutOfDiscrete(CounterEnv):
    """A Discrete observation that runs out of its space."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Discrete(AT)

    def _obs(self) -> Any:
        return self.count


class MissingKey(CounterEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"a": spaces.Box(0, 99, (1,)), "b": spaces.Discrete(99)})

    def _obs(self) -> Any:
        obs = {"a": np.array([self.count], np.float32), "b": self.count}
        return obs if self.count < AT else {"a": obs["a"]}


class NoDisplay(CounterEnv):
    def __init__(self) -> None:
        raise RuntimeError("cannot connect to X server: no $DISPLAY")


class NeedsPackage(CounterEnv):
    def __init__(self) -> None:
        import no_such_simulator  # noqa: F401


class LeavesAtOnce(CounterEnv):
    def __init__(self) -> None:
        sys.exit(0)


class NotAnEnv:
    """Has the methods, but is not a gymnasium.Env."""

    observation_space = spaces.Box(0, 1, (1,))
    action_space = spaces.Discrete(2)


class BrokenRender(CounterEnv):
    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def render(self) -> Any:
        raise RuntimeError("no display")


class BrokenClose(CounterEnv):
    def close(self) -> None:
        raise RuntimeError("already closed")


MISTAKES: dict[type[gym.Env[Any, Any]], str] = {
    OldStepAPI: r"episode 1, step 3\): step\(\) must return five values .*, not 4 values.*\n.*old gym",
    StepReturnsObservation: r"step 3\): step\(\) must return five values .*not a ndarray",
    WrongShape: r"step 3\): step\(\) returned an observation of shape \(1,\), its space has \(2,\)",
    LostDtype: r"step 0\): reset\(\) returned an observation of dtype float64, its space has int64: return .*astype",
    NaNObservation: r"step 3 .*an observation with nan",
    InfiniteObservation: r"step 3 .*an observation with -inf",
    NaNTruncated: r"step 3 .*an observation with nan.*\n.*at a termination",
    NaNReward: r"step 3 .*the reward nan",
    VectorReward: r"step 3\): step\(\) returned a reward of 2 numbers.*LinearReward",
    NoReward: r"step 3\): step\(\) returned the reward None, which is not a number",
    NaNFlag: r"step 3\): step\(\) returned terminated=nan, which is neither true nor false",
    NoFlag: r"step 3\): step\(\) returned truncated=None, which is neither true nor false",
    NoInfo: r"step 3\): step\(\) returned an info of type NoneType",
    Leaves: r"step 3\) failed in step\(\): it called sys.exit\(0\) \(.*broken_envs.py:\d+\)",
    Raises: r"step 3\) failed in step\(\): ZeroDivisionError: the simulator broke: 100 % of it \(.*broken_envs.py:\d+\)",
    ResetWithoutInfo: r"episode 1, step 0\): reset\(\) must return an observation and a dict of infos, not a ndarray",
    OldResetAPI: r"step 0\) failed in reset\(\): TypeError: .*'seed'.*\nreset must take both: def reset\(self, \*, seed=None",
    RaisesInReset: r"step 0\) failed in reset\(\): OSError: the licence server is gone \(.*broken_envs.py:\d+\)",
    OutOfDiscrete: r"step 3\): step\(\) returned the observation 3, which is not in its space Discrete\(3\)",
    MissingKey: r"step 3\): step\(\) returned an observation without 'b', its space is a Dict of a, b",
}
"""Each mistake with what its message says."""
