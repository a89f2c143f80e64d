"""KeyRing: which keys fit, what the best return is, and that a random key opens nothing."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import rl_training.envs  # noqa: F401  # registers it
from rl_training.envs.builtin.key_ring import KeyRing


def test_five_keys_of_a_hundred_fit_and_one_of_them_opens() -> None:
    env = gym.make("KeyRing-v0").unwrapped
    assert isinstance(env, KeyRing)
    seen = set()
    for seed in range(200):
        (_, colour), _ = env.reset(seed=seed)
        mask = env.action_masks()
        assert mask.sum() == 5 and mask[env.right_key(colour)]
        assert np.flatnonzero(mask).tolist() == [*range(5 * colour, 5 * colour + 5)]
        seen.add(int(colour))
    assert seen == set(range(20))


def test_the_best_return_is_five_doors_in_five_steps() -> None:
    env = gym.make("KeyRing-v0")
    (doors, colour), _ = env.reset(seed=3)
    total = 0.0
    for step in range(5):
        assert doors == step
        (doors, colour), reward, terminated, _, info = env.step(env.unwrapped.right_key(colour))  # type: ignore[attr-defined]
        total += float(reward)
    assert terminated and info["is_success"] and total == pytest.approx(0.82)


def test_a_wrong_key_costs_a_step_and_nothing_else() -> None:
    env = gym.make("KeyRing-v0")
    before, _ = env.reset(seed=3)
    wrong = (env.unwrapped.right_key(before[1]) + 1) % 100  # type: ignore[attr-defined]
    for step in range(25):
        after, reward, terminated, truncated, _ = env.step(wrong)
        assert (after.tolist(), reward, terminated, truncated) == (before.tolist(), 0.0, False, step == 24)


@pytest.mark.parametrize("masks", ["method", "info", "observation"])
def test_the_masks_can_be_told_in_three_ways(masks: str) -> None:
    env = KeyRing(masks)  # type: ignore[arg-type]
    obs, info = env.reset(seed=0)
    assert hasattr(env, "action_masks") == (masks == "method")
    assert ("action_mask" in info) == (masks == "info")
    assert env.observation_space.contains(obs) and isinstance(obs, dict) == (masks == "observation")


def test_another_way_is_refused() -> None:
    with pytest.raises(ValueError, match="not 'letter'"):
        KeyRing("letter")  # type: ignore[arg-type]
