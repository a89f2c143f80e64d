"""Convolutional encoders. Images stay bytes until here; other entries of a Dict go beside them as `FlattenEncoder` has them.

`auto` takes the network by the size of each image. All weights start orthogonal, times √2, with zero biases.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor
from rl_training.policies.encoders import check_observation_space, leaf_encoder
from rl_training.utils.errors import ConfigError
from rl_training.utils.images import ImageLayout, image_entries

NATURE_SIDE = 36
"""Height and width of the smallest image that the Nature network's layers fit on."""


class ImageEncoder(nn.Module):
    """Each image through a network of its own, everything else flat, side by side in the order of the space's keys."""

    features: int

    def __init__(self, observation_space: spaces.Space, **settings: Any) -> None:
        super().__init__()
        check_observation_space(observation_space)
        images = image_entries(observation_space)
        if not images:
            raise ConfigError(
                f"policy.encoder is for images, and there are none in {observation_space}.\n"
                "An image is a Box of uint8, or of floats between 0 and 1, such as (84, 84, 3). Leave out policy.encoder."
            )
        entries = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        parts = {
            key: _Image(images[key], self.make_layers(images[key], **settings))
            if key in images
            else leaf_encoder(entry)
            for key, entry in entries.items()
        }
        self._keys = tuple(parts)
        self._parts = nn.ModuleList(parts.values())  # keys may be no names of modules
        self.features = sum(part.features for part in parts.values())

    def make_layers(self, image: ImageLayout) -> nn.Sequential:
        """(B, C, H, W) floats in [0, 1] → (B, ...) features, still to be flattened."""
        return (nature_layers if image.side >= NATURE_SIDE else small_layers)(image)

    def forward(self, obs: ObsTensor) -> Tensor:
        """Encode raw observations into (B, features) float32."""
        if isinstance(obs, Tensor):
            return self._parts[0](obs)
        return torch.cat([part(obs[key]) for key, part in zip(self._keys, self._parts)], dim=-1)


class NatureCNN(ImageEncoder):
    """Three convolutions (Mnih et al. 2015, doi 10.1038/nature14236); their fully connected layer is `policy.hidden_sizes`."""

    def make_layers(self, image: ImageLayout) -> nn.Sequential:
        if image.side < NATURE_SIDE:
            raise ConfigError(
                f"policy.encoder: nature_cnn needs images of {NATURE_SIDE} × {NATURE_SIDE} at least, and these have "
                f"{image.height} × {image.width}. Use small_cnn, impala_resnet or auto."
            )
        return nature_layers(image)


class ImpalaResNet(ImageEncoder):
    """Blocks of a convolution, a pooling and two residual units (Espeholt et al. 2018, arXiv 1802.01561, figure 3)."""

    def make_layers(self, image: ImageLayout, widths: tuple[int, ...] = (16, 32, 32)) -> nn.Sequential:
        """`widths` are the channels of the blocks."""
        layers: list[nn.Module] = []
        channels = image.channels
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
            layers += [_Residual(width), _Residual(width)]
            channels = width
        return nn.Sequential(*layers, nn.ReLU())


class SmallCNN(ImageEncoder):
    """Three convolutions for images of a few cells, such as MiniGrid's 7 × 7."""

    def make_layers(self, image: ImageLayout) -> nn.Sequential:
        return small_layers(image)


class DrQCNN(ImageEncoder):
    """Four convolutions that keep most of the resolution (Yarats et al. 2022, arXiv 2107.09645)."""

    def make_layers(self, image: ImageLayout) -> nn.Sequential:
        layers: list[nn.Module] = [_Centred()]
        for stride, channels in zip((2, 1, 1, 1), (image.channels, 32, 32, 32)):
            layers += [nn.Conv2d(channels, 32, 3, stride=stride), nn.ReLU()]
        return nn.Sequential(*layers)


class _Centred(nn.Module):
    """From [0, 1] to [−½, ½]."""

    def forward(self, x: Tensor) -> Tensor:
        return x - 0.5


def nature_layers(image: ImageLayout) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(image.channels, 32, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
    )


def small_layers(image: ImageLayout) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(image.channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
    )


class _Residual(nn.Module):
    """x + conv(ReLU(conv(ReLU(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class _Image(nn.Module):
    """(B, *shape) images as the space has them → (B, features)."""

    def __init__(self, image: ImageLayout, layers: nn.Sequential) -> None:
        super().__init__()
        self._axes = (0, *(axis + 1 for axis in image.axes))
        self._shape, self._scale = (image.channels, image.height, image.width), image.scale
        self.layers = layers
        for layer in layers.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.features = layers(torch.zeros(1, *self._shape)).numel()

    def forward(self, x: Tensor) -> Tensor:
        planes = x.permute(self._axes).reshape(x.shape[0], *self._shape).to(torch.float32)
        if self._scale != 1.0:
            planes = planes * self._scale
        if planes.is_cuda:  # what the GPU's fast convolutions want
            planes = planes.to(memory_format=torch.channels_last)
        return self.layers(planes).flatten(1)
