"""Convolutional encoders: sizes, orders of channels, entries of a Dict, who is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.policies.encoders import make_encoder
from rl_training.policies.image_encoders import ImpalaResNet, NatureCNN, SmallCNN
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.q_network import HeadConfig, QNetwork
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError


def encoder(space: Any, choice: Any = "auto") -> Any:
    torch.manual_seed(0)
    return make_encoder(PolicySpec(space, spaces.Discrete(2), PolicyConfig(encoder=choice)))


def image(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


def test_nature_has_3136_features_of_four_frames_and_reads_bytes_as_0_to_1() -> None:
    made = encoder(image(4, 84, 84))
    assert made.features == 3136 and made.trainable  # 64 · 7 · 7
    frames = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    layers = made.network._parts[0].layers
    torch.testing.assert_close(made(frames), layers(frames.float() / 255).flatten(1))


def test_channels_last_and_first_see_the_same() -> None:
    pictures = torch.randint(0, 256, (2, 64, 48, 3), dtype=torch.uint8)
    last, first = encoder(image(64, 48, 3)), encoder(image(3, 64, 48))
    first.load_state_dict(last.state_dict())
    torch.testing.assert_close(last(pictures), first(pictures.permute(0, 3, 1, 2)))


def test_a_stack_of_colours_has_its_channels_side_by_side() -> None:
    stacks = torch.randint(0, 256, (2, 4, 40, 40, 3), dtype=torch.uint8)
    stacked, planes = encoder(image(4, 40, 40, 3)), encoder(image(12, 40, 40))
    planes.load_state_dict(stacked.state_dict())
    torch.testing.assert_close(stacked(stacks), planes(stacks.permute(0, 1, 4, 2, 3).reshape(2, 12, 40, 40)))


@pytest.mark.parametrize(("shape", "features"), [((7, 7, 3), 256), ((36, 36, 1), 64), ((35, 35, 1), 64 * 9 * 9)])
def test_auto_chooses_by_size(shape: Any, features: int) -> None:
    assert encoder(image(*shape)).features == features


def test_dict_entries_each_in_their_way() -> None:
    space = spaces.Dict(
        {"a": image(84, 84, 3), "b": image(7, 7, 3), "c": spaces.Box(-1, 1, (5,)), "d": spaces.Discrete(3)}
    )
    made = encoder(space)
    assert made.features == 3136 + 256 + 5 + 3
    obs = {
        "a": torch.zeros(2, 84, 84, 3, dtype=torch.uint8),
        "b": torch.zeros(2, 7, 7, 3, dtype=torch.uint8),
        "c": torch.tensor([[1.0, 2, 3, 4, 5]] * 2),
        "d": torch.tensor([0, 2]),
    }
    out = made(obs)
    assert out[:, -8:].tolist() == [[1, 2, 3, 4, 5, 1, 0, 0], [1, 2, 3, 4, 5, 0, 0, 1]]


def test_named_encoders_and_their_settings() -> None:
    assert isinstance(encoder(image(84, 84, 3), "nature_cnn").network, NatureCNN)
    assert isinstance(encoder(image(84, 84, 3), "small_cnn").network, SmallCNN)
    resnet = encoder(image(64, 64, 3), "impala_resnet")
    assert isinstance(resnet.network, ImpalaResNet) and resnet.features == 32 * 8 * 8
    assert encoder(image(64, 64, 3), {"name": "impala_resnet", "widths": [8, 16]}).features == 16 * 16 * 16


def test_no_image_and_too_small_an_image_are_said() -> None:
    with pytest.raises(ConfigError, match="there are none in"):
        encoder(spaces.Box(-1, 1, (3,)), "nature_cnn")
    with pytest.raises(ConfigError, match="36 × 36 at least, and these have 7 × 7"):
        encoder(image(7, 7, 3), "nature_cnn")


def test_without_images_auto_is_flatten() -> None:
    assert not encoder(spaces.Box(-1, 1, (3,))).trainable


def test_behind_convolutions_the_hidden_layer_belongs_to_the_head() -> None:
    config = PolicyConfig(hidden_sizes=(512,), activation="relu")
    spec = PolicySpec(image(4, 84, 84), spaces.Discrete(6), config)
    network = QNetwork(spec, HeadConfig(dueling=True))
    assert network.head.value is not None and network.head.value.hidden is not None
    assert len(network.body) == 0
    weights = sum(weight.numel() for weight in QNetwork(spec).parameters())
    assert weights == 1_687_206  # the Nature network with six actions
