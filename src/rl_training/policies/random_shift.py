"""Random shifts of images, which keep critics from learning pixels by heart (Kostrikov et al. 2021, arXiv 2004.13649)."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource, uniform
from rl_training.utils.images import ImageLayout, image_entries


class RandomShift:
    """Moves each image by up to `pixels` in both directions; what comes in from outside repeats the edge."""

    def __init__(self, observation_space: spaces.Space, pixels: int) -> None:
        self.pixels, self.images = pixels, dict(image_entries(observation_space))

    def __call__(self, obs: ObsTensor, random: RandomSource) -> ObsTensor:
        """Shifted observations (B, ...), images only."""
        if isinstance(obs, Tensor):
            return shifted(obs, self.images[""], self.pixels, random)
        images = {key: shifted(obs[key], image, self.pixels, random) for key, image in self.images.items()}
        return {**obs, **images}


def shifted(images: Tensor, layout: ImageLayout, pixels: int, random: RandomSource) -> Tensor:
    """Images (B, ...) of this layout, each moved by whole pixels drawn from −pixels … pixels, rows and columns apart."""
    count, device = len(images), images.device
    # In float32 u · n may round up to n itself.
    drawn = uniform((2, count), random, device) * (2 * pixels + 1)
    moves = drawn.long().clamp_(max=2 * pixels) - pixels
    rows_BH = (torch.arange(layout.height, device=device) + moves[0, :, None]).clamp(0, layout.height - 1)
    columns_BW = (torch.arange(layout.width, device=device) + moves[1, :, None]).clamp(0, layout.width - 1)
    order = (0, *(axis + 1 for axis in (*layout.axes[-2:], *layout.axes[:-2])))
    planes = images.permute(order)  # (B, H, W, channels...)
    batch = torch.arange(count, device=device)[:, None, None]
    moved = planes[batch, rows_BH[:, :, None], columns_BW[:, None, :]]
    back = sorted(range(len(order)), key=lambda place: order[place])
    return moved.permute(back)
