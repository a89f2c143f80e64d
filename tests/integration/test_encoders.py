"""An encoder of one's own, given as a class: who trains it, what copies it, and that runs with it are saved and resumed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rl_training
from rl_training import load_agent
from rl_training.policies.encoder_registry import register_encoder
from rl_training.utils.errors import ConfigError
from rl_training.utils.trees import differing_paths

SIZE = 6


class BrightColumn(gym.Env[Any, Any]):
    """An image with one bright column: say on which side it is, or where."""

    def __init__(self, continuous: bool = False):
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self.continuous = continuous

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def _look(self) -> Any:
        self.column = int(self.np_random.integers(SIZE))
        image = np.zeros((SIZE, SIZE, 1), np.uint8)
        image[:, self.column] = 255
        return image

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        where = 2 * self.column / (SIZE - 1) - 1
        reward = 1 - abs(where - float(action[0])) if self.continuous else float((where > 0) == bool(action))
        self.steps += 1
        return self._look(), reward, False, self.steps >= 10, {}


class SmallCNN(nn.Module):
    """What a user would write: made with the observation space, tells its number of features."""

    def __init__(self, observation_space: spaces.Box, channels: int = 4):
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 3, stride=2)
        self.features = channels * 4

    def forward(self, obs: Tensor) -> Tensor:
        return self.conv(obs.permute(0, 3, 1, 2).float() / 255).tanh().flatten(1)


REPLAY = {"learning_starts": 64, "batch_size": 32, "buffer_size": 2_000, "train_frequency": 2, "num_envs": 1}
RUNS: dict[str, tuple[int, float, dict[str, Any]]] = {
    "PPO": (4_096, 8.5, {"num_envs": 4, "num_steps": 64, "learning_rate": 3e-3, "gamma": 0.0}),
    "DQN": (1_500, 8.5, {**REPLAY, "learning_rate": 3e-3, "gamma": 0.0}),
    "SAC": (1_500, 7.5, {**REPLAY, "learning_rate": 3e-3, "gamma": 0.0}),
}
"""Steps, the return of ten steps to reach (chance is 5), settings."""


def make(name: str, **more: Any) -> Any:
    settings = {**RUNS[name][2], **more}
    policy = {"hidden_sizes": (16, 16), "encoder": SmallCNN}
    return getattr(rl_training, name)(lambda: BrightColumn(name == "SAC"), seed=1, policy=policy, **settings)


@pytest.mark.parametrize("name", RUNS)
def test_it_learns_from_images(name: str) -> None:
    steps, goal, _ = RUNS[name]
    agent = make(name)
    before = agent.policy.encoder.network.conv.weight.clone()
    agent.learn(total_timesteps=steps)
    assert not torch.equal(before, agent.policy.encoder.network.conv.weight), "somebody trains it"
    assert agent.evaluate(num_episodes=10).mean > goal
    agent.close()


@pytest.mark.parametrize("execution", ["eager", "recorded"])
@pytest.mark.parametrize("name", RUNS)
def test_checkpoints_and_targets_contain_it_and_a_resume_is_exact(name: str, execution: str, tmp_path: Path) -> None:
    whole = make(name, execution=execution)
    whole.learn(total_timesteps=600)
    stopped = make(name, execution=execution)
    stopped.learn(total_timesteps=300)
    stopped.save(tmp_path / "half")
    resumed = load_agent(tmp_path / "half", env=lambda: BrightColumn(name == "SAC"))
    resumed.learn(total_timesteps=600)
    assert "encoder.network.conv.weight" in whole.policy.state_dict()
    if name != "PPO":
        targets = whole.algorithm.state_dict()["targets"]
        slow = (
            targets["policy"]["encoder.network.conv.weight"]
            if name == "DQN"
            else targets["encoder"]["network.conv.weight"]
        )
        assert not torch.equal(slow, whole.policy.encoder.network.conv.weight), (
            "a copy of its own, which follows slowly"
        )
    assert not differing_paths(whole.policy.state_dict(), resumed.policy.state_dict())
    assert not differing_paths(whole.algorithm.state_dict(), resumed.algorithm.state_dict())
    for agent in (whole, stopped, resumed):
        agent.close()


def test_the_actor_of_sac_reads_the_encoder_and_leaves_it_alone() -> None:
    agent = make("SAC")
    agent.learn(total_timesteps=200)
    own = {id(weight) for weight in agent.policy.encoder.parameters()}
    optimizers = agent.algorithm.optimizers()
    assert own <= {id(weight) for weight in optimizers["critics"].parameters}
    assert not own & {id(weight) for weight in optimizers["actor"].parameters}
    agent.close()


@pytest.mark.parametrize("name", RUNS)
def test_a_learning_rate_of_its_own(name: str) -> None:
    frozen, usual = (make(name, encoder_learning_rate=rate) for rate in (0.0, None))
    start = {agent: agent.policy.encoder.network.conv.weight.clone() for agent in (frozen, usual)}
    for agent in (frozen, usual):
        agent.learn(total_timesteps=300)
    assert torch.equal(start[frozen], frozen.policy.encoder.network.conv.weight)
    assert not torch.equal(start[usual], usual.policy.encoder.network.conv.weight)
    heads = [
        weight for key, weight in frozen.policy.state_dict().items() if key.endswith("weight") and "encoder" not in key
    ]
    assert heads and frozen.num_timesteps >= 300
    with pytest.raises(ConfigError, match="no weights to train"):
        getattr(rl_training, name)("Pendulum-v1" if name == "SAC" else "CartPole-v1", encoder_learning_rate=1e-3)


def test_settings_reach_the_encoder() -> None:
    policy = {"hidden_sizes": (16,), "encoder": {"name": "SmallCNN", "channels": 7}}
    rl_training.register_encoder("SmallCNN", SmallCNN)
    agent = rl_training.PPO(BrightColumn, policy=policy)
    assert agent.policy.encoder.features == 28
    with pytest.raises(ConfigError, match=r"SmallCNN.*chanels"):
        rl_training.PPO(BrightColumn, policy={"encoder": {"name": "SmallCNN", "chanels": 7}})
    with pytest.raises(ConfigError, match="unknown encoder 'SmalCNN'"):
        rl_training.PPO(BrightColumn, policy={"encoder": "SmalCNN"})


def test_actor_and_critic_may_differ_in_size() -> None:
    for name in ("PPO", "SAC"):
        policy = {"actor_hidden_sizes": (8,), "critic_hidden_sizes": (24, 24)}
        agent = getattr(rl_training, name)("Pendulum-v1", policy=policy)
        weights = agent.policy.state_dict()
        actor = {tuple(weight.shape) for key, weight in weights.items() if "actor" in key and key.endswith("weight")}
        critic = {tuple(weight.shape) for key, weight in weights.items() if "critic" in key and key.endswith("weight")}
        assert any(8 in shape for shape in actor) and not any(24 in shape for shape in actor)
        assert any(24 in shape for shape in critic) and not any(8 in shape for shape in critic)
        agent.close()
    with pytest.raises(ConfigError, match="means nothing"):
        rl_training.DQN("CartPole-v1", policy={"actor_hidden_sizes": (8,)})


class Wrong(nn.Module):
    """Says one thing and does another."""

    def __init__(self, observation_space: spaces.Box, features: int, kind: str):
        super().__init__()
        self.features, self.kind, self.norm = features, kind, nn.BatchNorm1d(SIZE * SIZE)

    def forward(self, obs: Tensor) -> Any:
        flat = self.norm(obs.flatten(1).float())
        if self.kind == "broken":
            return flat @ flat
        return {"right": flat, "rows": flat.T, "whole": flat.long(), "list": [flat]}[self.kind]


@pytest.mark.parametrize(
    ("kind", "features", "message"),
    [
        ("right", 7, r"Wrong says features = 7, .* shape \(2, 7\), but it gives \(2, 36\) of torch.float32"),
        ("rows", 36, r"gives \(36, 2\)"),
        ("whole", 36, r"float tensor .* of torch.int64"),
        ("list", 36, "gives list"),
        ("broken", 36, "Wrong cannot encode observations of this environment: RuntimeError"),
    ],
)
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_wrong_outputs_are_named_before_anything_runs(name: str, kind: str, features: int, message: str) -> None:
    register_encoder("Wrong", Wrong)
    settings = {**RUNS[name][2], "policy": {"encoder": {"name": "Wrong", "features": features, "kind": kind}}}
    with pytest.raises(ConfigError, match=message):
        getattr(rl_training, name)(BrightColumn, **settings)


def test_trying_an_encoder_leaves_no_trace() -> None:
    register_encoder("Wrong", Wrong)
    policy = {"encoder": {"name": "Wrong", "features": 36, "kind": "right"}}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    agent = rl_training.DQN(BrightColumn, policy=policy)
    norm = agent.policy.encoder.network.norm  # type: ignore[union-attr]
    assert norm.training and norm.num_batches_tracked == 0
    assert torch.equal(before, torch.get_rng_state())
    agent.close()


class Jittering(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self, observation_space: spaces.Box):
        super().__init__()
        self.features, self.rng = SIZE * SIZE, torch.Generator().manual_seed(0)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs: Tensor) -> Tensor:
        flat = obs.flatten(1).float() / 255
        noise = torch.rand(flat.shape, generator=self.rng) if self.training else 0.5
        return self.scale * flat + 0.1 * noise


class SavedJittering(Jittering):
    """Saves it, too."""

    def get_extra_state(self) -> Tensor:
        return self.rng.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.rng.set_state(state)


def test_a_generator_of_its_own_is_refused_or_saved(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_envs": 1, "num_steps": 16, "seed": 3}
    with pytest.raises(ConfigError, match="(?s)Jittering has a random generator of its own, 'rng'.*get_extra_state"):
        rl_training.PPO(BrightColumn, policy={"encoder": Jittering}, **settings)
    whole = rl_training.PPO(BrightColumn, policy={"encoder": SavedJittering}, **settings)
    whole.learn(total_timesteps=32)
    saved = whole.save(tmp_path / "agent")
    whole.learn(total_timesteps=64)
    again: Any = load_agent(saved, env=BrightColumn)
    again.learn(total_timesteps=64)
    assert differing_paths(dict(whole.policy.state_dict()), dict(again.policy.state_dict())) == []
    whole.close()
    again.close()
