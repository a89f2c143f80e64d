"""Updates in bfloat16: hidden layers have fewer digits, last layers, losses and weights all of them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from helpers.rollouts import make_algorithm, make_rollout
from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.api.agent import agent_class
from rl_training.experiment import registry
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import complete_config
from rl_training.experiment.run.session import _torch_settings
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.critics import CriticEnsemble
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError
from rl_training.utils.trees import differing_paths

ABLE = [algo for algo in registry.algorithm_ids() if registry.load(algo).other_precisions]


def test_a_value_by_hand() -> None:
    torch.manual_seed(0)
    box = spaces.Box(-9, 9, (4,), np.float32)
    policy = ActorCritic(PolicySpec(box, spaces.Discrete(2), PolicyConfig(hidden_sizes=(8,))))
    obs = torch.randn(5, 4)
    with torch.autocast("cpu", torch.bfloat16):
        value = policy.value(obs)
    assert policy.critic_body is not None
    layer, head = policy.critic_body[0], policy.value_head
    short = (tensor.bfloat16() for tensor in (obs, layer.weight, layer.bias))
    expected = F.linear(F.linear(*short).tanh().float(), head.weight, head.bias).squeeze(-1)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, expected, rtol=0, atol=0)
    assert not torch.equal(value, policy.value(obs)), "digits were dropped"
    torch.testing.assert_close(value, policy.value(obs), rtol=0, atol=0.03)


@pytest.mark.parametrize("outputs", [1, 3])
def test_critics_give_all_digits(outputs: int) -> None:
    critics = CriticEnsemble(2, 4, (8,), outputs, activation="relu")
    with torch.autocast("cpu", torch.bfloat16):
        assert critics(torch.randn(5, 4)).dtype == torch.float32


def _trained(algo: str, precision: str) -> Any:
    kind = registry.load(algo)
    env = "CartPole-v1" if "Discrete" in kind.action_spaces else "Pendulum-v1"
    on_policy = "num_steps" in kind.config_class.__dataclass_fields__
    hyperparams = {"num_steps": 16} if on_policy else {"learning_starts": 32, "batch_size": 16}
    return agent_class(algo)(
        env, num_envs=2, precision=precision, device="cpu", policy={"hidden_sizes": [16, 16]}, **hyperparams
    )


@pytest.mark.parametrize("algo", ABLE)
def test_every_algorithm_learns_with_short_numbers_and_keeps_long_weights(algo: str) -> None:
    agents = [_trained(algo, precision) for precision in ("bf16", "bf16", "float32")]
    for agent in agents:
        agent.learn(total_timesteps=64)
    short, again, long = (agent.algorithm.policy.state_dict() for agent in agents)
    assert all(tensor.dtype != torch.bfloat16 for tensor in short.values())
    assert differing_paths(short, again) == [], "a run repeats bit for bit"
    assert differing_paths(short, long) != [], "the setting has an effect"
    for agent in agents:
        agent.close()


def test_the_ratio_of_new_to_old_starts_at_one() -> None:
    algorithm = make_algorithm(PPOAlgorithm, num_minibatches=1, update_epochs=1, env={"precision": "bf16"})
    algorithm.policy.action_head.linear.weight.data.mul_(100)  # the first policy is nearly uniform in any precision
    metrics = algorithm.update(make_rollout(algorithm), 0.0)
    assert float(metrics["approx_kl"]) == 0.0


def test_recorded_is_the_same() -> None:
    eager, recorded = (
        make_algorithm(PPOAlgorithm, num_minibatches=2, env={"precision": "bf16", "execution": execution})
        for execution in ("eager", "recorded")
    )
    for seed in range(2):
        rollout = make_rollout(eager, seed=seed)
        for algorithm in (eager, recorded):
            algorithm.update(copy.deepcopy(rollout), 0.0)
    assert recorded._train_minibatch.recordings == 1  # type: ignore[attr-defined]
    for name, weights in eager.policy.state_dict().items():
        torch.testing.assert_close(recorded.policy.state_dict()[name], weights, rtol=0, atol=5e-3, msg=name)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="TRPO computes in float32 only"):
        complete_config(TrainConfig(algo="trpo", precision="bf16"))
    with pytest.raises(ConfigError, match="tf32 is for NVIDIA GPUs, and this run uses the device cpu"):
        complete_config(TrainConfig(device="cpu", precision="tf32"))


def test_tf32_is_set_while_training_and_put_back() -> None:
    before = torch.get_float32_matmul_precision()
    with _torch_settings(TrainConfig(precision="tf32")):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before
