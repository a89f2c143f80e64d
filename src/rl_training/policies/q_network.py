"""The policy of the DQN family: action values, as numbers or as distributions of returns, and greedy actions from them.

Shapes: B observations, A actions, N atoms, quantiles or quantile fractions (τ).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor, count_of
from rl_training.execution.draws import RandomSource, uniform
from rl_training.policies.distributions import valid_only
from rl_training.policies.encoders import make_encoder
from rl_training.policies.networks import ACTIVATIONS, in_float32, mlp, orthogonal_init_
from rl_training.policies.noisy import NoisyLinear
from rl_training.policies.policy import Policy
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import SpaceError

ReturnDistribution: TypeAlias = Literal["none", "categorical", "quantile", "implicit"]

COSINES = 64
"""Length of the embedding of τ, n in eq. 4 of the IQN paper."""

ACTING_TAUS = 32
"""τs that an implicit quantile network averages over to choose an action, K in the IQN paper."""


@dataclass(frozen=True)
class HeadConfig:
    """What a QNetwork puts out for each action."""

    distribution: ReturnDistribution = "none"
    """A number, log-probabilities of fixed returns, fixed quantiles of the return, or quantiles at any τ."""
    dueling: bool = False
    """Separate streams for state value and advantages (Wang et al. 2016, arXiv 1511.06581)."""
    noisy_sigma: float | None = None
    """Initial scale σ₀ of the noise in the head's layers; None for layers without noise."""
    num_atoms: int = 51
    """Returns that a categorical head spreads its probability over."""
    v_min: float = -10.0
    """Smallest of them."""
    v_max: float = 10.0
    """Largest of them."""
    num_quantiles: int = 200
    """Quantiles of a quantile head."""

    @property
    def outputs(self) -> int:
        """Numbers per action."""
        return {"categorical": self.num_atoms, "quantile": self.num_quantiles}.get(self.distribution, 1)


def midpoints(count: int) -> Tensor:
    """The fractions τ̂_i = (2i + 1) / 2N for i = 0 … N − 1, (N,) (arXiv 1710.10044, lemma 2)."""
    return (2.0 * torch.arange(count, dtype=torch.float32) + 1.0) / (2.0 * count)


class QNetwork(Policy):
    """Observation → encoder → body → head, for discrete actions counted from 0.

    With two hidden layers or more, or one behind an encoder with weights, the last one belongs to the head: dueling gives each
    stream its own, noise is in it too, and implicit quantiles are mixed in before it, as in the papers.
    """

    support: Tensor
    """Returns z_0 … z_{N−1} of a categorical head, (N,)."""
    taus: Tensor
    """Fractions τ̂ of a quantile head, or those an implicit one acts with when it must not draw them, (N,)."""

    def __init__(self, spec: PolicySpec, head: HeadConfig | None = None) -> None:
        super().__init__()
        action_space, config = spec.action_space, spec.config
        if not isinstance(action_space, spaces.Discrete):
            raise SpaceError(
                f"A Q-network needs a Discrete action space, got {action_space}.\n"
                "Use an algorithm for continuous actions, or discretise them with a wrapper."
            )
        head = head or HeadConfig()
        self.distribution = head.distribution
        self.num_actions = int(action_space.n)
        self.encoder = make_encoder(spec)
        hidden = config.hidden_sizes
        # Behind convolutions even a single hidden layer belongs to the head: Nature's fully connected one.
        head_hidden = hidden[-1] if len(hidden) > (0 if self.encoder.trainable else 1) else None
        body = hidden if head_hidden is None else hidden[:-1]
        self.body = mlp(self.encoder.features, body, None, config.activation)
        width = body[-1] if body else self.encoder.features
        self.embedding = _TauEmbedding(width) if head.distribution == "implicit" else None
        self.head = _Head(width, head_hidden, self.num_actions, config.activation, head)
        if config.orthogonal_init:
            for part in (self.body, self.embedding, self.head):
                if part is not None:
                    orthogonal_init_(part, math.sqrt(2.0))
            self.head.initialize_outputs_(1.0)

        support = torch.linspace(head.v_min, head.v_max, head.num_atoms)
        taus = midpoints(head.num_quantiles if head.distribution == "quantile" else ACTING_TAUS)
        self.register_buffer("support", support, persistent=False)
        self.register_buffer("taus", taus, persistent=False)
        # Listed once: walking the module tree for every draw would cost more than the draw.
        self._noisy_layers = tuple(layer for layer in self.head.modules() if isinstance(layer, NoisyLinear))

    def forward(self, obs: ObsTensor, taus: Tensor | None = None, *, noisy: bool = True) -> Tensor:
        """Return what the head gives for raw observations.

        Values (B, A); categorical: log-probabilities of the support (B, A, N); quantile: the returns at `self.taus`
        (B, A, N); implicit: the returns at the fractions `taus` (B, N), which no other head takes, (B, A, N).
        Noisy layers use their noise with `noisy` in training mode, and their mean weights otherwise.
        """
        features = self.body(self.encoder(obs))
        if (taus is None) != (self.embedding is None):
            raise ValueError("taus are for implicit quantile heads, and needed there")
        if self.embedding is not None:
            assert taus is not None and taus.dim() == 2, "taus (B, N)"
            mixed = features.unsqueeze(1) * self.embedding(taus)
            return self.head(mixed, noisy).squeeze(-1).transpose(1, 2)
        outputs = self.head(features, noisy)
        if self.distribution == "none":
            return outputs.squeeze(-1)
        return F.log_softmax(outputs, dim=-1) if self.distribution == "categorical" else outputs

    def expectation(self, outputs: Tensor) -> Tensor:
        """Return the action values (B, A) that outputs of `forward` stand for; also (B,) of outputs (B, N) of one action."""
        if self.distribution == "none":
            return outputs
        if self.distribution == "categorical":
            return (outputs.exp() * self.support).sum(dim=-1)
        return outputs.mean(dim=-1)

    def valid_values(self, q: Tensor, obs: ObsTensor) -> Tensor:
        """The values (B, A) of valid actions, and INVALID for those that the observations' mask rules out."""
        return valid_only(q, self.encoder.action_mask(obs))

    def q_values(self, obs: ObsTensor, taus: Tensor | None = None, *, noisy: bool = True) -> Tensor:
        """Return action values (B, A); an implicit head averages over `taus` (B, K), evenly spread ones if not given."""
        if self.distribution == "implicit" and taus is None:
            taus = self.taus.expand(count_of(obs), -1)
        return self.expectation(self(obs, taus, noisy=noisy))

    def sample_taus(self, batch: int, count: int, generator: RandomSource = None) -> Tensor | None:
        """Draw fractions (batch, count), uniform in [0, 1), for an implicit head; None for any other."""
        if self.distribution != "implicit":
            return None
        return uniform((batch, count), generator, self.taus.device)

    def sample_noise(self, generator: RandomSource = None) -> None:
        """Draw new noise for the noisy layers; nothing is drawn without them."""
        for layer in self._noisy_layers:
            layer.sample_noise(generator)

    def choose(self, obs: ObsTensor, generator: RandomSource, deterministic: bool) -> Tensor:
        """Return the best actions (B,) int64.

        Unless deterministic, noisy layers in training mode get new noise and an implicit head draws its τs.
        """
        if deterministic:
            q = self.q_values(obs, noisy=False)
        else:
            if self.training:
                self.sample_noise(generator)
            q = self.q_values(obs, self.sample_taus(count_of(obs), ACTING_TAUS, generator))
        return self.valid_values(q, obs).argmax(dim=-1)

    @torch.no_grad()
    def explore(self, obs: ObsTensor, epsilon: float | Tensor, generator: RandomSource = None) -> Tensor:
        """Return the best actions (B,) int64, or with probability `epsilon` (number or tensor ()) any valid one, uniformly."""
        actions = self.choose(obs, generator, deterministic=False)
        exploring, choice = uniform((2, len(actions)), generator, actions.device)
        mask = self.encoder.action_mask(obs)
        if mask is None:
            # In float32, u · A may round up to A itself.
            anything = (choice * self.num_actions).long().clamp_(max=self.num_actions - 1)
        else:
            anything = pick_valid(mask, choice)
        return torch.where(exploring < epsilon, anything, actions)


def pick_valid(mask: Tensor, uniform: Tensor) -> Tensor:
    """A valid choice (B,) int64 for each row of the mask (B, A) bool, all with the same chance, from numbers (B,) in [0, 1).

    The j-th valid one stands behind all places up to which there are at most j.
    """
    counted = mask.long().cumsum(dim=-1)
    count = counted[:, -1]
    wanted = torch.minimum((uniform * count).long(), count - 1)
    return (counted <= wanted.unsqueeze(-1)).long().sum(dim=-1)


class _TauEmbedding(nn.Module):
    """φ(τ) = ReLU(Σ_i cos(π i τ) w_i + b), i = 0 … 63 (Dabney et al. 2018, arXiv 1806.06923, eq. 4)."""

    multiples: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(COSINES, features)
        self.register_buffer("multiples", math.pi * torch.arange(COSINES, dtype=torch.float32), persistent=False)

    def forward(self, taus: Tensor) -> Tensor:
        """(B, N) → (B, N, features)."""
        return F.relu(self.linear(torch.cos(taus.unsqueeze(-1) * self.multiples)))


class _Stream(nn.Module):
    """Features (..., width) → (..., outputs), with or without a hidden layer."""

    def __init__(self, width: int, hidden: int | None, outputs: int, activation: str, sigma: float | None) -> None:
        super().__init__()
        self.hidden = None if hidden is None else _linear(width, hidden, sigma)
        self.activation = ACTIVATIONS[activation]()
        self.output = _linear(width if hidden is None else hidden, outputs, sigma)

    def forward(self, features: Tensor, noisy: bool) -> Tensor:
        if self.hidden is not None:
            features = self.activation(_apply(self.hidden, features, noisy))
        return in_float32(partial(_apply, self.output), features, noisy)


class _Head(nn.Module):
    """Features (..., width) → (..., A, n): per action n numbers; dueling as V + A − mean over actions of A, for each of the n."""

    def __init__(self, width: int, hidden: int | None, num_actions: int, activation: str, config: HeadConfig) -> None:
        super().__init__()
        self.num_actions, self.outputs = num_actions, config.outputs
        sigma = config.noisy_sigma
        self.advantage = _Stream(width, hidden, num_actions * self.outputs, activation, sigma)
        self.value = _Stream(width, hidden, self.outputs, activation, sigma) if config.dueling else None

    def forward(self, features: Tensor, noisy: bool) -> Tensor:
        advantages = self.advantage(features, noisy).unflatten(-1, (self.num_actions, self.outputs))
        if self.value is None:
            return advantages
        values = self.value(features, noisy).unsqueeze(-2)
        return values + advantages - advantages.mean(dim=-2, keepdim=True)

    def initialize_outputs_(self, gain: float) -> None:
        """Orthogonal weights for the last layers; noisy ones keep their own initialisation."""
        orthogonal_init_(self.advantage.output, gain)
        if self.value is not None:
            orthogonal_init_(self.value.output, gain)


def _linear(in_features: int, out_features: int, sigma: float | None) -> nn.Module:
    return nn.Linear(in_features, out_features) if sigma is None else NoisyLinear(in_features, out_features, sigma)


def _apply(layer: nn.Module, x: Tensor, noisy: bool) -> Tensor:
    return layer(x, noisy) if isinstance(layer, NoisyLinear) else layer(x)
