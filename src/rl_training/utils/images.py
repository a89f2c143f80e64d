"""What counts as an image among observation spaces, and where its channels are. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

SMALLEST_SIDE = 3
"""Height and width of the smallest image."""
SMALLEST_PLANE = 16
"""Height and width of the smallest image without channels: smaller planes of bytes are as likely tables."""


@dataclass(frozen=True)
class ImageLayout:
    """How an observation's axes make an image of `channels` planes."""

    channels: int
    height: int
    width: int
    axes: tuple[int, ...]
    """The observation's axes in the order (channels..., height, width)."""
    scale: float
    """What numbers are multiplied by to lie between 0 and 1."""

    @property
    def side(self) -> int:
        return min(self.height, self.width)


def image_layout(space: spaces.Space[Any]) -> ImageLayout | None:
    """The layout of a space of images; None for any other.

    Images are Boxes of bytes, or of floats between 0 and 1: (H, W), (H, W, C), (C, H, W), or stacks of those,
    (K, H, W, C) and (K, C, H, W), whose planes all become channels. There are fewer channels than rows and columns: that tells
    which axis they are.
    """
    if not isinstance(space, spaces.Box) or not 2 <= len(space.shape) <= 4:
        return None
    is_bytes = space.dtype == np.uint8
    unit = (
        not is_bytes
        and np.issubdtype(space.dtype, np.floating)
        and bool((space.low >= 0).all() and (space.high <= 1).all())
    )
    if not (is_bytes or unit):
        return None
    shape, last = space.shape, len(space.shape) - 1
    if last == 1:
        channel_axes: tuple[int, ...] = ()
    else:
        first = last - 2  # 0, or 1 behind the axis of a stack
        channel = first if shape[first] < shape[last] else last
        channel_axes = (0, channel) if first else (channel,)
    rows, columns = (axis for axis in range(len(shape)) if axis not in channel_axes)
    smallest = SMALLEST_SIDE if channel_axes else SMALLEST_PLANE
    if min(shape[rows], shape[columns]) < smallest:
        return None
    channels = int(np.prod([shape[axis] for axis in channel_axes]))
    return ImageLayout(
        channels, shape[rows], shape[columns], (*channel_axes, rows, columns), 1 / 255 if is_bytes else 1.0
    )


def image_entries(space: spaces.Space[Any]) -> Mapping[str, ImageLayout]:
    """The images among the entries of a Dict, by key; an image itself under the key ''."""
    entries = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    layouts = {key: image_layout(entry) for key, entry in entries.items()}
    return {key: layout for key, layout in layouts.items() if layout is not None}


def flattened_planes(space: spaces.Space[Any]) -> list[str]:
    """The entries of several dimensions that are no images to us, so that their shape is lost to the network; '' for a space
    that is no Dict."""
    entries = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    return [
        key
        for key, entry in entries.items()
        if isinstance(entry, spaces.Box) and len(entry.shape) >= 3 and image_layout(entry) is None
    ]


def in_channel_order(array: np.ndarray[Any, Any], space: spaces.Space[Any]) -> np.ndarray[Any, Any]:
    """An image, or a batch of them, in the order of the space, if it has its channels at the other end; otherwise as it is."""
    shape = space.shape
    if image_layout(space) is None or shape is None or len(shape) != 3 or array.shape[-3:] == shape:
        return array
    for source, target in ((-1, -3), (-3, -1)):
        turned = np.moveaxis(array, source, target) if array.ndim in (3, 4) else array
        if turned.shape[-3:] == shape:
            return turned
    return array
