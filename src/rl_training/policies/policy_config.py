"""Settings of the policy network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from rl_training.policies.encoder_registry import register_encoder
from rl_training.utils.coerce import FieldError, check_fields
from rl_training.utils.fields import Needs, Range

Precision: TypeAlias = Literal["float32", "tf32", "bf16"]
"""What hidden layers are computed in during updates."""


@dataclass
class PolicyConfig:
    """The network that turns observations into actions and values."""

    hidden_sizes: Annotated[tuple[int, ...], Range(ge=1)] = (64, 64)
    """Width of each hidden layer; an empty list makes a linear policy."""
    actor_hidden_sizes: Annotated[tuple[int, ...], Range(ge=1)] | None = None
    """Those of the actor alone; null for `hidden_sizes`."""
    critic_hidden_sizes: Annotated[tuple[int, ...], Range(ge=1)] | None = None
    """Those of the critic or critics alone; null for `hidden_sizes`."""
    encoder: str | dict[str, Any] = "auto"
    """What turns observations into the numbers that the networks read: a name, or `{name: ..., ...}` with its own settings.
    `auto` takes `image` where there are images, which chooses `nature_cnn` or `small_cnn` by the size of each, and otherwise
    `flatten`, which puts all numbers side by side. `impala_resnet` is larger. In Python also a module class."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = "tanh"
    """Activation function between the layers."""
    shared: bool = False
    """Let actor and critic share one body instead of having one each."""
    orthogonal_init: bool = True
    """Start from orthogonal weights and zero biases; otherwise PyTorch's own initialisation."""
    log_std_init: Annotated[float, Range(ge=-20, le=2), Needs("the action space", "Box")] = 0.0
    """First value of the logarithm of the standard deviation of Box actions."""
    squash: Annotated[bool, Needs("the action space", "Box")] = False
    """Pass Box actions through tanh (squashed Gaussian), so that they stay inside their bounds."""

    def __post_init__(self) -> None:
        self.encoder = encoder_by_name(self.encoder)
        check_fields(self)
        if isinstance(self.encoder, dict) and not isinstance(self.encoder.get("name"), str):
            raise FieldError("encoder", f"needs a name, as in {{name: flatten}}, got {self.encoder!r}")
        if self.shared and (self.actor_hidden_sizes is not None or self.critic_hidden_sizes is not None):
            raise FieldError(
                "shared", "actor and critic share one body, so neither can have sizes of its own: leave one out"
            )

    @property
    def actor_sizes(self) -> tuple[int, ...]:
        return self.hidden_sizes if self.actor_hidden_sizes is None else self.actor_hidden_sizes

    @property
    def critic_sizes(self) -> tuple[int, ...]:
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes

    @property
    def encoder_choice(self) -> tuple[str, dict[str, Any]]:
        """(name, settings) of the encoder."""
        if isinstance(self.encoder, str):
            return self.encoder, {}
        return self.encoder["name"], {key: value for key, value in self.encoder.items() if key != "name"}


def encoder_by_name(given: Any) -> Any:
    """What stands for an encoder in a config: a class is registered under its name, everything else stays as it is."""
    if isinstance(given, type):
        register_encoder(given.__name__, given)
        return given.__name__
    return given
