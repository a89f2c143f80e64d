"""Multilayer perceptrons and their initialisation."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rl_training.utils.errors import ConfigError

ResultT = TypeVar("ResultT")

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    # In place: it follows a layer whose gradient does not need its output.
    "relu": partial(nn.ReLU, inplace=True),
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def activation_class(name: str) -> Callable[[], nn.Module]:
    """A maker of the activation of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"Unknown activation {name!r}. Choose one of: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def in_float32(layer: Callable[..., ResultT], x: Tensor, *args: Any) -> ResultT:
    """`layer(x, *args)` for a last layer, or one with a memory, also behind layers that were computed in bfloat16: values,
    log-probabilities and what is remembered need more than three digits."""
    if not torch.is_autocast_enabled(x.device.type):
        return layer(x, *args)
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float(), *args)


class OutputLinear(nn.Linear):
    """The last layer of a network, always computed in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return in_float32(super().forward, x)


def mlp(
    in_features: int,
    hidden_sizes: Sequence[int],
    out_features: int | None,
    activation: str,
    make_norm: Callable[[int], nn.Module] | None = None,
) -> nn.Sequential:
    """Build (B, in_features) -> (B, out_features), with an activation after each hidden layer only.

    With out_features None the network ends at its last activation, (B, hidden_sizes[-1]); without hidden
    layers that is the input itself. `make_norm` gives a normalisation of so many features, which goes before every linear
    layer and at the end.
    """
    activate = activation_class(activation)

    def norm(size: int) -> list[nn.Module]:
        return [] if make_norm is None else [make_norm(size)]

    layers = norm(in_features)
    width = in_features
    for size in hidden_sizes:
        layers += [nn.Linear(width, size), activate(), *norm(size)]
        width = size
    if out_features is not None:
        layers.append(OutputLinear(width, out_features))
    return nn.Sequential(*layers)


def orthogonal_init_(module: nn.Module, gain: float) -> None:
    """Give linear layers in `module` zero biases and orthogonal weights times `gain` (global generator)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
