"""Settings of the policy network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from rl_training.utils.coerce import check_fields
from rl_training.utils.fields import Range

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]
"""What hidden layers are computed in during updates."""


@dataclass
class PolicyConfig:
    """The network that turns observations into actions and values."""

    hidden_sizes: Annotated[tuple[int, ...], Range(ge=1)] = (64, 64)
    """Width of each hidden layer; an empty list makes a linear policy."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = "tanh"
    """Activation function between the layers."""
    shared: bool = False
    """Let actor and critic share one body instead of having one each."""
    orthogonal_init: bool = True
    """Start from orthogonal weights and zero biases; otherwise PyTorch's own initialisation."""
    log_std_init: Annotated[float, Range(ge=-20, le=2)] = 0.0
    """First value of the logarithm of the standard deviation of Box actions."""
    squash: bool = False
    """Pass Box actions through tanh (squashed Gaussian), so that they stay inside their bounds."""

    def __post_init__(self) -> None:
        check_fields(self)
