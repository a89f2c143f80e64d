"""DQN on CartPole in one file (Mnih et al. 2015, Nature 518): read it from top to bottom to see the whole algorithm.

    python examples/dqn_cartpole_reference.py
    python examples/dqn_cartpole_reference.py --seed 3 --total-timesteps 20000

It needs torch, numpy and gymnasium, nothing else. The package computes the same update; a test compares them.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Config:
    """The hyperparameters of the preset dqn/cartpole."""

    env_id: str = "CartPole-v1"
    seed: int = 0
    total_timesteps: int = 50_000
    learning_rate: float = 1e-3
    """At the start; it falls linearly to 0."""
    batch_size: int = 256
    buffer_size: int = 100_000
    learning_starts: int = 1_000
    train_frequency: int = 64
    """Environment steps between training phases."""
    gradient_steps: int = 32
    """Updates per training phase."""
    gamma: float = 0.99
    reward_scale: float = 0.01
    """Keeps values below 1, so that no error is in the linear part of the Huber loss."""
    epsilon_start: float = 1.0
    epsilon_end: float = 0.04
    epsilon_fraction: float = 0.16
    """Share of the training over which ε falls linearly."""
    tau: float = 0.01
    """How far each update moves the target network towards the network."""
    hidden_size: int = 256
    max_grad_norm: float = 10.0


@dataclasses.dataclass(frozen=True)
class Batch:
    """B transitions. `terminated` is true only at real ends: a time limit says nothing about the value of a state."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    terminated: Tensor


class Replay:
    """A ring of the newest transitions."""

    def __init__(self, capacity: int, obs_size: int, rng: np.random.Generator):
        self.obs = np.zeros((capacity, obs_size), np.float32)
        self.next_obs = np.zeros((capacity, obs_size), np.float32)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.bool_)
        self.capacity, self.rng, self.count = capacity, rng, 0

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, obs: Any, action: int, reward: float, next_obs: Any, terminated: bool) -> None:
        slot = self.count % self.capacity
        self.obs[slot], self.next_obs[slot] = obs, next_obs
        self.actions[slot], self.rewards[slot], self.terminated[slot] = action, reward, terminated
        self.count += 1

    def sample(self, size: int) -> Batch:
        rows = self.rng.integers(len(self), size=size)
        columns = (self.obs, self.actions, self.rewards, self.next_obs, self.terminated)
        return Batch(*(torch.from_numpy(column[rows]) for column in columns))


def make_network(obs_size: int, num_actions: int, hidden_size: int) -> nn.Sequential:
    """Observations (B, obs_size) -> Q-values (B, num_actions)."""
    return nn.Sequential(
        nn.Linear(obs_size, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, num_actions),
    )


def dqn_loss(network: nn.Module, target_network: nn.Module, batch: Batch, gamma: float) -> Tensor:
    """Huber loss between Q(s, a) and the target y = r + γ (1 − terminated) max_a' Q_target(s', a')."""
    with torch.no_grad():
        next_values = target_network(batch.next_obs).max(dim=1).values
        targets = batch.rewards + gamma * next_values * (~batch.terminated).float()
    values = network(batch.obs).gather(1, batch.actions[:, None]).squeeze(1)
    return nn.functional.smooth_l1_loss(values, targets)


def update(
    network: nn.Module, target_network: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, config: Config
) -> Tensor:
    """One gradient step, which the target network follows; returns the loss."""
    loss = dqn_loss(network, target_network, batch, config.gamma)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(network.parameters(), config.max_grad_norm)
    optimizer.step()
    with torch.no_grad():
        for target, online in zip(target_network.parameters(), network.parameters()):
            target.lerp_(online, config.tau)
    return loss.detach()


def epsilon_at(step: int, config: Config) -> float:
    """Probability of a random action, falling linearly from start to end."""
    share = min(step / (config.epsilon_fraction * config.total_timesteps), 1.0)
    return config.epsilon_start + share * (config.epsilon_end - config.epsilon_start)


@torch.no_grad()
def greedy_action(network: nn.Module, obs: Any) -> int:
    return int(network(torch.as_tensor(obs, dtype=torch.float32)).argmax())


def evaluate(network: nn.Module, config: Config, episodes: int = 20) -> float:
    """Mean undiscounted return of greedy episodes in an environment of its own."""
    env = gym.make(config.env_id)
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=config.seed + 10_000 + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(greedy_action(network, obs))
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def train(config: Config) -> nn.Module:
    """The whole loop: act, remember, and now and then learn from what is remembered."""
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(config.seed)
    env = gym.make(config.env_id)
    assert isinstance(env.action_space, gym.spaces.Discrete) and env.observation_space.shape is not None
    obs_size, num_actions = env.observation_space.shape[0], int(env.action_space.n)

    network = make_network(obs_size, num_actions, config.hidden_size)
    target_network = make_network(obs_size, num_actions, config.hidden_size)
    target_network.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), lr=config.learning_rate)
    replay = Replay(config.buffer_size, obs_size, rng)

    begin, returns, episode_return = time.monotonic(), [], 0.0
    obs, _ = env.reset(seed=config.seed)
    for step in range(1, config.total_timesteps + 1):
        if step <= config.learning_starts or rng.random() < epsilon_at(step, config):
            action = int(rng.integers(num_actions))
        else:
            action = greedy_action(network, obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs, action, float(reward) * config.reward_scale, next_obs, terminated)
        obs = next_obs
        episode_return += float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()

        if step % config.train_frequency == 0 and step >= config.learning_starts:
            optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - step / config.total_timesteps)
            for _ in range(config.gradient_steps):
                update(network, target_network, optimizer, replay.sample(config.batch_size), config)
        if step % 5_000 == 0:
            recent = np.mean(returns[-20:]) if returns else float("nan")
            print(
                f"step {step:>7,}  return {recent:6.1f}  {step / (time.monotonic() - begin):,.0f} steps/s", flush=True
            )
    env.close()
    return network


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=Config.seed)
    parser.add_argument("--total-timesteps", type=int, default=Config.total_timesteps)
    args = parser.parse_args()
    config = Config(seed=args.seed, total_timesteps=args.total_timesteps)
    network = train(config)
    print(f"evaluation return {evaluate(network, config):.1f} over 20 greedy episodes")


if __name__ == "__main__":
    main()
