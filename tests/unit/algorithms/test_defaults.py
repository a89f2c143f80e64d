"""Defaults that follow from other settings, resolved as a run resolves them."""

from typing import Any

import pytest

from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import complete_config


def resolved(algo: str, num_envs: int | None = None, **hyperparams: Any) -> Any:
    given = {} if num_envs is None else {"num_envs": num_envs}
    return complete_config(TrainConfig(algo=algo, hyperparams=hyperparams, **given))[1]


@pytest.mark.parametrize(
    ("num_envs", "given", "num_steps", "num_minibatches"),
    [
        (None, {}, 256, 32),
        (8, {}, 256, 32),
        (1, {}, 2048, 32),  # as one environment object has it
        (64, {}, 32, 32),
        (4096, {}, 1, 64),
        (8, {"num_steps": 16}, 16, 2),
        (1, {"num_steps": 16}, 16, 1),
        (1, {"num_minibatches": 4}, 2048, 4),
    ],
)
def test_ppo_shares_out_its_rollout(num_envs: int | None, given: dict[str, int], num_steps: int, num_minibatches: int):
    config = resolved("ppo", num_envs, **given)
    assert (config.num_steps, config.num_minibatches) == (num_steps, num_minibatches)


def test_trpo_shares_out_its_rollout_and_a2c_does_not():
    assert [resolved("trpo", count).num_steps for count in (1, 8, 16)] == [1024, 128, 64]
    assert [resolved("a2c", count).num_steps for count in (1, 8, 16)] == [8, 8, 8]


@pytest.mark.parametrize("algo", ["dqn", "double_dqn", "rainbow"])
def test_a_target_network_with_an_interval_is_copied(algo: str):
    """Who sets the interval alone, as other libraries have it, must not get a target that moves by a hundredth each time."""
    assert resolved(algo).tau < 0.1
    assert resolved(algo, target_update_interval=500).tau == 1.0
    assert resolved(algo, target_update_interval=500, tau=0.5).tau == 0.5
