"""TD3 on Pendulum in one file (Fujimoto et al. 2018, arXiv 1802.09477): read it from top to bottom to see the whole algorithm.

    python examples/td3_pendulum_reference.py
    python examples/td3_pendulum_reference.py --seed 3 --total-timesteps 10000

It needs torch, numpy and gymnasium, nothing else. The package computes the same update; a test compares them.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Config:
    """The hyperparameters of the preset td3/pendulum."""

    env_id: str = "Pendulum-v1"
    seed: int = 0
    total_timesteps: int = 20_000
    learning_rate: float = 1e-3
    """Of the critics and of the actor."""
    batch_size: int = 256
    buffer_size: int = 20_000
    learning_starts: int = 1_000
    """Steps with random actions before the first update; from then on there is one update per step."""
    gamma: float = 0.98
    tau: float = 0.005
    """How far the target networks move towards the networks, each time the actor does."""
    policy_delay: int = 2
    """Updates of the critics per update of the actor and of the targets."""
    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions in training. Like the next two in units of half the action range."""
    target_noise: float = 0.2
    """Standard deviation of the noise that smooths the targets over similar actions."""
    target_noise_clip: float = 0.5
    """Largest such noise."""
    hidden_size: int = 256


@dataclasses.dataclass(frozen=True)
class Batch:
    """B transitions. `terminated` is true only at real ends: a time limit says nothing about the value of a state."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    terminated: Tensor


class Replay:
    """A ring of the newest transitions. Actions are kept as the actor makes them, in [-1, 1]."""

    def __init__(self, capacity: int, obs_size: int, action_size: int, rng: np.random.Generator):
        self.obs = np.zeros((capacity, obs_size), np.float32)
        self.next_obs = np.zeros((capacity, obs_size), np.float32)
        self.actions = np.zeros((capacity, action_size), np.float32)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.bool_)
        self.capacity, self.rng, self.count = capacity, rng, 0

    def __len__(self) -> int:
        return min(self.count, self.capacity)

    def add(self, obs: Any, action: Any, reward: float, next_obs: Any, terminated: bool) -> None:
        slot = self.count % self.capacity
        self.obs[slot], self.next_obs[slot] = obs, next_obs
        self.actions[slot], self.rewards[slot], self.terminated[slot] = action, reward, terminated
        self.count += 1

    def sample(self, size: int) -> Batch:
        rows = self.rng.integers(len(self), size=size)
        columns = (self.obs, self.actions, self.rewards, self.next_obs, self.terminated)
        return Batch(*(torch.from_numpy(column[rows]) for column in columns))


def make_network(inputs: int, outputs: int, hidden_size: int) -> nn.Sequential:
    """(B, inputs) -> (B, outputs)."""
    return nn.Sequential(
        nn.Linear(inputs, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, outputs),
    )


class Agent:
    """An actor and two critics, a slowly moving copy of each, and their optimisers."""

    def __init__(self, obs_size: int, action_size: int, config: Config):
        self.actor = nn.Sequential(*make_network(obs_size, action_size, config.hidden_size), nn.Tanh())
        self.critics = nn.ModuleList(make_network(obs_size + action_size, 1, config.hidden_size) for _ in range(2))
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critics = copy.deepcopy(self.critics)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=config.learning_rate)
        self.updates = 0


def q_value(critic: nn.Module, obs: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a), (B,)."""
    return critic(torch.cat([obs, actions], dim=-1)).squeeze(-1)


@torch.no_grad()
def critic_targets(agent: Agent, batch: Batch, config: Config, generator: torch.Generator) -> Tensor:
    """y = r + γ (1 − terminated) min_n Q'_n(s', ã) with ã = clip(π'(s') + clip(ε, −c, c), −1, 1), (B,)."""
    next_actions = agent.target_actor(batch.next_obs)
    noise = config.target_noise * torch.randn(next_actions.shape, generator=generator)
    noise = noise.clamp(-config.target_noise_clip, config.target_noise_clip)
    next_actions = (next_actions + noise).clamp(-1.0, 1.0)
    first, second = (q_value(critic, batch.next_obs, next_actions) for critic in agent.target_critics)
    return batch.rewards + config.gamma * torch.minimum(first, second) * (~batch.terminated).float()


def critic_loss(agent: Agent, batch: Batch, targets: Tensor) -> Tensor:
    """½ Σ_n mean (Q_n(s, a) − y)²."""
    first, second = (q_value(critic, batch.obs, batch.actions) - targets for critic in agent.critics)
    return 0.5 * first.square().mean() + 0.5 * second.square().mean()


def actor_loss(agent: Agent, batch: Batch) -> Tensor:
    """−mean Q_1(s, π(s))."""
    return -q_value(agent.critics[0], batch.obs, agent.actor(batch.obs)).mean()


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step on the optimiser's own parameters: the actor's loss also passes through a critic, which it must not move."""
    optimizer.zero_grad()
    loss.backward(inputs=optimizer.param_groups[0]["params"])
    optimizer.step()


@torch.no_grad()
def follow(targets: nn.Module, online: nn.Module, tau: float) -> None:
    """θ' ← θ' + τ (θ − θ')."""
    for target, parameter in zip(targets.parameters(), online.parameters(), strict=True):
        target.lerp_(parameter, tau)


def update(agent: Agent, batch: Batch, config: Config, generator: torch.Generator) -> dict[str, Tensor]:
    """One gradient step of the critics, and every `policy_delay`-th time of actor and targets; returns the losses."""
    q_loss = critic_loss(agent, batch, critic_targets(agent, batch, config, generator))
    descend(q_loss, agent.critic_optimizer)
    losses = {"critic_loss": q_loss.detach()}
    agent.updates += 1
    if agent.updates % config.policy_delay == 0:
        pi_loss = actor_loss(agent, batch)
        descend(pi_loss, agent.actor_optimizer)
        losses["actor_loss"] = pi_loss.detach()
        follow(agent.target_actor, agent.actor, config.tau)
        follow(agent.target_critics, agent.critics, config.tau)
    return losses


@torch.no_grad()
def act(agent: Agent, obs: Any, noise: float = 0.0, generator: torch.Generator | None = None) -> Any:
    """The actor's action in [-1, 1], with Gaussian noise on it."""
    action = agent.actor(torch.as_tensor(obs, dtype=torch.float32))
    return (action + noise * torch.randn(action.shape, generator=generator)).clamp(-1.0, 1.0).numpy()


def evaluate(agent: Agent, config: Config, episodes: int = 10) -> float:
    """Mean undiscounted return of deterministic episodes in an environment of its own."""
    env = gym.make(config.env_id)
    assert isinstance(env.action_space, gym.spaces.Box)
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=config.seed + 10_000 + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(agent, obs) * env.action_space.high)
            total += float(reward)
            ended = terminated or truncated
    env.close()
    return total / episodes


def train(config: Config) -> Agent:
    """The whole loop: act, remember, and learn from what is remembered."""
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    env = gym.make(config.env_id)
    assert isinstance(env.action_space, gym.spaces.Box) and env.observation_space.shape is not None
    obs_size, action_size = env.observation_space.shape[0], env.action_space.shape[0]
    # The agent works in [-1, 1]; Pendulum's torque lies within ±2. Bounds that are not symmetric would need a shift, too.
    scale = env.action_space.high
    assert np.array_equal(env.action_space.low, -scale)

    agent = Agent(obs_size, action_size, config)
    replay = Replay(config.buffer_size, obs_size, action_size, rng)

    begin, returns, episode_return = time.monotonic(), [], 0.0
    obs, _ = env.reset(seed=config.seed)
    for step in range(1, config.total_timesteps + 1):
        if step <= config.learning_starts:
            action = rng.uniform(-1.0, 1.0, action_size).astype(np.float32)
        else:
            action = act(agent, obs, config.exploration_noise, generator)
        next_obs, reward, terminated, truncated, _ = env.step(action * scale)
        replay.add(obs, action, float(reward), next_obs, terminated)
        obs = next_obs
        episode_return += float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()

        if step >= config.learning_starts:
            update(agent, replay.sample(config.batch_size), config, generator)
        if step % 1_000 == 0:
            recent = np.mean(returns[-10:]) if returns else float("nan")
            rate = step / (time.monotonic() - begin)
            print(f"step {step:>7,}  return {recent:8.1f}  {rate:,.0f} steps/s", flush=True)
    env.close()
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=Config.seed)
    parser.add_argument("--total-timesteps", type=int, default=Config.total_timesteps)
    args = parser.parse_args()
    config = Config(seed=args.seed, total_timesteps=args.total_timesteps)
    agent = train(config)
    print(f"evaluation return {evaluate(agent, config):.1f} over 10 deterministic episodes")


if __name__ == "__main__":
    main()
