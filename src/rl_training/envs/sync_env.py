"""The default backend: environments stepped one after the other, with less ado than Gymnasium's."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rl_training.utils.spaces import Array


class SyncEnvs(SyncVectorEnv):
    """A SyncVectorEnv whose steps write array observations straight into the batch: in Gymnasium's, putting together what a
    cheap environment returned takes longer than its step. Other modes and observations still go that way.
    """

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        rows = self._observations
        if self.autoreset_mode is not AutoresetMode.SAME_STEP or not isinstance(rows, np.ndarray):
            return super().step(actions)
        infos: dict[str, Any] = {}
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                infos = self._add_info(infos, {"final_obs": obs, "final_info": info}, i)
                obs, info = env.reset()
            self._env_obs[i] = rows[i] = obs
            self._rewards[i], self._terminations[i], self._truncations[i] = reward, terminated, truncated
            if info:
                infos = self._add_info(infos, info, i)
        self._autoreset_envs = self._terminations | self._truncations
        outcome = (self._rewards.copy(), self._terminations.copy(), self._truncations.copy(), infos)
        return (rows.copy() if self.copy else rows, *outcome)
