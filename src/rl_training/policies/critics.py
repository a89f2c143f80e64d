"""Ensembles of critics: N networks of one shape, evaluated together as batched matrix products.

Shapes: N members, B inputs, F features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.policies.networks import activation_class, in_float32

Members = Tensor | slice
"""Which members to evaluate: indices (M,) or a slice."""
ALL = slice(None)


class EnsembleLinear(nn.Module):
    """N linear layers side by side: (B, in) for all or (N, B, in) for each → (N, B, out)."""

    def __init__(self, members: int, in_features: int, out_features: int) -> None:
        super().__init__()
        # PyTorch's own initialisation of a linear layer.
        bound = 1.0 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(members, in_features, out_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, out_features).uniform_(-bound, bound))

    def forward(self, x: Tensor, members: Members = ALL) -> Tensor:
        weight, bias = self.weight[members], self.bias[members]
        if weight.shape[-1] == 1 and len(weight) > 1 and weight.device.type == "cpu":
            # Matrix times vector, several times: for a batched product of matrices that takes four times as long.
            return (x * weight.transpose(1, 2)).sum(dim=-1, keepdim=True) + bias
        x = x.expand(len(weight), -1, -1) if x.dim() == 2 else x
        return torch.baddbmm(bias, x, weight)

    @torch.no_grad()
    def orthogonal_init_(self, gain: float) -> None:
        """Orthogonal weights times `gain` for every member, zero biases."""
        for weight in self.weight:
            nn.init.orthogonal_(weight, gain)
        self.bias.zero_()


class EnsembleLayerNorm(nn.Module):
    """Layer normalisation of (N, B, F) over F, with a scale and a shift for each member."""

    def __init__(self, members: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(members, 1, features))
        self.bias = nn.Parameter(torch.zeros(members, 1, features))

    def forward(self, x: Tensor, members: Members = ALL) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight[members] + self.bias[members]


class CriticEnsemble(nn.Module):
    """N perceptrons (B, in) → (N, B, outputs), each layer as linear, dropout, layer normalisation, activation.

    Dropout and layer normalisation are optional; together they are DroQ's critic (Hiraoka et al. 2022, arXiv 2110.02034).
    `make_norm` gives another normalisation of so many features for N members, which goes before every linear layer.
    """

    def __init__(
        self,
        members: int,
        in_features: int,
        hidden_sizes: Sequence[int],
        outputs: int,
        *,
        activation: str,
        orthogonal_init: bool = False,
        layer_norm: bool = False,
        dropout: float = 0.0,
        make_norm: Callable[[int], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.members = members
        widths = [in_features, *hidden_sizes]
        self.hidden = nn.ModuleList(EnsembleLinear(members, a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(EnsembleLayerNorm(members, size) for size in hidden_sizes if layer_norm)
        self.input_norms = nn.ModuleList([] if make_norm is None else [make_norm(width) for width in widths])
        self.dropout = dropout
        self.activation = activation_class(activation)()
        self.output = EnsembleLinear(members, widths[-1], outputs)
        if orthogonal_init:
            for layer in self.hidden:
                layer.orthogonal_init_(math.sqrt(2.0))  # type: ignore[operator]
            self.output.orthogonal_init_(1.0)

    def forward(self, x: Tensor, members: Members = ALL) -> Tensor:
        """(B, in) → (M, B, outputs) of the members asked for."""
        for index, layer in enumerate(self.hidden):
            x = layer(self._normalized(index, x, members), members)
            if self.dropout > 0:
                x = F.dropout(x, self.dropout, self.training)
            if len(self.norms):
                x = self.norms[index](x, members)
            x = self.activation(x)
        return in_float32(self.output, self._normalized(-1, x, members), members)

    def _normalized(self, index: int, x: Tensor, members: Members) -> Tensor:
        return self.input_norms[index](x, members) if len(self.input_norms) else x
