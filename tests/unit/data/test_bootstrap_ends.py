"""Steps after which nothing is worth anything although the episode goes on: in rollouts, in replay, and across saves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data.replay_buffer import Prioritization, ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.utils.trees import differing_paths

STACK = 3


class Story:
    """One environment whose frame number t shows t; each step draws how it goes on."""

    def __init__(self, seed: int) -> None:
        self.rng, self.time, self.history = np.random.default_rng(seed), 0, [0]
        self.rows: list[dict[str, Any]] = []

    def stack(self) -> np.ndarray[Any, Any]:
        padded = [self.history[0]] * (STACK - 1) + self.history
        return np.array(padded[-STACK:], dtype=np.float32)[:, None]

    def step(self) -> dict[str, Any]:
        obs, kind = self.stack(), self.rng.choice(["on", "on", "on", "life", "terminated", "truncated"])
        self.time += 1
        self.history.append(self.time)
        row = {"obs": obs, "action": self.time % 4, "reward": float(self.time), "next_obs": self.stack(), "kind": kind}
        self.rows.append(row)
        if kind in ("terminated", "truncated"):
            self.time += 1
            self.history = [self.time]
        return row


def add(buffer: ReplayBuffer, row: dict[str, Any]) -> None:
    buffer.add(
        obs=torch.from_numpy(row["obs"])[None],
        actions=torch.tensor([row["action"]]),
        rewards=np.array([row["reward"]]),
        next_obs=torch.from_numpy(row["next_obs"])[None],
        terminated=np.array([row["kind"] == "terminated"]),
        truncated=np.array([row["kind"] == "truncated"]),
        valid=np.array([True]),
        bootstrap_ends=np.array([row["kind"] == "life"]),
    )


def make(n_step: int = 1, prioritized: bool = False, seed: int = 0) -> ReplayBuffer:
    return ReplayBuffer(
        40,
        1,
        (STACK, 1),
        (),
        action_dtype=torch.int64,
        frame_stack=STACK,
        n_step=n_step,
        gamma=0.5,
        seed=seed,
        prioritization=Prioritization() if prioritized else None,
    )


def expected(rows: list[dict[str, Any]], start: int, n_step: int) -> tuple[float, float, Any]:
    """(reward, discount, next_obs) of the transition that begins at a row, by hand."""
    reward, discount = 0.0, 1.0
    for row in rows[start : start + n_step]:
        reward, discount = reward + discount * row["reward"], discount * 0.5
        if row["kind"] != "on":
            break
    return reward, 0.0 if row["kind"] in ("life", "terminated") else discount, row["next_obs"]


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_samples_are_those_of_the_story_also_across_the_seam_and_a_save(n_step: int, prioritized: bool) -> None:
    story, buffer = Story(1), make(n_step, prioritized)
    for count in range(1, 201):
        add(buffer, story.step())
        if count % 37 == 0:  # often right behind a lost life
            saved, restored = buffer.state_dict(), make(n_step, prioritized, seed=9)
            restored.load_state_dict(saved)
            assert differing_paths(restored.state_dict(), saved) == []
            buffer = restored
        if count % 20:
            continue
        batch = buffer.sample(64)
        for place, index in enumerate(batch.indices):
            row = story.rows[int(index)]
            reward, discount, next_obs = expected(story.rows, int(index), n_step)
            assert np.array_equal(batch.obs[place].numpy(), row["obs"]), "stacks go on through a lost life"
            assert batch.rewards[place].item() == pytest.approx(reward)
            assert batch.discounts[place].item() == pytest.approx(discount)
            if discount > 0 or n_step == 1:
                assert np.array_equal(batch.next_obs[place].numpy(), next_obs)


def test_a_save_right_behind_a_lost_life_goes_on_as_if_nothing_had_been() -> None:
    story, one = Story(0), make()
    row = story.step()
    while row["kind"] != "life":
        add(one, row)
        row = story.step()
    add(one, row)
    other = make()
    other.load_state_dict(one.state_dict())
    for _ in range(60):
        row = story.step()
        add(one, row)
        add(other, row)
    assert differing_paths(one.state_dict(), other.state_dict()) == []


def test_an_episode_cut_behind_a_lost_life_stays_worth_nothing() -> None:
    buffer, story = make(), Story(0)
    row = story.step()
    while row["kind"] != "life":
        add(buffer, row)
        row = story.step()
    add(buffer, row)
    buffer.cut_episodes()
    batch = buffer.sample(64)
    newest = batch.indices == len(story.rows) - 1
    assert newest.any() and not batch.discounts.numpy()[newest].any()
    other = make()
    other.load_state_dict(buffer.state_dict())
    assert differing_paths(other.state_dict(), buffer.state_dict()) == []


def test_a_sequence_stops_at_a_lost_life_as_terminated_not_truncated() -> None:
    story, buffer = Story(2), make()
    for _ in range(40):
        add(buffer, story.step())
    batch = buffer.sample_sequences(64, 6)
    assert not (batch.terminated & batch.truncated).any()
    kinds = {int(row["reward"]): row["kind"] for row in story.rows}
    for step in range(6):
        for place in range(64):
            if batch.mask[step, place]:
                kind = kinds[int(batch.rewards[step, place])]
                assert bool(batch.terminated[step, place]) == (kind in ("life", "terminated"))
                assert bool(batch.truncated[step, place]) == (kind == "truncated")


def test_a_rollout_ends_the_value_and_not_the_memory() -> None:
    buffer = RolloutBuffer(3, 1, (1,), (), action_dtype=torch.int64)
    for step, life in enumerate((False, True, False)):
        buffer.add(
            obs=torch.tensor([[float(step)]]),
            actions=torch.tensor([0]),
            rewards=np.array([1.0]),
            terminated=np.array([False]),
            truncated=np.array([False]),
            valid=np.array([True]),
            next_obs=np.array([[step + 1.0]]),
            bootstrap_ends=np.array([life]),
        )
    assert buffer.dones.tolist() == [[False], [True], [False]]
    assert not buffer.ended().any()
    buffer.values = torch.tensor([[10.0], [20.0], [30.0]])
    buffer.compute_returns_and_advantages(torch.tensor([40.0]), gamma=0.5, gae_lambda=1.0)
    # 1 + ½ · 40 − 30; 1 + 0 − 20; 1 + ½ (20 + (−19)) − 10 = 1 + ½ · 1 − 10
    assert buffer.advantages.flatten().tolist() == [-8.5, -19.0, -9.0]
