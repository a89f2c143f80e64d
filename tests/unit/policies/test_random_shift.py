"""Random shifts by hand, in every layout of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.execution.draws import Tape
from rl_training.policies.random_shift import RandomShift


def tape(*moves: tuple[float, float]) -> Tape:
    """Draws that move image b by moves[b] = (rows, columns) for up to one pixel."""
    return Tape([(torch.tensor(moves).T + 1.5) / 3])


def space(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


PICTURE = np.arange(9, dtype=np.uint8).reshape(3, 3)


def test_shifts_by_hand_repeat_the_edge() -> None:
    images = torch.from_numpy(np.stack([PICTURE] * 3))[:, None]
    shift = RandomShift(space(1, 3, 3), 1)
    moved = shift(images, tape((0, 0), (1, 0), (-1, 1)))
    assert isinstance(moved, torch.Tensor)
    assert moved[0, 0].tolist() == PICTURE.tolist()
    assert moved[1, 0].tolist() == [[3, 4, 5], [6, 7, 8], [6, 7, 8]]
    assert moved[2, 0].tolist() == [[1, 2, 2], [1, 2, 2], [4, 5, 5]]


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1)])
def test_all_channels_of_an_image_move_together_in_both_orders(axes: Any) -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (2, 2, 6, 5), dtype=np.uint8))
    first = RandomShift(space(2, 6, 5), 1)(images, tape((1, -1), (0, 1)))
    assert isinstance(first, torch.Tensor)
    turned = images.permute(axes)
    other = RandomShift(space(*turned.shape[1:]), 1)(turned, tape((1, -1), (0, 1)))
    assert torch.equal(other, first.permute(axes))
    expected = torch.stack([images[0, 0].roll((-1, 1), (0, 1)), images[0, 1].roll((-1, 1), (0, 1))])
    assert torch.equal(first[0, :, :5, 1:], expected[:, :5, 1:])


def test_other_entries_of_a_dict_stay() -> None:
    both = spaces.Dict({"image": space(3, 3, 3), "speed": spaces.Box(-1, 1, (2,))})
    obs = {"image": torch.randint(0, 256, (4, 3, 3, 3), dtype=torch.uint8), "speed": torch.rand(4, 2)}
    moved = RandomShift(both, 1)(obs, torch.Generator().manual_seed(0))
    assert isinstance(moved, dict)
    assert moved["speed"] is obs["speed"] and not torch.equal(moved["image"], obs["image"])


def test_all_shifts_are_equally_likely() -> None:
    images = torch.zeros(9_000, 1, 5, 5, dtype=torch.uint8)
    images[:, 0, 2, 2] = 1
    moved = RandomShift(space(1, 5, 5), 1)(images, torch.Generator().manual_seed(0))
    counts = moved.float().sum(dim=(0, 1))[1:4, 1:4]
    assert counts.sum() == 9_000 and (counts - 1_000).abs().max() < 120
