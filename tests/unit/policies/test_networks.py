"""Multilayer perceptrons and orthogonal initialisation."""

import math

import pytest
import torch
from torch import Tensor, nn

from rl_training.policies.networks import mlp, orthogonal_init_
from rl_training.utils.errors import ConfigError


def fill(network: nn.Module, weight: float, bias: float) -> None:
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.constant_(layer.weight, weight)
            nn.init.constant_(layer.bias, bias)


def test_layers_and_activations_by_hand() -> None:
    network = mlp(2, (3,), 1, "relu")
    fill(network, weight=1.0, bias=-1.0)
    # Hidden: relu(x1 + x2 - 1), three times; output: their sum - 1, which no activation cuts off.
    out = network(torch.tensor([[2.0, 1.0], [-5.0, 0.0]]))
    assert out.tolist() == [[5.0], [-1.0]]


def test_without_output_the_network_ends_in_the_activation() -> None:
    network = mlp(1, (2, 4), None, "relu")
    fill(network, weight=1.0, bias=0.0)
    assert network(torch.tensor([[3.0], [-3.0]])).tolist() == [[6.0] * 4, [0.0] * 4]


def test_without_hidden_layers() -> None:
    x = torch.tensor([[1.0, 2.0]])
    assert torch.equal(mlp(2, (), None, "tanh")(x), x)
    linear = mlp(2, (), 1, "tanh")
    fill(linear, weight=2.0, bias=1.0)
    assert linear(x).tolist() == [[7.0]]


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("tanh", torch.tanh),
        ("relu", torch.relu),
        ("elu", nn.functional.elu),
        ("silu", nn.functional.silu),
        ("gelu", nn.functional.gelu),
    ],
)
def test_activation_names(name: str, function) -> None:  # type: ignore[no-untyped-def]
    network = mlp(1, (1,), None, name)
    fill(network, weight=1.0, bias=0.0)
    x = torch.linspace(-2, 2, 9).unsqueeze(-1)
    torch.testing.assert_close(network(x), function(x))


def test_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'swish'.*tanh, relu, elu, silu, gelu"):
        mlp(1, (1,), None, "swish")


def gram(weight: Tensor) -> Tensor:
    """The product of the weight with itself along its shorter side."""
    return weight @ weight.T if weight.shape[0] <= weight.shape[1] else weight.T @ weight


def test_orthogonal_init_reaches_every_linear_layer() -> None:
    network = mlp(5, (8, 3), 2, "tanh")
    orthogonal_init_(network, math.sqrt(2.0))
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    assert len(layers) == 3
    for layer in layers:
        product = gram(layer.weight.detach())
        torch.testing.assert_close(product, 2.0 * torch.eye(len(product)), atol=1e-5, rtol=0)
        assert layer.bias.count_nonzero() == 0
