"""A terminal observation may be anything, NaN too: no update depends on it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.dqn import DQNConfig
from rl_training.api.agent import agent_class
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.sources import TransitionDataset


class Walk(gym.Env[Any, Any]):
    """A random walk of six steps, whose terminal observation is a constant."""

    def __init__(self, end: float, discrete: bool):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.end = end

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.obs, self.steps = self.np_random.normal(size=2).astype(np.float32), 0
        return self.obs, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.obs = self.obs + self.np_random.normal(size=2).astype(np.float32)
        ended = self.steps == 6
        obs = np.full(2, self.end, np.float32) if ended else self.obs
        return obs, float(np.sum(action)) + 0.1 * float(self.obs[0]), ended, False, {}


SMALL: dict[str, Any] = {
    "learning_starts": 16,
    "batch_size": 16,
    "buffer_size": 200,
    "policy": {"hidden_sizes": (8, 8)},
    "num_envs": 2,
    "execution": "eager",
}
DISCRETE: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("dqn", {}),
    "double": ("double_dqn", {"n_step": 3}),
    "munchausen": ("dqn", {"munchausen": True}),
    "c51": ("c51", {}),
    "qr_dqn": ("qr_dqn", {"num_quantiles": 4}),
    "iqn": ("iqn", {"num_taus": 4, "num_target_taus": 4}),
    "rainbow": ("rainbow", {}),
    "discrete_sac": ("discrete_sac", {}),
}
CONTINUOUS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {"n_step": 2}),
    "td3": ("td3", {}),
    "ddpg": ("ddpg", {"prioritized": True}),
    "tqc": ("tqc", {}),
    "redq": ("redq", {"num_critics": 3, "gradient_steps": 2}),
    "droq": ("droq", {"gradient_steps": 2}),
}


def weights_after(algo: str, settings: dict[str, Any], end: float, *, discrete: bool, **more: Any) -> torch.Tensor:
    agent = agent_class(algo)(lambda: Walk(end, discrete), seed=0, **{**SMALL, **settings, **more})
    agent.learn(total_timesteps=60)
    agent.close()
    return torch.cat([value.flatten().double() for value in agent.policy.state_dict().values()])


@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_a_terminal_observation_changes_nothing_whatever_it_is(name: str) -> None:
    discrete = name in DISCRETE
    algo, settings = {**DISCRETE, **CONTINUOUS}[name]
    more: dict[str, Any] = {"env": {"normalize_observations": True}}
    undefined = np.inf if name == "sac" else np.nan
    found, expected = (weights_after(algo, settings, end, discrete=discrete, **more) for end in (undefined, 3.0))
    assert found.isfinite().all()
    # Probabilities add up to 1 within rounding, and their sum is the whole target at an end.
    rounding = 1e-6 if name in ("c51", "rainbow") else 0.0
    torch.testing.assert_close(found, expected, atol=rounding, rtol=0.0)


def test_batch_normalisation_over_both_ends_stays_finite() -> None:
    """CrossQ's critics see every row of a batch, so a terminal observation does matter there, as the number that stands in."""
    settings = {"policy": {"hidden_sizes": (8,), "critic_hidden_sizes": (8,)}}
    assert weights_after("crossq", settings, np.nan, discrete=False).isfinite().all()


def test_the_buffer_keeps_what_is_finite_and_what_did_not_end() -> None:
    buffer = ReplayBuffer(10, 2, {"a": (2,), "n": ()}, (), obs_dtype={"a": torch.float32, "n": torch.int64})
    before = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "n": torch.tensor([1, 2])}
    after = {"a": torch.tensor([[np.nan, 7.0], [np.nan, 8.0]]), "n": torch.tensor([3, 4])}
    flags = {"truncated": np.array([False, True]), "valid": np.array([True, True])}
    buffer.add(
        obs=before,
        actions=torch.zeros(2),
        rewards=np.zeros(2),
        next_obs=after,
        terminated=np.array([True, False]),
        **flags,
    )
    batch = buffer.sample(20)
    assert isinstance(batch.next_obs, dict)
    for row, index in zip(batch.next_obs["a"], batch.indices):
        expected = [1.0, 7.0] if index == 0 else [np.nan, 8.0]  # a time limit has a value: NaN there is a fault
        np.testing.assert_array_equal(row.numpy(), expected)
    assert torch.isnan(after["a"][0, 0]), "the caller's tensor is the caller's"


def test_so_does_a_dataset() -> None:
    rows = np.array([[1.0], [2.0]], np.float32)
    dataset = TransitionDataset(
        spaces.Box(-1, 1, (1,)),
        spaces.Discrete(2),
        obs=rows,
        actions=np.zeros(2, np.int64),
        rewards=np.zeros(2),
        next_obs=np.full_like(rows, np.nan),
        terminated=np.array([True, False]),
        gamma=DQNConfig().gamma,
    )
    batch = dataset.sample(50, 0.0)
    assert isinstance(batch.next_obs, torch.Tensor)
    ended = batch.discounts == 0
    assert (batch.next_obs[ended] == 1.0).all() and batch.next_obs[~ended].isnan().all()
