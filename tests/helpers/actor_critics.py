"""Off-policy actor-critic algorithms with networks so small that their numbers can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.data.replay_buffer import TransitionBatch
from rl_training.policies.policy_config import PolicyConfig

LINEAR = PolicyConfig(hidden_sizes=())
SMALL = PolicyConfig(hidden_sizes=(16, 16), activation="relu", orthogonal_init=False)
WIDE = PolicyConfig(hidden_sizes=(64, 64), activation="relu", orthogonal_init=False)


def make(kind: type, policy: PolicyConfig = LINEAR, *, seed: int = 0, actions: int = 1, **settings: Any) -> Any:
    """One feature; without hidden layers Q_n(s, a) = w s + v a + b."""
    config = kind.config_class(**settings)  # type: ignore[attr-defined]
    kind.check_config(config, 1)  # type: ignore[attr-defined]
    observations = spaces.Box(-10, 10, (1,), np.float32)
    return kind(observations, spaces.Box(-1, 1, (actions,), np.float32), config, policy, seed=seed)


def make_batch(
    transitions: list[tuple[float, float, float, float, float]], weights: list[float] | None = None
) -> TransitionBatch:
    """From rows (state, action, reward, next state, discount)."""
    obs, actions, rewards, next_obs, discounts = (torch.tensor(column) for column in zip(*transitions))
    return TransitionBatch(
        obs=obs[:, None],
        actions=actions[:, None],
        rewards=rewards,
        next_obs=next_obs[:, None],
        discounts=discounts,
        weights=torch.ones(len(obs)) if weights is None else torch.tensor(weights),
        indices=np.arange(len(obs)),
    )


def random_batch(size: int = 32, obs: tuple[int, ...] = (1,), actions: int = 1) -> TransitionBatch:
    generator = torch.Generator().manual_seed(5)
    return TransitionBatch(
        obs=torch.randn(size, *obs, generator=generator),
        actions=torch.rand(size, actions, generator=generator) * 2 - 1,
        rewards=torch.randn(size, generator=generator),
        next_obs=torch.randn(size, *obs, generator=generator),
        discounts=0.9 * (torch.rand(size, generator=generator) < 0.8),
        weights=torch.ones(size),
        indices=np.arange(size),
    )


def set_critics(critics: Any, rows: list[tuple[float, float, float]]) -> None:
    """Makes rows[n] = (w, v, b) the n-th critic, w s + v a + b."""
    table = torch.tensor(rows)
    with torch.no_grad():
        critics.output.weight.copy_(table[:, :2, None])
        critics.output.bias.copy_(table[:, None, 2:])


def set_bias(linear: Any, values: list[float]) -> None:
    """Makes a linear layer's output the same for every input."""
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.tensor(values))


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def copy_of(generator: torch.Generator) -> torch.Generator:
    """One that will draw the same."""
    copy = torch.Generator()
    copy.set_state(generator.get_state())
    return copy


def learning_rates(algorithm: Any) -> dict[str, float]:
    return {name: optimizer.learning_rate.item() for name, optimizer in algorithm.optimizers().items()}


def best_action(kind: type, updates: int, **settings: Any) -> float:
    """Of a problem of one step whose reward is −4 (a − ½)², learned from actions of all sizes."""
    algorithm = make(kind, WIDE, learning_rate=0.01, **settings)
    actions = torch.linspace(-1, 1, 64).tolist()
    batch = make_batch([(1.0, action, -4 * (action - 0.5) ** 2, 1.0, 0.0) for action in actions])
    for _ in range(updates):
        algorithm.update(batch, 0.0)
    actions, _ = algorithm.policy.act(torch.ones(1, 1), deterministic=True)
    return actions.item()
