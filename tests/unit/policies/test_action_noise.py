"""Exploration noise: the recursion by hand, episode ends, and its state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from helpers.gpu import needs_gpu
from helpers.tools import through_codec
from rl_training.policies.action_noise import ActionNoise

SHAPE = (2, 3)
NONE = torch.tensor([False, False])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws(count: int, seed: int = 0, envs: int = 2) -> list[Tensor]:
    """The ε of as many steps."""
    generator = seeded(seed)
    return [torch.randn(envs, 3, generator=generator) for _ in range(count)]


def test_the_recursion_by_hand() -> None:
    noise, generator = ActionNoise(0.25), seeded()
    e = draws(3)
    torch.testing.assert_close(noise.sample(SHAPE, 2.0, generator), 2 * e[0])
    torch.testing.assert_close(noise.sample(SHAPE, 2.0, generator), 0.75 * 2 * e[0] + 2 * e[1])
    # The scale may change on the way; what is remembered keeps the size it had.
    expected = 0.75 * (0.75 * 2 * e[0] + 2 * e[1]) + 0.5 * e[2]
    torch.testing.assert_close(noise.sample(SHAPE, 0.5, generator), expected)


def test_white_noise_remembers_nothing() -> None:
    noise, generator = ActionNoise(1.0), seeded()
    for e in draws(3):
        torch.testing.assert_close(noise.sample(SHAPE, 0.1, generator), 0.1 * e)
    assert noise.state_dict() == {"state": None}


def test_a_random_walk_forgets_nothing() -> None:
    noise, generator = ActionNoise(0.0), seeded()
    e = draws(2)
    noise.sample(SHAPE, 1.0, generator)
    torch.testing.assert_close(noise.sample(SHAPE, 1.0, generator), e[0] + e[1])


def test_the_spread_is_that_of_the_stationary_process() -> None:
    noise, generator = ActionNoise(0.15), seeded()
    samples = torch.stack([noise.sample((2000, 1), 0.2, generator) for _ in range(60)])
    assert samples[-1].std().item() == pytest.approx(0.2 / math.sqrt(1 - 0.85**2), rel=0.05)
    correlation = torch.corrcoef(samples[-2:].squeeze(-1))[0, 1].item()
    assert correlation == pytest.approx(0.85, abs=0.03)


def test_a_stationary_one_has_its_spread_from_the_first_step_of_every_episode() -> None:
    noise, generator = ActionNoise(0.03, stationary=True), seeded()
    spread = math.sqrt(1 - 0.97**2)
    for step in range(4):
        sample = noise.sample((4000, 3), spread, generator)
        assert sample.std().item() == pytest.approx(1.0, abs=0.02), step
        assert sample[:2000].std().item() == pytest.approx(1.0, abs=0.03), step
        noise.reset(torch.arange(4000) < 2000)
    again, e = ActionNoise(0.25, stationary=True), draws(2)
    generator = seeded()
    first = again.sample(SHAPE, 2.0, generator)
    torch.testing.assert_close(first, 2 * e[0] / math.sqrt(1 - 0.75**2))
    again.reset(torch.tensor([False, True]))
    second = torch.stack([0.75 * first[0] + 2 * e[1][0], 2 * e[1][1] / math.sqrt(1 - 0.75**2)])
    torch.testing.assert_close(again.sample(SHAPE, 2.0, generator), second)


def test_it_starts_anew_where_an_episode_ended_and_only_there() -> None:
    noise, generator = ActionNoise(0.5), seeded()
    e = draws(3)
    noise.sample(SHAPE, 1.0, generator)
    noise.reset(torch.tensor([False, True]))
    second = noise.sample(SHAPE, 1.0, generator)
    torch.testing.assert_close(second, torch.stack([0.5 * e[0][0] + e[1][0], e[1][1]]))
    noise.reset(NONE)
    torch.testing.assert_close(noise.sample(SHAPE, 1.0, generator), 0.5 * second + e[2])


def test_an_end_before_the_first_sample_changes_nothing() -> None:
    noise = ActionNoise(0.5)
    noise.reset(torch.tensor([True, True]))
    torch.testing.assert_close(noise.sample(SHAPE, 1.0, seeded()), draws(1)[0])


def test_what_the_caller_does_with_a_sample_stays_outside() -> None:
    noise, generator = ActionNoise(0.5), seeded()
    e = draws(2)
    noise.sample(SHAPE, 1.0, generator).fill_(100.0)
    torch.testing.assert_close(noise.sample(SHAPE, 1.0, generator), 0.5 * e[0] + e[1])


def test_the_state_comes_back_exactly() -> None:
    noise, other, generator = ActionNoise(0.15), ActionNoise(0.15), seeded()
    for _ in range(3):
        noise.sample(SHAPE, 0.2, generator)
    other.load_state_dict(through_codec(noise.state_dict()))
    assert torch.equal(noise.sample(SHAPE, 0.2, seeded(1)), other.sample(SHAPE, 0.2, seeded(1)))


def test_a_state_that_was_handed_out_does_not_change() -> None:
    noise, loaded, later = ActionNoise(0.5), ActionNoise(0.5), ActionNoise(0.5)
    first = noise.sample(SHAPE, 1.0, seeded())
    kept = noise.state_dict()
    noise.reset(torch.tensor([True, True]))
    loaded.load_state_dict(kept)
    loaded.reset(torch.tensor([True, True]))
    later.load_state_dict(kept)
    torch.testing.assert_close(later.sample(SHAPE, 0.0, seeded()), 0.5 * first)


def test_the_state_of_a_fresh_one_is_fresh() -> None:
    noise, used = ActionNoise(0.5), ActionNoise(0.5)
    used.sample(SHAPE, 1.0, seeded(5))
    used.load_state_dict(through_codec(noise.state_dict()))
    torch.testing.assert_close(used.sample(SHAPE, 1.0, seeded()), draws(1)[0])


def test_another_number_of_environments_starts_fresh() -> None:
    noise = ActionNoise(0.5)
    noise.sample(SHAPE, 1.0, seeded(5))
    four = (4, 3)
    torch.testing.assert_close(noise.sample(four, 1.0, seeded()), draws(1, envs=4)[0])
    # Also when an end comes before the next sample, as it may while actions are still random.
    noise.reset(torch.tensor([True]))
    torch.testing.assert_close(noise.sample(four, 1.0, seeded()), draws(1, envs=4)[0])


@needs_gpu
def test_a_state_from_a_checkpoint_goes_on_on_the_gpu() -> None:
    noise, other = ActionNoise(0.5), ActionNoise(0.5)
    first = noise.sample(SHAPE, 1.0, seeded())
    other.load_state_dict(through_codec(noise.state_dict()))
    second = other.sample(SHAPE, 0.0, torch.Generator("cuda"))
    torch.testing.assert_close(second.cpu(), 0.5 * first)
