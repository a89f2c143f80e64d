"""What an optimiser has seen."""

from __future__ import annotations

from torch import Tensor

from rl_training.execution.optimizers import Adam


def first_gradient(optimizer: Adam) -> Tensor:
    """(P,) the gradient, as clipped, of the only step so far: Adam's mean is 1 − β₁ of it."""
    assert optimizer.count.item() == 1
    return optimizer.mean / (1 - optimizer.beta1)


def first_gradient_of(optimizer: Adam, parameter: Tensor) -> Tensor:
    """The same, for one of its parameters."""
    position = next(index for index, own in enumerate(optimizer.parameters) if own is parameter)
    parts = first_gradient(optimizer).split([own.numel() for own in optimizer.parameters])
    return parts[position].view_as(parameter)
