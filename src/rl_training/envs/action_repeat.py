"""A wrapper that holds each action for several steps."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Takes every action `repeats` times, or until the episode ends, and adds the rewards up. It counts as one step."""

    def __init__(self, env: gym.Env[Any, Any], repeats: int):
        super().__init__(env)
        if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
            raise ValueError(f"repeats is a whole number from 1 up, got {repeats!r}")
        self._repeats = repeats

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self._repeats):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info
