"""The synthetic environments obey their spaces and repeat bit for bit."""

from itertools import chain

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.envs.builtin.synthetic import ACTION_SPACES, OBSERVATION_SPACES, SyntheticEnv, action_size
from rl_training.utils.spaces import same_tree

OBSERVATIONS = list(chain(*OBSERVATION_SPACES.values()))
ACTIONS = list(chain(*ACTION_SPACES.values()))


def _play(observation_space: spaces.Space, action_space: spaces.Space, seed: int, steps: int = 60) -> list:
    env = SyntheticEnv(observation_space, action_space)
    action_space.seed(seed)
    obs, _ = env.reset(seed=seed)
    history = [(obs, 0.0, False, False)]
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(action_space.sample())
        history.append((obs, reward, terminated, truncated))
        if terminated or truncated:
            obs, _ = env.reset()
            history.append((obs, 0.0, False, False))
    return history


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_observations_are_in_their_space_and_vary(space: spaces.Space) -> None:
    observations = [obs for obs, *_ in _play(space, ACTIONS[0], 3)]
    assert all(space.contains(obs) for obs in observations)
    assert not all(same_tree(observations[0], obs) for obs in observations)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_every_action_space_can_be_acted_in_and_matters(space: spaces.Space) -> None:
    history = _play(OBSERVATIONS[0], space, 3)
    rewards = {reward for _, reward, *_ in history}
    assert len(rewards) > 10 and all(np.isfinite(reward) for reward in rewards)


def test_same_seed_same_episodes_and_both_kinds_of_end() -> None:
    space = OBSERVATIONS[0]
    first, again, other = (_play(space, ACTIONS[0], seed, steps=200) for seed in (7, 7, 8))
    assert all(same_tree(a[0], b[0]) and a[1:] == b[1:] for a, b in zip(first, again))
    assert not all(same_tree(a[0], b[0]) for a, b in zip(first, other))
    assert any(terminated for _, _, terminated, _ in first) and any(truncated for *_, truncated in first)


def test_discrete_observations_take_every_value() -> None:
    space = OBSERVATION_SPACES["Discrete"][0]
    assert {int(obs) for obs, *_ in _play(space, ACTIONS[0], 1, steps=300)} == {-2, -1, 0, 1, 2}


def test_an_action_outside_the_space_is_an_error() -> None:
    env = SyntheticEnv(OBSERVATIONS[0], spaces.Discrete(3, start=1))
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"is not in Discrete\(3, start=1\)"):
        env.step(np.int64(0))


def test_action_size_by_hand() -> None:
    assert action_size(np.int64(1), spaces.Discrete(3, start=1)) == -1.0
    assert action_size(np.int64(2), spaces.Discrete(3, start=1)) == 0.0
    assert action_size(np.array([1, 1]), spaces.MultiDiscrete([2, 3], start=[0, -1])) == 1.0
    assert action_size(np.array([1, 0, 0, 0]), spaces.MultiBinary(4)) == -0.5
    assert action_size(np.array([-2.0, 3.0]), ACTION_SPACES["Box"][0]) == 0.0
