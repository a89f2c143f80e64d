"""Observation encoders by name. Free of torch, so that a config can be checked without it."""

from __future__ import annotations

from typing import Any

from rl_training.utils.errors import ConfigError
from rl_training.utils.registry import Registry


def _accept(name: str, thing: Any) -> type:
    if not isinstance(thing, type):
        raise ConfigError(f"encoder {name!r} must be a class, not {thing!r}")
    return thing


ENCODERS: Registry[type] = Registry("encoder", _accept)


def register_encoder(name: str, encoder: type | str) -> None:
    """Makes an encoder known under a name: its class, or "module:Class", which is imported when it is needed."""
    ENCODERS.register(name, encoder)


register_encoder("flatten", "rl_training.policies.encoders:FlattenEncoder")
register_encoder("image", "rl_training.policies.image_encoders:ImageEncoder")
register_encoder("nature_cnn", "rl_training.policies.image_encoders:NatureCNN")
register_encoder("impala_resnet", "rl_training.policies.image_encoders:ImpalaResNet")
register_encoder("drq_cnn", "rl_training.policies.image_encoders:DrQCNN")
register_encoder("small_cnn", "rl_training.policies.image_encoders:SmallCNN")
