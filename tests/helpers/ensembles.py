"""One member of an ensemble of critics as a network of its own."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from rl_training.policies.critics import CriticEnsemble


def values(parameter: nn.Parameter) -> Tensor:
    return parameter.data


def gradients(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def member_tensors(
    ensemble: CriticEnsemble, member: int, what: Callable[[nn.Parameter], Tensor] = values
) -> list[Tensor]:
    """One member's weights and biases (or gradients) in the shapes and the order of a perceptron of `nn.Linear` layers."""
    tensors = []
    for layer in (*ensemble.hidden, ensemble.output):
        tensors += [what(layer.weight)[member].T, what(layer.bias)[member].squeeze(0)]
    return tensors
