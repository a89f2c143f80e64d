"""What counts as an image, and where its channels are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rl_training.utils.images import flattened_planes, image_entries, image_layout, in_channel_order


def box(*shape: int, dtype: Any = np.uint8, high: float = 255) -> spaces.Box:
    return spaces.Box(0, high, shape, dtype)


@pytest.mark.parametrize(
    ("shape", "channels", "size", "axes"),
    [
        ((84, 84, 3), 3, (84, 84), (2, 0, 1)),
        ((3, 84, 84), 3, (84, 84), (0, 1, 2)),
        ((4, 84, 84), 4, (84, 84), (0, 1, 2)),
        ((7, 7, 3), 3, (7, 7), (2, 0, 1)),
        ((210, 160), 1, (210, 160), (0, 1)),
        ((96, 64, 1), 1, (96, 64), (2, 0, 1)),
        ((4, 84, 84, 3), 12, (84, 84), (0, 3, 1, 2)),
        ((4, 3, 84, 84), 12, (84, 84), (0, 1, 2, 3)),
        ((3, 64, 3), 3, (3, 64), (2, 0, 1)),
    ],
)
def test_layouts(shape: Any, channels: int, size: Any, axes: Any) -> None:
    layout = image_layout(box(*shape))
    assert layout is not None
    assert (layout.channels, (layout.height, layout.width), layout.axes) == (channels, size, axes)
    assert layout.scale == 1 / 255


def test_floats_are_images_if_they_lie_between_0_and_1() -> None:
    layout = image_layout(box(64, 64, 3, dtype=np.float32, high=1))
    assert layout is not None and layout.scale == 1.0
    assert image_layout(box(64, 64, 3, dtype=np.float32, high=2)) is None


@pytest.mark.parametrize(
    "space", [box(128), box(10, 3), box(2, 2, 5), spaces.Discrete(3), spaces.MultiBinary((8, 8, 3))]
)
def test_what_is_no_image(space: Any) -> None:
    assert image_layout(space) is None


def test_entries_of_a_dict_and_what_would_be_flattened() -> None:
    space = spaces.Dict({"camera": box(64, 64, 3), "map": box(9, 9, 2, dtype=np.float32, high=50), "speed": box(2)})
    assert list(image_entries(space)) == ["camera"]
    assert flattened_planes(space) == ["map"]
    assert flattened_planes(box(64, 64, 3)) == [] and flattened_planes(box(9, 9, 2, dtype=np.float32, high=5)) == [""]


@pytest.mark.parametrize("batch", [(), (5,)])
def test_both_channel_orders(batch: tuple[int, ...]) -> None:
    last, first = box(8, 6, 3), box(3, 8, 6)
    images = np.random.default_rng(0).integers(0, 255, (*batch, 8, 6, 3), dtype=np.uint8)
    turned = np.moveaxis(images, -1, -3)
    assert np.array_equal(in_channel_order(turned, last), images)
    assert np.array_equal(in_channel_order(images, first), turned)
    assert in_channel_order(images, last) is images
    assert in_channel_order(images[..., :2], last).shape == (*batch, 8, 6, 2), "left for the caller to refuse"
