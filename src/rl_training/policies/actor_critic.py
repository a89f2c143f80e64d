"""The policy of the on-policy algorithms: an action distribution and a state value from one observation."""

import math

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.execution.batches import ObsTensor
from rl_training.execution.draws import RandomSource
from rl_training.policies.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    entropy_quadrature,
    valid_only,
)
from rl_training.policies.encoders import make_encoder
from rl_training.policies.networks import OutputLinear, mlp, orthogonal_init_
from rl_training.policies.normalization import RewardScaler
from rl_training.policies.policy import Policy
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError, SpaceError


def check_action_space(space: spaces.Space) -> None:
    """Raise SpaceError, with a way out, unless a policy can act in this space."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        if math.prod(space.shape) == 0:
            raise SpaceError(f"The action space has the shape {space.shape}: there is nothing to decide.")
        return
    if isinstance(space, spaces.Discrete):
        return
    kind = type(space).__name__
    hint = "Convert it with a wrapper"
    if isinstance(space, spaces.Dict | spaces.Tuple):
        hint = (
            "Put its entries into one space: discrete ones into a MultiDiscrete, continuous ones into a Box, "
            "and split them again in a wrapper"
        )
    raise SpaceError(
        f"The action space is a {kind}, which is not supported. {hint}.\n"
        "Supported: Discrete, MultiDiscrete, MultiBinary, Box.\n"
        "Example: gymnasium.wrappers.TransformAction(env, function, new_space)."
    )


class ActionHead(nn.Module):
    """Features (B, in_features) -> a distribution over actions in policy form.

    Box actions have a log standard deviation that does not depend on the state. Actions are flattened.
    """

    log_std: nn.Parameter | None
    nodes: Tensor
    """With `weights` what the entropy of squashed Gaussians is computed from."""
    weights: Tensor

    def __init__(self, in_features: int, action_space: spaces.Space, *, log_std_init: float, squash: bool) -> None:
        super().__init__()
        check_action_space(action_space)
        if squash and not isinstance(action_space, spaces.Box):
            raise ConfigError(
                f"squash is for Box actions, but the action space is a {type(action_space).__name__}. "
                "Set policy.squash to false."
            )
        self._squash = squash
        self._nvec: tuple[int, ...] | None = None
        self._categorical = isinstance(action_space, spaces.Discrete)
        self.log_std = None
        if isinstance(action_space, spaces.Discrete):
            size = int(action_space.n)
        elif isinstance(action_space, spaces.MultiDiscrete):
            self._nvec = tuple(int(n) for n in action_space.nvec.ravel())
            size = sum(self._nvec)
        else:
            assert action_space.shape is not None
            size = math.prod(action_space.shape)
        if isinstance(action_space, spaces.Box):
            self.log_std = nn.Parameter(torch.full((size,), float(log_std_init)))
        if squash:
            for name, table in zip(("nodes", "weights"), entropy_quadrature()):
                self.register_buffer(name, table, persistent=False)
        self.linear = OutputLinear(in_features, size)

    def forward(self, features: Tensor, mask: Tensor | None = None) -> Distribution:
        """Return the distribution of a batch of actions; a mask (B, n) bool rules out some of (Multi)Discrete ones."""
        outputs = valid_only(self.linear(features), mask)
        if self._categorical:
            return Categorical(outputs)
        if self._nvec is not None:
            return MultiCategorical(outputs, self._nvec)
        if self.log_std is None:
            return Bernoulli(outputs)
        if self._squash:
            return SquashedGaussian(outputs, self.log_std, (self.nodes, self.weights))
        return DiagGaussian(outputs, self.log_std)


class ActorCritic(Policy):
    """Policy and state-value function on one encoder, with one shared body or two separate ones."""

    reward_scaler: RewardScaler | None

    def __init__(self, spec: PolicySpec, *, features: int | None = None) -> None:
        """`features` are those that the bodies read, where something stands between encoder and bodies; else the encoder's."""
        super().__init__()
        config = spec.config
        self.reward_scaler = RewardScaler() if spec.normalize_rewards else None
        self.encoder = make_encoder(spec)
        inputs = self.encoder.features if features is None else features
        self.actor_body = mlp(inputs, config.actor_sizes, None, config.activation)
        # None, not a second name for the same module: that would put every weight into the state dict twice.
        self.critic_body = None if config.shared else mlp(inputs, config.critic_sizes, None, config.activation)
        self.action_head = ActionHead(
            (inputs, *config.actor_sizes)[-1], spec.action_space, log_std_init=config.log_std_init, squash=config.squash
        )
        self.value_head = OutputLinear((inputs, *config.critic_sizes)[-1], 1)
        if config.orthogonal_init:
            orthogonal_init_(self.actor_body, math.sqrt(2.0))
            if self.critic_body is not None:
                orthogonal_init_(self.critic_body, math.sqrt(2.0))
            # A nearly uniform first policy, whatever the observations (arXiv 2006.05990).
            orthogonal_init_(self.action_head, 0.01)
            orthogonal_init_(self.value_head, 1.0)

    def actor_parts(self) -> list[nn.Module]:
        """What the actor needs, besides the encoder."""
        return [self.actor_body, self.action_head]

    def critic_parts(self) -> list[nn.Module]:
        """What only the critic needs."""
        return [self.value_head] if self.critic_body is None else [self.value_head, self.critic_body]

    def distribution(self, obs: ObsTensor) -> Distribution:
        """Return the action distribution of a batch of raw observations."""
        return self.action_head(self.actor_body(self.encoder(obs)), self.encoder.action_mask(obs))

    def value(self, obs: ObsTensor) -> Tensor:
        """Return the state values (B,) of a batch of raw observations."""
        body = self.actor_body if self.critic_body is None else self.critic_body
        return self.value_head(body(self.encoder(obs))).squeeze(-1)

    def forward(self, obs: ObsTensor) -> tuple[Distribution, Tensor]:
        """Return distribution and values (B,); encoder and a shared body run once."""
        encoded = self.encoder(obs)
        return self._heads(encoded, encoded, self.encoder.action_mask(obs))

    def _heads(
        self, actor_features: Tensor, critic_features: Tensor, mask: Tensor | None
    ) -> tuple[Distribution, Tensor]:
        """Return distribution and values (...) from what the bodies read, (..., features); `mask` (..., n) says which
        actions are valid."""
        features = self.actor_body(actor_features)
        value_features = features if self.critic_body is None else self.critic_body(critic_features)
        return self.action_head(features, mask), self.value_head(value_features).squeeze(-1)

    def choose(self, obs: ObsTensor, generator: RandomSource, deterministic: bool) -> Tensor:
        distribution = self.distribution(obs)
        return distribution.mode() if deterministic else distribution.sample(generator)
