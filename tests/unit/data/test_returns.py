"""GAE and running returns: numbers worked out by hand, and a slow reading of the definition on random data."""

import pytest
import torch
from torch import Tensor

from rl_training.data.returns import LARGE, discounted_running_returns, gae

GAMMA, LAMBDA = 0.5, 0.5
NAN = float("nan")
REWARDS = [1.0, 2.0, 3.0, 4.0]
VALUES = [1.0, 1.0, 1.0, 1.0]
LAST_VALUE = 2.0


def _gae(
    terminated: list[int] | None = None,
    truncated: list[int] | None = None,
    valid: list[int] | None = None,
    final_values: dict[int, float] | None = None,
) -> list[float]:
    """The advantages of one environment with the rewards and values above; γλ = 1/4."""
    next_values = [*VALUES[1:], LAST_VALUE]
    for t, value in (final_values or {}).items():
        next_values[t] = value
    ends = torch.tensor([terminated or [0] * 4, truncated or [0] * 4]).bool()
    advantages = gae(
        torch.tensor(REWARDS).unsqueeze(1),
        torch.tensor(VALUES).unsqueeze(1),
        torch.tensor(next_values).unsqueeze(1),
        ends[0].unsqueeze(1),
        (ends[0] | ends[1]).unsqueeze(1),
        torch.tensor(valid or [1] * 4).bool().unsqueeze(1),
        GAMMA,
        LAMBDA,
    )
    assert advantages.shape == (4, 1)
    return advantages.squeeze(1).tolist()


def test_without_ends_it_reaches_across_the_rollout_to_the_last_value() -> None:
    # δ = 1 + ½ − 1, 2 + ½ − 1, 3 + ½ − 1, 4 + ½·2 − 1 = ½, 1½, 2½, 4, then A_t = δ_t + ¼ A_{t+1}.
    assert _gae() == [1.09375, 2.375, 3.5, 4.0]


def test_termination_has_no_next_value_and_passes_nothing_back() -> None:
    # δ_1 = 2 − 1 = 1, A_1 = 1, A_0 = ½ + ¼.
    assert _gae(terminated=[0, 1, 0, 0]) == [0.75, 1.0, 3.5, 4.0]


def test_truncation_bootstraps_from_the_final_observation_and_passes_nothing_back() -> None:
    # δ_1 = 2 + ½·3 − 1 = 2½ with the final observation worth 3; A_0 = ½ + ¼ · 2½.
    assert _gae(truncated=[0, 1, 0, 0], final_values={1: 3.0}) == [1.125, 2.5, 3.5, 4.0]


def test_ends_in_the_last_step_of_the_rollout() -> None:
    # δ_3 = 4 − 1 = 3, or 4 + ½·4 − 1 = 5 with a final value of 4; the last value belongs to the next episode.
    assert _gae(terminated=[0, 0, 0, 1]) == [1.078125, 2.3125, 3.25, 3.0]
    assert _gae(truncated=[0, 0, 0, 1], final_values={3: 4.0}) == [1.109375, 2.4375, 3.75, 5.0]


def test_the_dummy_step_of_next_step_autoreset_is_zero() -> None:
    # The episode ends in step 1, step 2 is the reset, step 3 begins the next episode.
    assert _gae(terminated=[0, 1, 0, 0], valid=[1, 1, 0, 1]) == [0.75, 1.0, 0.0, 4.0]
    assert _gae(truncated=[0, 1, 0, 0], valid=[1, 1, 0, 1], final_values={1: 3.0}) == [1.125, 2.5, 0.0, 4.0]


def test_an_invalid_step_without_an_end_passes_nothing_back() -> None:
    # A worker died in step 2: A_1 = δ_1 = 1½, A_0 = ½ + ⅜.
    assert _gae(valid=[1, 1, 0, 1]) == [0.875, 1.5, 0.0, 4.0]


def test_lambda_one_gives_discounted_returns_minus_values() -> None:
    zeros = torch.zeros(4, 1, dtype=torch.bool)
    values = torch.tensor([[1.0], [2.0], [0.5], [3.0]])
    next_values = torch.cat([values[1:], torch.tensor([[LAST_VALUE]])])
    rewards = torch.tensor(REWARDS).unsqueeze(1)
    advantages = gae(rewards, values, next_values, zeros, zeros, ~zeros, GAMMA, 1.0)
    # R_3 = 4 + 1 = 5, R_2 = 3 + 2½ = 5½, R_1 = 2 + 2¾ = 4¾, R_0 = 1 + 2⅜ = 3⅜.
    assert (advantages + values).squeeze(1).tolist() == pytest.approx([3.375, 4.75, 5.5, 5.0])


def test_environments_are_independent_and_inputs_stay_as_they_are() -> None:
    rewards = torch.tensor([REWARDS, [0.0, 0.0, 0.0, 8.0]]).T.contiguous()
    values, next_values = torch.zeros(4, 2), torch.zeros(4, 2)
    zeros = torch.zeros(4, 2, dtype=torch.bool)
    before = rewards.clone()
    advantages = gae(rewards, values, next_values, zeros, zeros, ~zeros, GAMMA, LAMBDA)
    assert advantages[:, 1].tolist() == [0.125, 0.5, 2.0, 8.0]
    assert torch.equal(rewards, before)


def test_flags_must_be_bool() -> None:
    floats = torch.zeros(2, 1)
    with pytest.raises(AssertionError, match="flags are bool"):
        gae(floats, floats, floats, floats, floats, floats, GAMMA, LAMBDA)


def _slow_gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    ended: Tensor,
    valid: Tensor,
    gamma: float,
    lam: float,
) -> Tensor:
    """A_t as the sum of (γλ)^k δ_{t+k} up to the end of the episode, of the rollout, or of the valid steps."""
    num_steps, num_envs = rewards.shape
    result = torch.zeros(num_steps, num_envs, dtype=torch.float64)
    for n in range(num_envs):
        for t in range(num_steps):
            k, factor = t, 1.0
            while k < num_steps and valid[k, n]:
                bootstrap = 0.0 if terminated[k, n] else gamma * next_values[k, n].item()
                result[t, n] += factor * (rewards[k, n].item() + bootstrap - values[k, n].item())
                if ended[k, n]:
                    break
                k, factor = k + 1, factor * gamma * lam
    return result


# The large ones are computed in blocks: one shape is whole blocks, the other is not.
@pytest.mark.parametrize(
    ("seed", "shape"), [*((seed, (30, 7)) for seed in range(5)), (5, (1024, 32)), (6, (701, 50)), (7, (1, LARGE))]
)
def test_random_data_against_the_definition(seed: int, shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values, next_values = (torch.randn(shape, generator=generator) for _ in range(3))
    chance = torch.rand((3, *shape), generator=generator)
    terminated, truncated, valid = chance[0] < 0.1, (chance[1] < 0.1) & (chance[0] >= 0.1), chance[2] > 0.1
    ended = terminated | truncated
    arguments = (rewards, values, next_values, terminated, ended, valid, 0.97, 0.9)
    expected = _slow_gae(*arguments)
    torch.testing.assert_close(gae(*arguments).double(), expected, atol=1e-5, rtol=0.0)
    if shape[0] == 1:
        return
    # The comparison can fail: letting episodes flow into each other is far outside the tolerance.
    wrong = gae(rewards, values, next_values, terminated, torch.zeros_like(ended), valid, 0.97, 0.9)
    assert (wrong.double() - expected).abs().max() > 0.1


@pytest.mark.parametrize("envs", [1, LARGE], ids=["small", "in blocks"])
def test_a_terminal_observation_without_a_value_spoils_nothing(envs: int) -> None:
    """Physics that blew up: the value of the terminal observation is NaN, and with it that of the dummy step that shows it."""
    # δ = 1 + ½·4 − 2 = 1, 1 − 4 = −3 (terminated), 0 (the dummy step), 1 + ½·8 − 6 = −1; A = 1 + ¼·(−3), −3, 0, −1.
    rewards = torch.ones(4, envs)
    values = torch.tensor([2.0, 4.0, NAN, 6.0])[:, None].repeat(1, envs)
    next_values = torch.tensor([4.0, NAN, NAN, 8.0])[:, None].repeat(1, envs)
    terminated = torch.tensor([False, True, False, False])[:, None].repeat(1, envs)
    valid = torch.tensor([True, True, False, True])[:, None].repeat(1, envs)
    advantages = gae(rewards, values, next_values, terminated, terminated, valid, 0.5, 0.5)
    assert advantages.T.unique(dim=0).tolist() == [[0.25, -3.0, 0.0, -1.0]]


def test_running_returns_by_hand() -> None:
    # R = ½·4 + 1 = 3, ½·3 + 2 = 3½ (the episode ends), 3, ½·3 + 4 = 5½; without the end ½·3½ + 3 = 4¾ and 6⅜.
    rewards = torch.tensor([REWARDS, REWARDS]).T
    ended = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0]]).bool().T
    returns, start = discounted_running_returns(rewards, ended, torch.ones(4, 2).bool(), torch.full((2,), 4.0), 0.5)
    assert returns.T.tolist() == [[3.0, 3.5, 3.0, 5.5], [3.0, 3.5, 4.75, 6.375]]
    assert start.tolist() == [5.5, 6.375]


def test_running_returns_skip_invalid_steps_and_forget_an_episode_that_ends_the_rollout() -> None:
    rewards = torch.tensor([REWARDS, REWARDS]).T
    valid = torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]).bool().T
    ended = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1]]).bool().T
    returns, start = discounted_running_returns(rewards, ended, valid, torch.zeros(2), 0.5)
    assert returns[:, 0].tolist() == [1.0, 1.0, 3.5, 5.75]
    assert start.tolist() == [5.75, 0.0]
