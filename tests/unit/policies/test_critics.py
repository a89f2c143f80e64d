"""Ensembles of critics: the same numbers as separate networks, by hand and member by member."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.ensembles import gradients, member_tensors
from rl_training.policies.critics import CriticEnsemble, EnsembleLayerNorm, EnsembleLinear
from rl_training.policies.networks import activation_class, mlp
from rl_training.utils.errors import ConfigError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ensemble(members: int = 3, inputs: int = 4, hidden: tuple[int, ...] = (6, 5), outputs: int = 2, **more: Any) -> Any:
    """With weights, scales and shifts that all differ."""
    critics = CriticEnsemble(members, inputs, hidden, outputs, **{"activation": "relu", **more})
    with torch.no_grad():
        for index, parameter in enumerate(critics.parameters()):
            parameter.copy_(normal(*parameter.shape, seed=index))
    return critics


def perceptron(critics: Any, member: int, activation: str = "relu") -> nn.Sequential:
    """That member as layers of PyTorch's own, layer normalisation included."""
    layers: list[nn.Module] = []
    for index, layer in enumerate((*critics.hidden, critics.output)):
        linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
        linear.weight.data, linear.bias.data = layer.weight.data[member].T, layer.bias.data[member, 0]
        layers.append(linear)
        if layer is not critics.output:
            if len(critics.norms):
                norm, source = nn.LayerNorm(linear.out_features), critics.norms[index]
                norm.weight.data, norm.bias.data = source.weight.data[member, 0], source.bias.data[member, 0]
                layers.append(norm)
            layers.append(activation_class(activation)())
    return nn.Sequential(*layers)


def test_values_by_hand() -> None:
    critics = CriticEnsemble(2, 2, (2,), 1, activation="relu")
    with torch.no_grad():
        critics.hidden[0].weight.copy_(torch.tensor([[[1.0, -1.0], [2.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]]))
        critics.hidden[0].bias.copy_(torch.tensor([[[0.0, 1.0]], [[-4.0, 0.0]]]))
        critics.output.weight.copy_(torch.tensor([[[1.0], [3.0]], [[2.0], [-1.0]]]))
        critics.output.bias.copy_(torch.tensor([[[10.0]], [[0.5]]]))
    # (1, 2), first: relu(1 + 4), relu(1 - 1) = 5, 0 -> 5 + 10. Second: relu(2 - 4), relu(1 + 2) = 0, 3 -> -3 + 0.5.
    # (-1, 0), first: relu(-1), relu(1 + 1) = 0, 2 -> 6 + 10. Second: relu(-4), relu(-1) -> 0.5.
    assert critics(torch.tensor([[1.0, 2.0], [-1.0, 0.0]])).tolist() == [[[15.0], [16.0]], [[-2.5], [0.5]]]


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(), (7,), (6, 5)])
def test_members_are_separate_perceptrons(hidden: tuple[int, ...], activation: str, layer_norm: bool) -> None:
    critics = ensemble(hidden=hidden, activation=activation, layer_norm=layer_norm)
    x = normal(8, 4, seed=9)
    out = critics(x)
    assert out.shape == (3, 8, 2)
    (out * normal(3, 8, 2, seed=10)).sum().backward()
    for member in range(3):
        alone = perceptron(critics, member, activation)
        torch.testing.assert_close(alone(x), out[member], atol=1e-5, rtol=1e-5)
        (alone(x) * normal(3, 8, 2, seed=10)[member]).sum().backward()
        linears = [layer for layer in alone if isinstance(layer, nn.Linear)]
        expected = [gradients(parameter) for layer in linears for parameter in (layer.weight, layer.bias)]
        for one, other in zip(member_tensors(critics, member, gradients), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_only_the_members_asked_for(layer_norm: bool) -> None:
    critics, x = ensemble(layer_norm=layer_norm), normal(8, 4, seed=9)
    every = critics(x)
    torch.testing.assert_close(critics(x, torch.tensor([2, 0])), every[[2, 0]])
    torch.testing.assert_close(critics(x, slice(0, 1)), every[:1])
    torch.testing.assert_close(critics(x, slice(1, None)), every[1:])
    critics(x, torch.tensor([2, 0])).square().sum().backward()
    for parameter in critics.parameters():
        assert gradients(parameter)[1].abs().max() == 0, "the second was not asked"
        assert all(gradients(parameter)[member].abs().max() > 0 for member in (0, 2))


def test_a_layer_takes_one_input_for_all_or_one_for_each() -> None:
    layer = EnsembleLinear(2, 1, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[2.0]], [[3.0]]]))
        layer.bias.copy_(torch.tensor([[[0.0]], [[1.0]]]))
    assert layer(torch.tensor([[1.0], [5.0]])).tolist() == [[[2.0], [10.0]], [[4.0], [16.0]]]
    assert layer(torch.tensor([[[1.0]], [[5.0]]])).tolist() == [[[2.0]], [[16.0]]]


def test_layer_norm_by_hand() -> None:
    norm = EnsembleLayerNorm(2, 2)
    x = torch.tensor([[[1.0, 3.0]], [[-10.0, 30.0]]])  # deviations from the means, in standard deviations: -1 and 1
    torch.testing.assert_close(norm(x), torch.tensor([[[-1.0, 1.0]], [[-1.0, 1.0]]]), atol=1e-4, rtol=0)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]))
        norm.bias.copy_(torch.tensor([[[0.0, 0.5]], [[0.0, -1.0]]]))
    torch.testing.assert_close(norm(x), torch.tensor([[[-1.0, 2.5]], [[-3.0, 3.0]]]), atol=1e-4, rtol=0)


class TestDropout:
    def activated(self, critics: CriticEnsemble, x: Tensor) -> Tensor:
        """What goes into the activation of the only hidden layer, (N, B, width)."""
        seen: list[Tensor] = []
        with critics.activation.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach().clone())):
            critics(x)
        return seen[0]

    def test_only_in_training_mode(self) -> None:
        critics, x = ensemble(dropout=0.5), normal(8, 4)
        torch.manual_seed(0)
        first, second = critics(x), critics(x)
        assert not torch.equal(first, second)
        critics.train(False)
        without = ensemble(dropout=0.0)
        assert torch.equal(critics(x), critics(x)) and torch.equal(critics(x), without(x))
        assert torch.equal(without.train()(x), without.train(False)(x))

    def test_a_share_of_units_is_dropped_and_the_others_make_up_for_it(self) -> None:
        critics, x = ensemble(hidden=(400,), dropout=0.2), normal(50, 4)
        torch.manual_seed(0)
        dropped, plain = self.activated(critics, x), self.activated(ensemble(hidden=(400,)), x)
        zero = dropped == 0
        assert zero.float().mean().item() == pytest.approx(0.2, abs=0.01)
        torch.testing.assert_close(dropped[~zero], plain[~zero] / 0.8)
        assert (zero[0] != zero[1]).any(), "each member drops its own"

    def test_it_comes_before_layer_normalisation(self) -> None:
        critics = CriticEnsemble(2, 4, (10,), 1, activation="relu", layer_norm=True, dropout=0.5)
        torch.manual_seed(0)
        normalized = self.activated(critics, normal(20, 4))
        torch.testing.assert_close(normalized.mean(dim=-1), torch.zeros(2, 20), atol=1e-5, rtol=0)
        assert normalized.std(dim=-1, correction=0).min() > 0.9


def test_orthogonal_initialisation_of_every_member() -> None:
    torch.manual_seed(0)
    critics = CriticEnsemble(3, 4, (8, 8), 1, activation="relu", orthogonal_init=True)
    for layer, gain in (*((hidden, math.sqrt(2)) for hidden in critics.hidden), (critics.output, 1.0)):
        assert layer.bias.abs().max() == 0
        for weight in layer.weight.detach():  # (in, out)
            small = weight @ weight.T if len(weight) <= weight.shape[1] else weight.T @ weight
            torch.testing.assert_close(small, gain**2 * torch.eye(len(small)), atol=1e-5, rtol=0)
        assert not torch.allclose(layer.weight[0], layer.weight[1])


def test_plain_initialisation_is_that_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    critics, alone = CriticEnsemble(50, 16, (64,), 1, activation="relu"), mlp(16, (64,), 1, "relu")
    for layer, linear in zip((critics.hidden[0], critics.output), (alone[0], alone[-1]), strict=True):
        bound = 1 / math.sqrt(layer.weight.shape[1])
        for ours, theirs in ((layer.weight, linear.weight), (layer.bias, linear.bias)):
            # Uniform within the same bound: both the largest value and the spread of 1/√3 of it.
            assert 0.9 * bound < ours.abs().max() <= bound and theirs.abs().max() <= bound
            assert ours.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
        assert not torch.allclose(layer.weight[0], layer.weight[1])


def test_a_copy_has_weights_of_its_own() -> None:
    critics = ensemble()
    target, x = copy.deepcopy(critics), normal(8, 4)
    before = target(x)
    with torch.no_grad():
        critics.hidden[0].weight += 1
    assert torch.equal(target(x), before) and not torch.equal(critics(x), before)


def test_an_unknown_activation_is_named() -> None:
    with pytest.raises(ConfigError, match="Unknown activation 'rellu'"):
        CriticEnsemble(2, 4, (8,), 1, activation="rellu")
