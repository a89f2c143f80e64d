"""Which optimiser moves the weights, and at what step sizes, is decided by the config."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rl_training
from rl_training.algorithms.optimization import OptimizerConfig, make_optimizer
from rl_training.execution.optimizers import Adam, AdamW, Group, RMSprop
from rl_training.utils.errors import ConfigError
from rl_training.utils.schedules import Schedule


def weights_after(name: str, env: str, **settings: Any) -> torch.Tensor:
    agent = getattr(rl_training, name)(env, seed=0, num_envs=2, policy={"hidden_sizes": (8,)}, **settings)
    agent.learn(total_timesteps=200)
    agent.close()
    return torch.cat([weight.detach().flatten() for weight in agent.policy.parameters()])


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", {"num_steps": 16}),
    "A2C": ("CartPole-v1", {}),
    "DQN": ("CartPole-v1", {"learning_starts": 50, "batch_size": 8}),
    "SAC": ("Pendulum-v1", {"learning_starts": 50, "batch_size": 8}),
    "TD3": ("Pendulum-v1", {"learning_starts": 50, "batch_size": 8}),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_family_takes_every_optimiser(name: str) -> None:
    env, settings = RUNS[name]
    ends = [
        weights_after(name, env, **settings, **choice)
        for choice in (
            {"optimizer": "adam"},
            {"optimizer": "adamw", "weight_decay": 0.1},
            {"optimizer": "adamw", "weight_decay": 0.5},
            {"optimizer": "rmsprop"},
            {"optimizer": "rmsprop", "rmsprop_alpha": 0.5},
            {"optimizer": "rmsprop", "rmsprop_eps": 0.1},
            {"optimizer": "adam", "adam_eps": 0.1},
            {"optimizer": "adam", "adam_beta1": 0.5},
        )
    ]
    for index, end in enumerate(ends):
        assert end.isfinite().all()
        assert not any(torch.equal(end, other) for other in ends[index + 1 :]), "each setting changes something"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"weight_decay": 0.1}, "weight_decay"),
        ({"rmsprop_alpha": 0.5}, "rmsprop_alpha"),
        ({"optimizer": "rmsprop", "adam_beta1": 0.5}, "adam_beta1"),
        ({"optimizer": "rmsprop", "weight_decay": 0.5}, "weight_decay"),
    ],
)
def test_a_setting_of_another_optimiser_is_refused(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}.*means nothing while optimizer is"):
        rl_training.SAC("Pendulum-v1", **settings)


def test_the_config_makes_the_optimiser() -> None:
    network = nn.Linear(2, 1)
    for name, kind in (("adam", Adam), ("adamw", AdamW), ("rmsprop", RMSprop)):
        optimizer = make_optimizer(OptimizerConfig(optimizer=name), [(network, None)])  # type: ignore[arg-type]
        assert type(optimizer) is kind


def test_adamw_by_hand() -> None:
    """One step: the weight decays by lr · λ · θ and moves by lr, as every first step of Adam."""
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = AdamW([Group([weight], 0.1, weight_decay=0.5)], eps=1e-12)
    optimizer.step(optimizer.gradient(3.0 * weight.sum()), {})
    torch.testing.assert_close(weight.detach(), torch.tensor([2.0 - 0.1 * 0.5 * 2.0 - 0.1]))


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_groups_move_at_their_own_rate_and_are_clipped_together(kind: Any) -> None:
    def made() -> tuple[nn.Parameter, nn.Parameter]:
        return nn.Parameter(torch.tensor([1.0])), nn.Parameter(torch.tensor([1.0, 1.0]))

    first, second = made()
    optimizer = kind([Group([first], 0.1), Group([second], Schedule(0.2, 0.0))])
    apart = [kind([weight], rate) for weight, rate in zip(made(), (0.1, 0.2))]
    loss = 3.0 * first.sum() + 4.0 * second[0] + 0.0 * second[1]
    report = optimizer.step(optimizer.gradient(loss), {}, max_norm=2.5)
    assert report.metrics()["grad_norm"] == 5.0, "over both groups"
    for single, gradient in zip(apart, (torch.tensor([1.5]), torch.tensor([2.0, 0.0]))):
        single.step(gradient, {})
    torch.testing.assert_close(first.detach(), apart[0].parameters[0].detach())
    torch.testing.assert_close(second.detach(), apart[1].parameters[0].detach())
    optimizer.advance(1.0)
    before = second.detach().clone()
    optimizer.step(optimizer.gradient(3.0 * first.sum() + second.sum()), {})
    assert torch.equal(second, before), "its rate has come to 0"
    assert [rate.number for rate in optimizer.learning_rates] == [0.1, 0.0]


def test_a_critic_of_ppo_may_learn_at_its_own_rate() -> None:
    agents = [
        rl_training.PPO("CartPole-v1", seed=0, num_envs=2, num_steps=16, critic_learning_rate=rate)
        for rate in (None, 0.0)
    ]
    values = [agent.policy.value_head.weight.clone() for agent in agents]
    for agent in agents:
        agent.learn(total_timesteps=64)
    assert not torch.equal(values[0], agents[0].policy.value_head.weight)
    assert torch.equal(values[1], agents[1].policy.value_head.weight)
    assert not torch.equal(
        agents[1].policy.action_head.linear.weight, torch.zeros_like(agents[1].policy.action_head.linear.weight)
    )
    with pytest.raises(ConfigError, match="one network"):
        rl_training.PPO("CartPole-v1", critic_learning_rate=0.1, policy={"shared": True})


def test_a_weight_in_two_groups_is_refused() -> None:
    weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="two groups"):
        Adam([Group([weight], 0.1), Group([weight], 0.2)])
