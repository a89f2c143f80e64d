"""Bytes per transition of the replay buffer, beside Stable-Baselines3's layout for the same capacity.

    python benchmarks/replay_memory.py

Ours is what a full buffer's tensors and arrays take up, final observations of its episodes included. SB3's `ReplayBuffer` with
its defaults (optimize_memory_usage=False, handle_timeout_termination=True) keeps obs and next_obs in the space's dtype, actions
in theirs (int64, shape (1,), for Discrete), and rewards, dones and timeouts in float32 each; those arrays are made here.
"""

from __future__ import annotations

import numpy as np
import torch

from rl_training.data.replay_buffer import ReplayBuffer

CAPACITY = 50_000
NUM_ENVS = 50  # fills the buffer in 1,000 calls
EPISODE_LENGTH = 100
CASES = [(4, None), (17, None), (111, None), (2, 1), (3, 1), (8, 2), (17, 6), (111, 8)]
"""(floats of an observation, floats of an action or None for discrete actions), from classic control to MuJoCo."""


def our_bytes(obs_size: int, action_size: int | None, capacity: int = CAPACITY) -> float:
    """Bytes per transition of a full buffer whose episodes have `EPISODE_LENGTH` steps."""
    discrete = action_size is None
    action_shape = () if action_size is None else (action_size,)
    action_dtype = torch.int64 if discrete else torch.float32
    buffer = ReplayBuffer(capacity, NUM_ENVS, (obs_size,), action_shape, action_dtype=action_dtype)
    obs, flags = torch.zeros(NUM_ENVS, obs_size), torch.zeros(NUM_ENVS, dtype=torch.bool)
    for step in range(capacity // NUM_ENVS + EPISODE_LENGTH):
        buffer.add(
            obs=obs,
            actions=torch.zeros((NUM_ENVS, *action_shape), dtype=action_dtype),
            rewards=torch.zeros(NUM_ENVS),
            next_obs=obs,
            terminated=flags,
            # Not all at once: environments are in different phases of their episodes.
            truncated=(torch.arange(NUM_ENVS) + step) % EPISODE_LENGTH == 0,
            valid=~flags,
        )
    assert len(buffer) == capacity
    return buffer.nbytes / capacity


def sb3_bytes(obs_size: int, action_size: int | None, capacity: int = CAPACITY) -> float:
    """Bytes per transition of arrays laid out as Stable-Baselines3's."""
    size = capacity // NUM_ENVS
    arrays = [
        np.zeros((size, NUM_ENVS, obs_size), dtype=np.float32),  # observations
        np.zeros((size, NUM_ENVS, obs_size), dtype=np.float32),  # next_observations
        np.zeros((size, NUM_ENVS, action_size or 1), dtype=np.int64 if action_size is None else np.float32),  # actions
        np.zeros((size, NUM_ENVS), dtype=np.float32),  # rewards
        np.zeros((size, NUM_ENVS), dtype=np.float32),  # dones
        np.zeros((size, NUM_ENVS), dtype=np.float32),  # timeouts
    ]
    return sum(array.nbytes for array in arrays) / capacity


def main() -> None:
    print(f"{'observation':>11}  {'action':>10}  {'AxiomRL':>8}  {'SB3':>6}  ratio   (bytes per transition)")
    for obs_size, action_size in CASES:
        ours, theirs = our_bytes(obs_size, action_size), sb3_bytes(obs_size, action_size)
        action = "discrete" if action_size is None else f"{action_size} floats"
        print(f"{obs_size:>4} floats  {action:>10}  {ours:>8.1f}  {theirs:>6.0f}  {ours / theirs:.3f}")


if __name__ == "__main__":
    main()
