"""SAC for discrete actions on CartPole in one file (Christodoulou 2019, arXiv 1910.07207): expectations in place of samples.

    python examples/discrete_sac_cartpole_reference.py
    python examples/discrete_sac_cartpole_reference.py --seed 3 --total-timesteps 20000   # a few minutes, to 500

It needs torch, numpy and gymnasium, nothing else. The package computes the same update; a test compares them.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import math
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn


@dataclasses.dataclass(frozen=True)
class Config:
    """Hyperparameters."""

    env_id: str = "CartPole-v1"
    seed: int = 0
    total_timesteps: int = 50_000
    learning_rate: float = 1e-3
    """Of the critics, the actor and the temperature."""
    batch_size: int = 128
    buffer_size: int = 50_000
    learning_starts: int = 1_000
    """Steps with random actions before the first update."""
    train_frequency: int = 4
    """Steps between updates."""
    gradient_steps: int = 2
    """Updates each time."""
    gamma: float = 0.99
    tau: float = 0.02
    """How far each update moves the target critics towards the critics."""
    reward_scale: float = 0.1
    """Brings the values to the order of 10."""
    initial_alpha: float = 0.1
    target_entropy_scale: float = 0.5
    """Entropy to keep, as a share of that of a uniform choice; the paper has 0.98, which is nearly random."""
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
    """An actor (logits of the actions), two critics (a value for each action) with slowly moving copies, a temperature α, and
    their optimisers."""

    def __init__(self, obs_size: int, num_actions: int, config: Config):
        self.actor = make_network(obs_size, num_actions, config.hidden_size)
        self.critics = nn.ModuleList(make_network(obs_size, num_actions, config.hidden_size) for _ in range(2))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = torch.tensor(math.log(config.initial_alpha), requires_grad=True)
        self.target_entropy = config.target_entropy_scale * math.log(num_actions)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=config.learning_rate)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=config.learning_rate)

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.detach().exp()


def log_probs_of(actor: nn.Module, obs: Tensor) -> Tensor:
    """log π(a|s) of all actions, (B, A)."""
    return actor(obs).log_softmax(dim=-1)


def q_values(critics: nn.ModuleList, obs: Tensor) -> Tensor:
    """Q_n(s, a) of both critics for all actions, (2, B, A)."""
    return torch.stack([critic(obs) for critic in critics])


def soft_values(q: Tensor, log_probs: Tensor, alpha: Tensor) -> Tensor:
    """Σ_a π(a|s) (Q(s, a) − α log π(a|s)): the exact expectation that SAC estimates with one action, (B, A) -> (B,)."""
    return (log_probs.exp() * (q - alpha * log_probs)).sum(dim=-1)


@torch.no_grad()
def critic_targets(agent: Agent, batch: Batch, config: Config) -> Tensor:
    """y = r + γ (1 − terminated) Σ_a' π(a'|s') (min_n Q'_n(s', a') − α log π(a'|s')), (B,)."""
    next_q = q_values(agent.target_critics, batch.next_obs).min(dim=0).values
    next_values = soft_values(next_q, log_probs_of(agent.actor, batch.next_obs), agent.alpha)
    return config.reward_scale * batch.rewards + config.gamma * next_values * (~batch.terminated).float()


def critic_loss(agent: Agent, batch: Batch, targets: Tensor) -> Tensor:
    """½ Σ_n mean (Q_n(s, a) − y)²."""
    taken = q_values(agent.critics, batch.obs)[:, torch.arange(len(targets)), batch.actions]
    return 0.5 * (taken - targets).square().mean(dim=1).sum()


def actor_loss(agent: Agent, batch: Batch) -> tuple[Tensor, Tensor]:
    """−mean Σ_a π(a|s) (min_n Q_n(s, a) − α log π(a|s)), and the entropy of π(s), (B,)."""
    with torch.no_grad():
        q = q_values(agent.critics, batch.obs).min(dim=0).values
    log_probs = log_probs_of(agent.actor, batch.obs)
    entropy = -(log_probs.exp() * log_probs).sum(dim=-1).detach()
    return -soft_values(q, log_probs, agent.alpha).mean(), entropy


def alpha_loss(agent: Agent, entropy: Tensor) -> Tensor:
    """log α · mean(entropy − target entropy): α falls while the policy is more random than asked, and rises otherwise."""
    return agent.log_alpha * (entropy - agent.target_entropy).mean()


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def update(agent: Agent, batch: Batch, config: Config) -> dict[str, Tensor]:
    """One gradient step of critics, actor and temperature, then the target critics follow; returns the losses."""
    q_loss = critic_loss(agent, batch, critic_targets(agent, batch, config))
    descend(q_loss, agent.critic_optimizer)
    pi_loss, entropy = actor_loss(agent, batch)
    descend(pi_loss, agent.actor_optimizer)
    descend(alpha_loss(agent, entropy), agent.alpha_optimizer)
    with torch.no_grad():
        for target, online in zip(agent.target_critics.parameters(), agent.critics.parameters(), strict=True):
            target.lerp_(online, config.tau)
    return {"critic_loss": q_loss.detach(), "actor_loss": pi_loss.detach(), "entropy": entropy.mean()}


@torch.no_grad()
def act(agent: Agent, obs: Any, generator: torch.Generator | None = None) -> int:
    """A sampled action; without a generator the most likely one."""
    log_probs = log_probs_of(agent.actor, torch.as_tensor(obs, dtype=torch.float32))
    if generator is None:
        return int(log_probs.argmax())
    return int(torch.multinomial(log_probs.exp(), 1, generator=generator))


def evaluate(agent: Agent, config: Config, episodes: int = 10) -> float:
    """Mean undiscounted return of deterministic episodes in an environment of its own."""
    env = gym.make(config.env_id)
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=config.seed + 10_000 + episode)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(act(agent, obs))
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
    assert isinstance(env.action_space, gym.spaces.Discrete) and env.observation_space.shape is not None
    obs_size, num_actions = env.observation_space.shape[0], int(env.action_space.n)
    agent = Agent(obs_size, num_actions, config)
    replay = Replay(config.buffer_size, obs_size, rng)

    begin, returns, episode_return = time.monotonic(), [], 0.0
    obs, _ = env.reset(seed=config.seed)
    for step in range(1, config.total_timesteps + 1):
        if step <= config.learning_starts:
            action = int(rng.integers(num_actions))
        else:
            action = act(agent, obs, generator)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(obs, action, float(reward), next_obs, terminated)
        obs = next_obs
        episode_return += float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            obs, _ = env.reset()

        if step >= config.learning_starts and step % config.train_frequency == 0:
            for _ in range(config.gradient_steps):
                update(agent, replay.sample(config.batch_size), config)
        if step % 1_000 == 0:
            recent = np.mean(returns[-10:]) if returns else float("nan")
            rate = step / (time.monotonic() - begin)
            print(f"step {step:>7,}  return {recent:8.1f}  alpha {agent.alpha:.3f}  {rate:,.0f} steps/s", flush=True)
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
