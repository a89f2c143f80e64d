"""Multilayer perceptrons and their initialisation."""

from collections.abc import Sequence

from torch import nn

from rl_training.utils.errors import ConfigError

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


def activation_class(name: str) -> type[nn.Module]:
    """The activation of that name."""
    if name not in ACTIVATIONS:
        raise ConfigError(f"Unknown activation {name!r}. Choose one of: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def mlp(in_features: int, hidden_sizes: Sequence[int], out_features: int | None, activation: str) -> nn.Sequential:
    """Build (B, in_features) -> (B, out_features), with an activation after each hidden layer only.

    With out_features None the network ends at its last activation, (B, hidden_sizes[-1]); without hidden
    layers that is the input itself.
    """
    activate = activation_class(activation)
    layers: list[nn.Module] = []
    width = in_features
    for size in hidden_sizes:
        layers += [nn.Linear(width, size), activate()]
        width = size
    if out_features is not None:
        layers.append(nn.Linear(width, out_features))
    return nn.Sequential(*layers)


def orthogonal_init_(module: nn.Module, gain: float) -> None:
    """Give linear layers in `module` zero biases and orthogonal weights times `gain` (global generator)."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
