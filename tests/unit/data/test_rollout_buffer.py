"""RolloutBuffer: what is stored, how ends bootstrap, and that an epoch sees every valid step once."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.tools import through_codec
from rl_training.data.rollout_buffer import RolloutBuffer

T, N = 4, 2


def _fill(buffer: RolloutBuffer, **columns: Any) -> None:
    """Step t of environment n observes 10 t + n; its final observation would be 100 + that."""
    for t in range(buffer.num_steps):
        obs = torch.tensor([[10.0 * t + n] for n in range(buffer.num_envs)])

        def row(name: str, default: float, dtype: torch.dtype, t: int = t) -> Tensor:
            return torch.tensor(columns[name][t] if name in columns else [default] * buffer.num_envs, dtype=dtype)

        buffer.add(
            obs=obs,
            actions=torch.full((buffer.num_envs,), float(t)),
            rewards=row("rewards", 1.0, torch.float32),
            terminated=row("terminated", 0, torch.bool),
            truncated=row("truncated", 0, torch.bool),
            valid=row("valid", 1, torch.bool),
            next_obs=obs + 100,
        )


def _buffer(**columns: Any) -> RolloutBuffer:
    buffer = RolloutBuffer(T, N, (1,), ())
    _fill(buffer, **columns)
    return buffer


def test_add_stores_in_order_until_full() -> None:
    buffer = RolloutBuffer(T, N, (1,), ())
    assert not buffer.full
    _fill(buffer, rewards=[[1, 2], [3, 4], [5, 6], [7, 8]], terminated=[[0, 0], [1, 0], [0, 0], [0, 0]])
    assert buffer.full
    assert buffer.obs.squeeze(-1).tolist() == [[0, 1], [10, 11], [20, 21], [30, 31]]
    assert buffer.rewards.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert buffer.actions.tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert buffer.dones.tolist() == [[False, False], [True, False], [False, False], [False, False]]
    assert not buffer.truncated.any()


def test_only_truncated_episodes_keep_their_final_observation() -> None:
    buffer = _buffer(terminated=[[0, 0], [1, 0], [0, 0], [0, 0]], truncated=[[0, 1], [0, 0], [0, 0], [1, 1]])
    final = buffer.final_obs()
    assert final is not None
    obs, index = final
    assert obs.squeeze(-1).tolist() == [101.0, 130.0, 131.0]
    assert index.tolist() == [1, 6, 7], "t·N + n"
    buffer.clear()
    assert buffer.final_obs() is None and not buffer.full and buffer.last_obs is None


def test_steps_written_on_the_device_are_those_that_were_added() -> None:
    flags = {"terminated": [[0, 0], [1, 0], [0, 0], [0, 0]], "truncated": [[0, 1], [0, 0], [0, 0], [1, 1]]}
    added, written = _buffer(**flags), RolloutBuffer(T, N, (1,), ())
    terminated, truncated = (torch.tensor(rows, dtype=torch.bool) for rows in flags.values())
    for t in range(T):
        obs = torch.tensor([[10.0 * t + n] for n in range(N)])
        written.write(
            t,
            obs=obs,
            actions=torch.full((N,), float(t)),
            rewards=torch.ones(N),
            ended=terminated[t] | truncated[t],
            truncated=truncated[t],
            next_obs=obs + 100,
        )
    for name in ("obs", "actions", "rewards", "dones", "truncated", "valid"):
        assert torch.equal(getattr(written, name), getattr(added, name)), name
    (found, index), (expected, expected_index) = written.final_obs(), added.final_obs()
    assert torch.equal(found, expected) and torch.equal(index, expected_index)
    written.truncated.zero_()
    assert written.final_obs() is None


def test_returns_with_termination_truncation_and_the_rollouts_end() -> None:
    buffer = _buffer(
        rewards=[[1, 1], [2, 2], [3, 3], [4, 4]],
        terminated=[[0, 0], [1, 0], [0, 0], [0, 0]],
        truncated=[[0, 0], [0, 1], [0, 0], [0, 0]],
    )
    buffer.values = torch.ones(T, N)
    buffer.final_values.view(-1)[3] = 3.0  # step 1 of environment 1
    buffer.compute_returns_and_advantages(torch.tensor([2.0, 2.0]), gamma=0.5, gae_lambda=0.5)
    # By hand, as in test_returns.py.
    assert buffer.advantages.T.tolist() == [[0.75, 1.0, 3.5, 4.0], [1.125, 2.5, 3.5, 4.0]]
    assert buffer.returns.T.tolist() == [[1.75, 2.0, 4.5, 5.0], [2.125, 3.5, 4.5, 5.0]]


def test_a_stale_final_value_of_the_rollout_before_has_no_effect() -> None:
    buffer = _buffer()
    buffer.values = torch.ones(T, N)
    buffer.compute_returns_and_advantages(torch.tensor([2.0, 2.0]), 0.5, 0.5)
    expected = buffer.advantages.clone()
    buffer.final_values.fill_(1e6)
    buffer.compute_returns_and_advantages(torch.tensor([2.0, 2.0]), 0.5, 0.5)
    assert torch.equal(buffer.advantages, expected)


def test_the_tensors_may_be_written_directly() -> None:
    """Flags as numbers and a last value of shape (N, 1), as people write them in scripts."""
    buffer = RolloutBuffer(num_steps=4, num_envs=1, obs_shape=(3,), action_shape=(2,))
    assert buffer.obs.shape == (4, 1, 3) and buffer.actions.shape == (4, 1, 2)
    buffer.rewards[:, 0] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    buffer.values[:] = 1.0
    buffer.dones = torch.tensor([[0.0], [1.0], [0.0], [0.0]])
    buffer.compute_returns_and_advantages(torch.tensor([[2.0]]), 0.5, 0.5)
    assert buffer.advantages.squeeze(1).tolist() == [0.75, 1.0, 3.5, 4.0]


def _number_steps(buffer: RolloutBuffer) -> None:
    """Columns that say which step they belong to."""
    steps = torch.arange(buffer.num_steps * buffer.num_envs, dtype=torch.float32).view(
        buffer.num_steps, buffer.num_envs
    )
    buffer.logprobs, buffer.values, buffer.advantages, buffer.returns = steps, steps + 0.25, steps + 0.5, steps + 0.75


@pytest.mark.parametrize("count, sizes", [(1, [7]), (2, [3, 4]), (3, [2, 2, 3]), (7, [1] * 7), (9, [1] * 7)])
def test_an_epoch_covers_each_valid_step_exactly_once(count: int, sizes: list[int]) -> None:
    buffer = _buffer(valid=[[1, 1], [1, 0], [1, 1], [1, 1]])
    _number_steps(buffer)
    batches = list(buffer.minibatches(count, torch.Generator().manual_seed(0)))
    assert [len(batch.logprobs) for batch in batches] == sizes
    seen = torch.cat([batch.logprobs for batch in batches])
    assert sorted(seen.tolist()) == [0, 1, 2, 4, 5, 6, 7], "all but the invalid step 1·2 + 1"
    for batch in batches:
        step = batch.logprobs
        assert torch.equal(batch.obs, (10 * (step // N) + step % N).unsqueeze(-1)), "rows stay together"
        assert torch.equal(batch.actions, step // N)
        assert torch.equal(batch.values, step + 0.25)
        assert torch.equal(batch.advantages, step + 0.5)
        assert torch.equal(batch.returns, step + 0.75)


def test_each_epoch_has_its_own_order_which_the_generator_decides() -> None:
    buffer = RolloutBuffer(32, N, (1,), ())
    _fill(buffer)
    _number_steps(buffer)

    def epochs(seed: int) -> list[list[float]]:
        generator = torch.Generator().manual_seed(seed)
        return [torch.cat([b.logprobs for b in buffer.minibatches(4, generator)]).tolist() for _ in range(2)]

    first, second = epochs(0)
    assert first != second and sorted(first) == sorted(second) == list(range(64))
    assert first != sorted(first)
    assert epochs(0) == [first, second] and epochs(1) != [first, second]


def test_dict_observations_keep_their_keys_dtypes_and_rows_together() -> None:
    buffer = RolloutBuffer(
        T,
        N,
        {"x": (2,), "mode": ()},
        (1,),
        obs_dtype={"x": torch.float32, "mode": torch.int64},
        action_dtype=torch.int64,
    )
    for t in range(T):
        obs = {"x": torch.full((N, 2), float(t)) + torch.tensor([[0.0], [0.5]]), "mode": torch.tensor([t, t + 10])}
        buffer.add(
            obs=obs,
            actions=torch.full((N, 1), t),
            rewards=torch.ones(N),
            terminated=torch.zeros(N).bool(),
            truncated=torch.tensor([t == 1, t == 2]),
            valid=torch.tensor([True, t != 3]),
            next_obs={key: value + 100 for key, value in obs.items()},
        )
    final = buffer.final_obs()
    assert final is not None and isinstance(final[0], dict)
    assert final[0]["mode"].tolist() == [101, 112] and final[0]["x"][:, 0].tolist() == [101.0, 102.5]
    assert final[1].tolist() == [2, 5]
    valid_obs = buffer.valid_obs()
    assert isinstance(valid_obs, dict) and valid_obs["mode"].tolist() == [0, 10, 1, 11, 2, 12, 3]

    seen = []
    for batch in buffer.minibatches(3, torch.Generator().manual_seed(0)):
        assert isinstance(batch.obs, dict) and batch.obs["mode"].dtype == torch.int64
        t = batch.actions.squeeze(-1)
        second_env = (batch.obs["mode"] >= 10).float()
        assert torch.equal(batch.obs["x"], (t + 0.5 * second_env).unsqueeze(-1).expand(-1, 2))
        seen += batch.obs["mode"].tolist()
    assert sorted(seen) == [0, 1, 2, 3, 10, 11, 12]


def test_one_dtype_may_stand_for_all_keys() -> None:
    buffer = RolloutBuffer(T, N, {"a": (2,), "b": (3, 1)}, (), obs_dtype=torch.uint8)
    assert isinstance(buffer.obs, dict)
    assert {key: (value.shape, value.dtype) for key, value in buffer.obs.items()} == {
        "a": ((T, N, 2), torch.uint8),
        "b": ((T, N, 3, 1), torch.uint8),
    }


def test_a_collected_rollout_comes_back_from_its_state() -> None:
    def make() -> RolloutBuffer:
        return RolloutBuffer(2, 2, {"x": (1,)}, (), action_dtype=torch.int64)

    buffer, other = make(), make()
    for t in range(2):
        buffer.add(
            obs={"x": torch.tensor([[t], [t + 10]])},
            actions=torch.tensor([t, 1]),
            rewards=np.array([1.5, -t]),
            terminated=np.array([False, t == 0]),
            truncated=np.array([t == 1, False]),
            valid=np.array([True, t == 0]),
            next_obs={"x": np.array([[7.0], [8.0]], dtype=np.float32)},
        )
    buffer.last_obs, buffer.logprobs = {"x": torch.tensor([[2.0], [12.0]])}, torch.full((2, 2), -0.5)
    state = through_codec(buffer.state_dict())
    buffer.clear()  # the saved one has memory of its own
    buffer.rewards.zero_()
    other.load_state_dict(state)
    assert other.full and other.has_logprobs
    assert other.rewards.tolist() == [[1.5, 0.0], [1.5, -1.0]] and other.logprobs.tolist() == [[-0.5, -0.5]] * 2
    assert other.actions.tolist() == [[0, 1], [1, 1]] and other.dones.tolist() == [[False, True], [True, False]]
    assert other.of_valid(other.rewards).tolist() == [1.5, 0.0, 1.5], "the staged flags came back too"
    assert other.last_obs["x"].tolist() == [[2.0], [12.0]] and other.obs["x"].flatten().tolist() == [0, 10, 1, 11]
    final_obs, index = other.final_obs()
    assert final_obs["x"].tolist() == [[7.0]] and index.tolist() == [2]
    with pytest.raises(ValueError, match="a rollout holds"):
        RolloutBuffer(3, 2, {"x": (1,)}, (), action_dtype=torch.int64).load_state_dict(state)


def _numbered(num_steps: int = 5, **flags: Any) -> RolloutBuffer:
    """Two environments; step t of environment n is everywhere the number 10 t + n."""
    buffer = RolloutBuffer(num_steps, N, (1,), ())
    flags = {name: rows[:num_steps] for name, rows in flags.items()}
    _fill(buffer, **flags)
    numbers = torch.tensor([[10.0 * t + n for n in range(N)] for t in range(num_steps + 1)])
    buffer.actions = buffer.logprobs = buffer.values = buffer.advantages = buffer.returns = numbers[:-1]
    buffer.states = {"h": numbers.unsqueeze(-1)}
    return buffer


def test_a_policy_starts_anew_after_ends_and_after_steps_that_were_not_its_own() -> None:
    buffer = _buffer(
        terminated=[[0, 0], [1, 0], [0, 0], [1, 1]],
        truncated=[[0, 1], [0, 0], [0, 0], [0, 0]],
        valid=[[1, 1], [1, 0], [1, 1], [1, 1]],
    )
    assert buffer.ended().int().tolist() == [[0, 1], [1, 1], [0, 0], [1, 1]]
    assert buffer.starts().int().tolist() == [[0, 0], [0, 1], [1, 1], [0, 0]], "the first one has its initial state"


def test_sequences_are_whole_in_order_and_filled_up() -> None:
    buffer = _numbered(5, terminated=[[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]], valid=[[1, 1]] * 3 + [[1, 0], [1, 1]])
    (batch,) = buffer.sequences(2, 1, torch.Generator().manual_seed(0))
    columns = {int(column[0]): index for index, column in enumerate(batch.actions.unbind(1))}
    assert sorted(columns) == [0, 1, 20, 21, 40, 41]
    for first, index in columns.items():
        real = first < 40
        assert batch.actions[:, index].tolist() == [first, first + 10 if real else first]
        assert batch.obs.squeeze(-1)[:, index].tolist() == batch.actions[:, index].tolist()
        assert torch.equal(batch.returns, batch.actions) and torch.equal(batch.logprobs, batch.actions)
        assert batch.state["h"][index].tolist() == [first], "what was remembered where the sequence begins"
        assert batch.valid is not None
        assert batch.valid[:, index].tolist() == ([True, first != 21] if real else [True, False])
        # Step 1 of the first ended, and step 3 of the other was not the policy's.
        assert batch.starts[0, index].item() == (first in (20, 41)) and not (real and batch.starts[1, index])


@pytest.mark.parametrize("count, sizes", [(1, [6]), (2, [3, 3]), (4, [1, 2, 1, 2])])
def test_an_epoch_covers_each_sequence_exactly_once(count: int, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(3)
    epochs = []
    for _ in range(2):
        parts = list(_numbered().sequences(2, count, generator))
        assert [part.actions.shape[1] for part in parts] == sizes
        epochs.append(torch.cat([part.actions[0] for part in parts]).tolist())
        assert sorted(epochs[-1]) == [0, 1, 20, 21, 40, 41]
        valid = torch.cat([part.actions[part.valid] for part in parts])
        assert sorted(valid.tolist()) == sorted(_numbered().actions.flatten().tolist())
    assert epochs[0] != epochs[1]


def test_a_whole_rollout_is_one_sequence_of_each_environment() -> None:
    (batch,) = _numbered().sequences(5, 1, torch.Generator().manual_seed(0))
    assert batch.actions.shape == (5, 2) and batch.valid is not None and batch.valid.all()
    assert sorted(batch.state["h"].flatten().tolist()) == [0, 1]
