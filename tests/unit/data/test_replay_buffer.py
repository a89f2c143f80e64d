"""ReplayBuffer: hand-computed returns, agreement with naive lists of transitions, priorities, state, stacks, sequences."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.gpu import needs_gpu
from helpers.replay import Stream
from helpers.tools import through_codec
from rl_training.data.replay_buffer import Prioritization, ReplayBuffer, TransitionBatch
from rl_training.utils.errors import CheckpointError, ConfigError, NonFiniteError
from rl_training.utils.trees import differing_paths

INT64 = torch.int64


def add_steps(buffer: ReplayBuffer, steps: list[tuple[float, float, str]]) -> None:
    """One environment: (obs, reward, end) with end one of "", "T" (terminated) and "U" (truncated); the observation after an
    end is the last one plus 100, else the next step's, or plus 1 for the newest."""
    for i, (obs, reward, end) in enumerate(steps):
        following = steps[i + 1][0] if i + 1 < len(steps) else obs + 1
        buffer.add(
            obs=torch.tensor([[obs]]),
            actions=torch.tensor([int(obs)]),
            rewards=torch.tensor([reward]),
            next_obs=torch.tensor([[obs + 100 if end else following]]),
            terminated=torch.tensor([end == "T"]),
            truncated=torch.tensor([end == "U"]),
            valid=torch.tensor([True]),
        )


def drawn(batch: TransitionBatch) -> dict[float, tuple[float, float, float]]:
    """obs → (rewards, next_obs, discounts) of a batch of one-number observations."""
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    columns = (batch.obs[:, 0], batch.rewards, batch.next_obs[:, 0], batch.discounts)
    return {obs: rest for obs, *rest in zip(*(column.tolist() for column in columns))}  # type: ignore[misc]


def one_env(capacity: int, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity, 1, (1,), (), action_dtype=INT64, **options)


def same(a: TransitionBatch, b: TransitionBatch) -> bool:
    return not differing_paths(
        {k: getattr(a, k) for k in a.__dataclass_fields__}, {k: getattr(b, k) for k in b.__dataclass_fields__}
    )


# Returns by hand ------------------------------------------------------------------------------------------------------


def test_n_step_returns_stop_at_ends_and_at_the_newest_step() -> None:
    buffer = one_env(20, n_step=3, gamma=0.5)
    add_steps(buffer, [(0, 1, ""), (1, 2, ""), (2, 4, "T"), (10, 8, ""), (11, 16, "U"), (20, 32, ""), (21, 64, "")])
    found = drawn(buffer.sample(300))
    assert found == {
        0: [1 + 1 + 1, 102, 0.0],  # terminated in the third step
        1: [2 + 2, 102, 0.0],
        2: [4, 102, 0.0],
        10: [8 + 8, 111, 0.25],  # truncated after two: bootstraps from the final observation with γ²
        11: [16, 111, 0.5],
        20: [32 + 32, 22, 0.25],  # the newest step's observation with γ²
        21: [64, 22, 0.5],
    }


def test_n_step_returns_across_the_seam_of_the_ring() -> None:
    buffer = one_env(4, n_step=3, gamma=0.5)
    add_steps(buffer, [(float(i), 2.0**i, "U" if i == 3 else "") for i in range(9)])  # 5 slots: 5 … 8 are left
    assert drawn(buffer.sample(200)) == {
        5: [32 + 32 + 32, 8, 0.125],
        6: [64 + 64 + 64, 9, 0.125],
        7: [128 + 128, 9, 0.25],
        8: [256, 9, 0.5],
    }
    assert len(buffer) == 4


def test_one_step_gives_the_plain_transition() -> None:
    buffer = one_env(10, gamma=0.9)
    add_steps(buffer, [(0, 1, ""), (1, 2, "T"), (5, 3, "U"), (7, 4, "")])
    found = drawn(buffer.sample(100))
    expected = {0: [1, 1, 0.9], 1: [2, 101, 0], 5: [3, 105, 0.9], 7: [4, 8, 0.9]}
    assert found.keys() == expected.keys()
    for obs, values in expected.items():
        assert found[obs] == pytest.approx(values)


def test_rewards_are_scaled_when_sampled_and_stored_as_they_came() -> None:
    buffer = one_env(10, n_step=2, gamma=0.5, reward_scale=0.25)
    add_steps(buffer, [(0, 8, ""), (1, 16, "T")])
    assert drawn(buffer.sample(50)) == {0: [(8 + 8) / 4, 101, 0], 1: [16 / 4, 101, 0]}
    sequences = buffer.sample_sequences(50, 2)
    assert set(sequences.rewards.reshape(-1).tolist()) == {2.0, 4.0, 0.0}  # 8/4, 16/4, and nothing after the end
    assert buffer.export_rows(buffer.oldest(), buffer.counts)["rewards"].tolist() == [8.0, 16.0]


# Environments ---------------------------------------------------------------------------------------------------------


def two_env_step(t: int, valid: list[bool], terminated: list[bool]) -> dict[str, torch.Tensor]:
    obs = torch.tensor([[float(t)], [100.0 + t]])
    flags = torch.tensor([False, False])
    return {
        "obs": obs,
        "actions": torch.tensor([t, t]),
        "rewards": torch.tensor([1.0, 2.0]),
        "next_obs": obs + 1,
        "terminated": torch.tensor(terminated),
        "truncated": flags,
        "valid": torch.tensor(valid),
    }


def test_invalid_steps_are_not_stored_and_heads_differ() -> None:
    buffer = ReplayBuffer(20, 2, (1,), (), action_dtype=INT64)
    buffer.add(**two_env_step(0, [True, True], [True, False]))
    buffer.add(**two_env_step(1, [False, True], [False, False]))  # the reset call of the first
    buffer.add(**two_env_step(2, [True, True], [False, False]))
    assert buffer.counts.tolist() == [2, 3] and len(buffer) == 5
    buffer.add(**two_env_step(3, [False, False], [False, False]))
    assert buffer.counts.tolist() == [2, 3]
    found = drawn(buffer.sample(200))
    assert {obs: values[1] for obs, values in found.items()} == {0: 1, 2: 3, 100: 101, 101: 102, 102: 103}


def test_an_invalid_step_inside_an_episode_cuts_it_off() -> None:
    buffer = ReplayBuffer(20, 2, (1,), (), action_dtype=INT64, n_step=3, gamma=0.5)
    buffer.add(**two_env_step(0, [True, True], [False, False]))
    buffer.add(**two_env_step(1, [True, False], [False, False]))  # the second's worker died
    buffer.add(**two_env_step(2, [True, True], [False, False]))
    found = drawn(buffer.sample(200))
    assert found[100] == [2, 101, 0.5], "bootstraps from the observation it had reached"
    assert found[102] == [2, 103, 0.5]
    assert found[0] == [1.75, 3, 0.125], "the first goes on"


def test_environments_are_drawn_in_proportion_to_what_they_hold() -> None:
    buffer = ReplayBuffer(2000, 2, (1,), (), action_dtype=INT64)
    for t in range(40):
        buffer.add(**two_env_step(t, [True, t % 4 == 0], [False, False]))
    assert buffer.counts.tolist() == [40, 10]
    batch = buffer.sample(20_000)
    counts = np.unique(batch.indices, return_counts=True)[1]
    assert len(counts) == 50
    assert abs(counts - 400).max() < 5 * 20, "each transition alike: 400 ± 5 standard deviations"


# Against naive lists --------------------------------------------------------------------------------------------------


def check_against_lists(stream: Stream, buffer: ReplayBuffer, batch: TransitionBatch) -> set[tuple[int, int]]:
    """Compares each drawn transition with the lists; returns the (env, count) that were drawn."""
    counts, envs = np.divmod(batch.indices, buffer.num_envs)
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    for i in np.unique(batch.indices, return_index=True)[1].tolist():  # each once: repetitions are read alike
        env, count = int(envs[i]), int(counts[i])
        obs, action, reward, next_obs, discount = stream.expected(env, count, buffer.n_step, buffer.gamma)
        np.testing.assert_array_equal(batch.obs[i].numpy(), obs)
        np.testing.assert_array_equal(batch.next_obs[i].numpy(), next_obs)
        assert batch.actions[i] == action
        assert float(batch.rewards[i]) == pytest.approx(reward, rel=1e-5, abs=1e-6)
        assert float(batch.discounts[i]) == pytest.approx(discount, rel=1e-6)
    return set(zip(envs.tolist(), counts.tolist()))


def make(stream: Stream, per_env: int, **options: Any) -> ReplayBuffer:
    shape = (stream.k, 2, 2) if stream.k > 1 else (3,)
    dtype = torch.uint8 if stream.k > 1 else torch.float32
    return ReplayBuffer(
        per_env * stream.n, stream.n, shape, (), obs_dtype=dtype, action_dtype=INT64, frame_stack=stream.k, **options
    )


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize(("num_envs", "per_env", "n_step"), [(1, 4, 1), (1, 7, 4), (2, 3, 3), (3, 6, 2), (4, 5, 3)])
def test_every_transition_and_nothing_else(
    num_envs: int, per_env: int, n_step: int, frame_stack: int, prioritized: bool
) -> None:
    stream = Stream(num_envs, seed=per_env, frame_stack=frame_stack)
    priorities = Prioritization() if prioritized else None
    buffer = make(stream, per_env, n_step=n_step, gamma=0.9, prioritization=priorities, seed=1)
    rng = np.random.default_rng(0)
    for step in range(400):
        stream.feed(buffer, 1)
        if step % 10 and step > 20:
            continue
        stored = {(env, count) for env, list_ in enumerate(stream.lists) for count in range(len(list_))}
        stored = {(env, count) for env, count in stored if count >= len(stream.lists[env]) - per_env}
        assert len(buffer) == len(stored)
        if stored:
            batch = buffer.sample(len(stored) * 20)
            assert check_against_lists(stream, buffer, batch) == stored
            if prioritized:
                buffer.update_priorities(batch.indices[:9], torch.from_numpy(0.5 + rng.random(len(batch.indices[:9]))))


def test_stacks_of_a_dict_and_whole_other_entries() -> None:
    shapes = {"image": (2, 4, 4), "position": (3,), "goal": ()}
    dtypes = {"image": torch.uint8, "position": torch.float32, "goal": torch.int64}
    buffer = ReplayBuffer(6, 1, shapes, (2,), obs_dtype=dtypes, frame_stack=2, n_step=2, gamma=0.5)

    def observed(t: int, first: int) -> dict[str, torch.Tensor]:
        frames = [torch.full((4, 4), max(s, first), dtype=torch.uint8) for s in (t - 1, t)]
        return {
            "image": torch.stack(frames)[None],
            "position": torch.full((1, 3), float(t), dtype=torch.float64),
            "goal": torch.tensor([t]),
        }

    first = 0
    for t in range(40):
        end = t % 7 == 6
        buffer.add(
            obs=observed(t, first),
            actions=torch.full((1, 2), float(t)),
            rewards=torch.tensor([1.0], dtype=torch.float64),
            next_obs=observed(t + 1, first),
            terminated=torch.tensor([False]),
            truncated=torch.tensor([end]),
            valid=torch.tensor([True]),
        )
        first = t + 1 if end else first
    batch = buffer.sample(64)
    assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
    assert {k: v.dtype for k, v in batch.obs.items()} == dtypes
    times = batch.obs["goal"].tolist()
    assert set(times) == set(range(34, 40))
    for i, t in enumerate(times):
        start = t - t % 7
        after = min(t + 2, start + 7, 40)
        for obs, at in ((batch.obs, t), (batch.next_obs, after)):
            expected = observed(at, start)
            torch.testing.assert_close(obs["image"][i], expected["image"][0], rtol=0, atol=0)
            assert obs["position"][i].tolist() == [at] * 3 and obs["goal"][i] == at
        assert batch.actions[i].tolist() == [t, t]


def test_a_first_stack_that_repeats_no_frame_is_refused() -> None:
    buffer = ReplayBuffer(6, 1, (2, 1, 1), (), obs_dtype=torch.uint8, frame_stack=2)
    stack = torch.tensor([[[[0]], [[7]]]], dtype=torch.uint8)
    flags = torch.tensor([False])
    with pytest.raises(ConfigError, match="padding_type"):
        buffer.add(
            obs=stack,
            actions=torch.zeros(1),
            rewards=torch.zeros(1),
            next_obs=stack,
            terminated=flags,
            truncated=flags,
            valid=~flags,
        )


def test_dtypes_of_a_batch() -> None:
    for prioritization in (None, Prioritization()):
        stream = Stream(2, seed=0)
        buffer = make(stream, 10, n_step=3, prioritization=prioritization)
        stream.feed(buffer, 12)
        batch = buffer.sample(8, beta=0.4)
        found = {name: getattr(batch, name).dtype for name in batch.__dataclass_fields__}
        assert found.pop("actions") is INT64 and found.pop("indices") == np.int64
        assert set(found.values()) == {torch.float32}
        sequences = buffer.sample_sequences(4, 3)
        assert sequences.rewards.dtype is torch.float32 and sequences.obs.dtype is torch.float32  # type: ignore[union-attr]


# Priorities -----------------------------------------------------------------------------------------------------------


def test_priorities_weights_and_new_items_by_hand() -> None:
    buffer = one_env(8, prioritization=Prioritization(alpha=0.5, epsilon=1.0))
    add_steps(buffer, [(0.0, 0, ""), (1.0, 0, ""), (2.0, 0, "")])
    buffer.update_priorities(np.array([0, 1, 2]), torch.tensor([0.0, -3.0, 8.0]))  # (|δ| + 1)^½ = 1, 2, 3
    add_steps(buffer, [(9.0, 0, "")])  # at the largest so far: 3
    batch = buffer.sample(900, beta=0.5)
    expected = {0: 1 / 9, 1: 2 / 9, 2: 3 / 9, 3: 3 / 9}
    # (4 P)^-½ over the largest, which is that of the smallest P: √(P_min / P)
    weights = {0: 1.0, 1: 0.5**0.5, 2: (1 / 3) ** 0.5, 3: (1 / 3) ** 0.5}
    indices = batch.indices
    for index, share in expected.items():
        assert abs((indices == index).sum() - 900 * share) <= 1, "one draw per stratum leaves no room for chance"
        assert batch.weights.numpy()[indices == index] == pytest.approx(weights[index])
    assert (buffer.sample(50, beta=0.0).weights == 1).all()


def test_proportions_after_many_updates_and_overwrites() -> None:
    stream = Stream(3, seed=4)
    buffer = make(stream, 40, prioritization=Prioritization(alpha=0.7, epsilon=0.01), seed=3)
    rng = np.random.default_rng(5)
    exact: dict[int, float] = {}
    highest = 1.0
    for _ in range(150):
        before = buffer.counts.copy()
        stream.feed(buffer, 2)
        for env in range(3):
            exact.update({count * 3 + env: highest for count in range(before[env], buffer.counts[env])})
        exact = {i: p for i, p in exact.items() if i // 3 >= buffer.counts[i % 3] - 40}
        batch = buffer.sample(16)
        errors = rng.exponential(size=16)
        stale = batch.indices - 3 * 200  # of overwritten transitions: no effect
        buffer.update_priorities(
            np.concatenate([batch.indices, stale]), torch.from_numpy(np.concatenate([errors, errors]))
        )
        exact.update({int(i): (e + 0.01) ** 0.7 for i, e in zip(batch.indices, errors)})
        highest = max(highest, *((e + 0.01) ** 0.7 for e in errors))
    assert len(exact) == len(buffer) == 120
    draws = np.concatenate([buffer.sample(64).indices for _ in range(3000)])
    ids = np.array(sorted(exact))
    shares = np.array([exact[i] for i in ids.tolist()])
    expected = shares / shares.sum() * len(draws)
    found = np.array([(draws == i).sum() for i in ids])
    assert found.sum() == len(draws)
    chi_square = float(((found - expected) ** 2 / expected).sum())
    assert chi_square < 180, "119 degrees of freedom: 99.97 % of samples of the exact distribution stay below"


def test_a_priority_of_a_transition_overwritten_since_does_not_touch_its_successor() -> None:
    buffer = one_env(3, prioritization=Prioritization(alpha=1.0, epsilon=1e-9))
    add_steps(buffer, [(float(i), 0, "") for i in range(3)])
    batch = buffer.sample(30)
    add_steps(buffer, [(float(i), 0, "") for i in range(3, 6)])
    buffer.update_priorities(batch.indices, torch.full((30,), 1000.0))
    counts = np.bincount(buffer.sample(300).indices, minlength=6)
    assert counts[:3].sum() == 0 and abs(counts[3:] - 100).max() <= 1


def test_td_errors_must_be_finite() -> None:
    buffer = one_env(3, prioritization=Prioritization())
    add_steps(buffer, [(0.0, 0, "")])
    with pytest.raises(NonFiniteError):
        buffer.update_priorities(torch.tensor([0]), torch.tensor([float("nan")]))


# Time -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prioritized", [False, True])
def test_sampling_time_does_not_grow_with_the_fill(prioritized: bool) -> None:
    num_envs, per_env = 1000, 1000
    buffer = ReplayBuffer(10**6, num_envs, (4,), (), prioritization=Prioritization() if prioritized else None, n_step=3)
    zeros, flags = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.bool)

    def fill(steps: int) -> None:
        for _ in range(steps):
            obs = torch.zeros(num_envs, 4)
            buffer.add(
                obs=obs, actions=zeros, rewards=zeros, next_obs=obs, terminated=flags, truncated=flags, valid=~flags
            )

    def median_time() -> float:
        buffer.sample(256)
        times = []
        for _ in range(300):
            begin = time.perf_counter()
            buffer.sample(256)
            times.append(time.perf_counter() - begin)
        return float(np.median(times))

    fill(10)
    assert len(buffer) == 10_000
    almost_empty = median_time()
    fill(per_env)
    assert len(buffer) == 10**6
    assert median_time() < 3 * almost_empty


# Determinism and state ------------------------------------------------------------------------------------------------


def filled(seed: int = 0, frame_stack: int = 1, steps: int = 60, **options: Any) -> tuple[Stream, ReplayBuffer]:
    stream = Stream(3, seed=1, frame_stack=frame_stack)
    buffer = make(stream, 9, n_step=3, seed=seed, **options)
    stream.feed(buffer, steps)
    return stream, buffer


def test_the_seed_decides_the_samples() -> None:
    first, second, other = (filled(seed)[1] for seed in (0, 0, 1))
    batch = first.sample(32)
    assert same(batch, second.sample(32)) and not same(batch, other.sample(32))
    assert not same(batch, first.sample(32))


def continue_alike(stream: Stream, a: ReplayBuffer, b: ReplayBuffer) -> None:
    """Both draw, learn and store the same from here on."""
    for _ in range(25):
        batch, copy = a.sample(16, beta=0.4), b.sample(16, beta=0.4)
        assert same(batch, copy)
        check_against_lists(stream, a, batch)
        if a.prioritization is not None:
            a.update_priorities(batch.indices, batch.rewards)
            b.update_priorities(copy.indices, copy.rewards)
        step = stream.step()
        a.add(**step)
        b.add(**step)
    assert differing_paths(a.state_dict(), b.state_dict()) == []


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("prioritization", [None, Prioritization()])
@pytest.mark.parametrize("steps", [1, 5, 60])
def test_state_round_trip(steps: int, prioritization: Prioritization | None, frame_stack: int) -> None:
    stream, buffer = filled(frame_stack=frame_stack, steps=steps, prioritization=prioritization)
    buffer.sample(16)
    state = through_codec(buffer.state_dict())
    restored = filled(seed=9, frame_stack=frame_stack, steps=steps + 11, prioritization=prioritization)[1]
    restored.load_state_dict(state)
    assert differing_paths(buffer.state_dict(), restored.state_dict()) == []
    continue_alike(stream, buffer, restored)


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("gaps", [(2, 3, 4), (30, 1, 2), (5, 0, 40), (8, 8, 8)])
def test_state_in_three_consecutive_segments(gaps: tuple[int, ...], frame_stack: int) -> None:
    for seed in range(8):
        stream = Stream(3, seed=seed, frame_stack=frame_stack, end=0.1, invalid=0.2)
        buffer = make(stream, 9, n_step=3, prioritization=Prioritization())
        segments, saved = [], buffer.counts.copy()
        for gap in gaps:
            stream.feed(buffer, gap)
            start = np.maximum(saved, buffer.oldest())  # the ring of some environments may have gone round since
            segments.append(through_codec(buffer.export_rows(start, buffer.counts)))
            saved = buffer.counts.copy()
        if not len(buffer):
            continue
        restored = make(stream, 9, n_step=3, prioritization=Prioritization(), seed=99)
        head = through_codec(buffer.head_state())
        for segment in segments:
            restored.import_rows(segment)
        restored.load_head_state(head)
        assert (restored._lowest() == buffer._lowest()).all()
        continue_alike(stream, buffer, restored)


def test_segments_longer_than_the_ring_leave_the_newest_steps() -> None:
    """Old segments stay on disk until the ring has left them behind altogether."""
    stream, buffer = filled(steps=0)
    segments, saved = [], buffer.counts.copy()
    for _ in range(20):
        stream.feed(buffer, 3)
        segments.append(through_codec(buffer.export_rows(saved, buffer.counts)))
        saved = buffer.counts.copy()
    restored = filled(seed=5, steps=0)[1]
    for segment in segments:
        restored.import_rows(segment)
    restored.load_head_state(through_codec(buffer.head_state()))
    assert (restored.oldest() == buffer.oldest()).all() and (buffer.oldest() > 0).all()
    continue_alike(stream, buffer, restored)


def test_an_episode_cut_off_after_its_export_is_cut_off_in_the_copy() -> None:
    buffer = ReplayBuffer(20, 2, (1,), (), action_dtype=INT64, n_step=3, gamma=0.5)
    buffer.add(**two_env_step(0, [True, True], [False, False]))
    first = buffer.export_rows(np.zeros(2), buffer.counts)
    saved = buffer.counts.copy()
    buffer.add(**two_env_step(1, [True, False], [False, False]))
    buffer.add(**two_env_step(2, [False, True], [False, False]))
    second = buffer.export_rows(saved, buffer.counts)
    buffer.cut_episodes()
    restored = ReplayBuffer(20, 2, (1,), (), action_dtype=INT64, n_step=3, gamma=0.5)
    restored.import_rows(through_codec(first))
    restored.import_rows(through_codec(second))
    restored.load_head_state(through_codec(buffer.head_state()))
    for copy in (buffer, restored):
        copy.add(**two_env_step(70, [True, True], [False, False]))
        found = drawn(copy.sample(200))
        assert found[0] == [1.5, 2, 0.25] and found[1] == [1, 2, 0.5]
        assert found[100] == [2, 101, 0.5] and found[102] == [2, 103, 0.5] and found[70] == [1, 71, 0.5]


def test_state_of_another_buffer_is_refused() -> None:
    stream, buffer = filled()
    with pytest.raises(CheckpointError, match="same buffer size"):
        make(stream, 12, n_step=3).load_state_dict(buffer.state_dict())
    with pytest.raises(CheckpointError, match="3 environments"):
        ReplayBuffer(18, 2, (3,), (), action_dtype=INT64).load_state_dict(buffer.state_dict())
    with pytest.raises(CheckpointError, match="prioritised"):
        make(stream, 9, n_step=3, prioritization=Prioritization()).load_state_dict(buffer.state_dict())
    with pytest.raises(CheckpointError, match="already there"):
        buffer.import_rows(buffer.export_rows(buffer.oldest(), buffer.counts))
    middle = (buffer.oldest() + buffer.counts) // 2
    partial = make(stream, 9, n_step=3)
    partial.import_rows(buffer.export_rows(middle, buffer.counts))
    with pytest.raises(CheckpointError, match="lacks steps"):
        partial.load_head_state(buffer.head_state())
    with pytest.raises(ValueError, match="not in the ring"):
        buffer.export_rows(buffer.oldest() - 1, buffer.counts)


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_memory_mapped_storage_draws_the_same(frame_stack: int, tmp_path: Path) -> None:
    stream, in_memory = filled(frame_stack=frame_stack, steps=0)
    _, on_disk = filled(frame_stack=frame_stack, steps=0, folder=tmp_path / "replay")
    for _ in range(60):
        step = stream.step()
        in_memory.add(**step)
        on_disk.add(**step)
    assert sum(file.stat().st_size for file in (tmp_path / "replay").iterdir()) >= 27 * 4 * 2
    assert differing_paths(in_memory.state_dict(), on_disk.state_dict()) == []
    continue_alike(stream, in_memory, on_disk)


@needs_gpu
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_storage_on_the_gpu_draws_the_same(frame_stack: int) -> None:
    options: dict[str, Any] = {"frame_stack": frame_stack, "prioritization": Prioritization()}
    stream, on_cpu = filled(**options)
    _, on_gpu = filled(**options, device="cuda")
    assert on_gpu.sample(4).rewards.is_cuda and on_cpu.sample(4).rewards.device.type == "cpu"
    assert on_gpu.sample_sequences(4, 2).next_obs.is_cuda and on_cpu.sample_sequences(4, 2)  # type: ignore[union-attr]
    restored = filled(seed=7, steps=3, **options, device="cuda")[1]
    restored.load_state_dict(through_codec(on_cpu.state_dict()))
    assert differing_paths(on_cpu.state_dict(), restored.state_dict()) == []
    continue_alike(stream, on_cpu, on_gpu)


# Sequences ------------------------------------------------------------------------------------------------------------


def test_sequences_end_with_their_episode_or_the_newest_step() -> None:
    buffer = one_env(20)
    add_steps(buffer, [(0, 1, ""), (1, 2, ""), (2, 4, "T"), (10, 8, "U"), (20, 16, ""), (21, 32, "")])
    batch = buffer.sample_sequences(100, 3)
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    found = {}
    for b in range(100):
        columns = (batch.obs[:, b, 0], batch.rewards[:, b], batch.next_obs[:, b, 0], batch.mask[:, b])
        ends = (batch.terminated[:, b], batch.truncated[:, b])
        found[float(batch.obs[0, b, 0])] = [column.tolist() for column in (*columns, *ends)]
        assert batch.actions[:, b].tolist() == batch.obs[:, b, 0].tolist()
    no = [False] * 3
    assert found == {
        0: [[0, 1, 2], [1, 2, 4], [1, 2, 102], [True, True, True], [False, False, True], no],
        1: [[1, 2, 2], [2, 4, 0], [2, 102, 102], [True, True, False], [False, True, False], no],
        2: [[2, 2, 2], [4, 0, 0], [102, 102, 102], [True, False, False], [True, False, False], no],
        10: [[10, 10, 10], [8, 0, 0], [110, 110, 110], [True, False, False], no, [True, False, False]],
        20: [[20, 21, 21], [16, 32, 0], [21, 22, 22], [True, True, False], no, no],
        21: [[21, 21, 21], [32, 0, 0], [22, 22, 22], [True, False, False], no, no],
    }


def test_sequences_of_stacks_follow_the_lists() -> None:
    stream = Stream(2, seed=3, frame_stack=3)
    buffer = make(stream, 8)
    stream.feed(buffer, 70)
    batch = buffer.sample_sequences(64, 4)
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    for b in range(64):
        steps = [
            (env, i)
            for env in range(2)
            for i, step in enumerate(stream.lists[env])
            if np.array_equal(step.obs, batch.obs[0, b].numpy()) and step.action == batch.actions[0, b]
        ]
        assert len(steps) == 1
        env, start = steps[0]
        for t in range(int(batch.mask[:, b].sum())):
            step = stream.lists[env][start + t]
            np.testing.assert_array_equal(batch.obs[t, b].numpy(), step.obs)
            np.testing.assert_array_equal(batch.next_obs[t, b].numpy(), step.next_obs)
            assert (bool(batch.terminated[t, b]), bool(batch.truncated[t, b])) == (step.terminated, step.truncated)


# Memory and errors ----------------------------------------------------------------------------------------------------


def test_memory_is_at_most_six_tenths_of_sb3s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import replay_memory

    for obs_size, action_size in replay_memory.CASES:
        ratio = replay_memory.our_bytes(obs_size, action_size) / replay_memory.sb3_bytes(obs_size, action_size)
        assert ratio <= 0.6, f"{obs_size} floats, {action_size or 'discrete'} actions: {ratio:.3f}"
    sys.modules.pop("replay_memory")


def test_final_observations_of_overwritten_episodes_are_given_back() -> None:
    stream = Stream(2, seed=0, end=0.5)
    buffer = make(stream, 50)
    stream.feed(buffer, 200)
    before = buffer.nbytes
    stream.feed(buffer, 3000)
    assert buffer.nbytes <= before * 1.5, "thousands of episodes have ended since"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 4, "num_envs": 2, "n_step": 3}, "n_step is 3"),
        ({"capacity": 1, "num_envs": 2}, "keeps 0 steps"),
        ({"n_step": 0}, "n_step is 0"),
        ({"prioritization": Prioritization(alpha=1.5)}, "alpha in"),
        ({"prioritization": Prioritization(epsilon=0.0)}, "epsilon > 0"),
        ({"frame_stack": 4}, "frames"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplayBuffer(**{"capacity": 10, "num_envs": 1, "obs_shape": (3,), "action_shape": (), **options})


def test_an_empty_buffer_says_so() -> None:
    for prioritization in (None, Prioritization()):
        with pytest.raises(ValueError, match="empty"):
            one_env(3, prioritization=prioritization).sample(1)
