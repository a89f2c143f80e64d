"""TQC on Pendulum in one file (Kuznetsov et al. 2020, arXiv 2005.04269): SAC whose critics predict quantiles of the return.

    python examples/tqc_pendulum_reference.py
    python examples/tqc_pendulum_reference.py --seed 3 --total-timesteps 4000   # to a return of about -220

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
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Config:
    """Hyperparameters: those of SAC, and three more."""

    env_id: str = "Pendulum-v1"
    seed: int = 0
    total_timesteps: int = 20_000
    learning_rate: float = 1e-3
    """Of the critics, the actor and the temperature."""
    batch_size: int = 256
    buffer_size: int = 20_000
    learning_starts: int = 1_000
    """Steps with random actions before the first update; from then on there is one update per step."""
    gamma: float = 0.99
    tau: float = 0.005
    """How far each update moves the target critics towards the critics."""
    hidden_size: int = 256
    num_critics: int = 2
    """The paper has 5; Pendulum needs no more than 2."""
    num_quantiles: int = 25
    """Atoms of each critic's distribution of returns."""
    drop_quantiles: int = 2
    """Largest atoms left out of the target, per critic: what remains is a cautious estimate."""


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
    """An actor, critics with slowly moving copies, a temperature α, and their optimisers."""

    def __init__(self, obs_size: int, action_size: int, config: Config):
        self.actor = make_network(obs_size, 2 * action_size, config.hidden_size)
        sizes = (obs_size + action_size, config.num_quantiles, config.hidden_size)
        self.critics = nn.ModuleList(make_network(*sizes) for _ in range(config.num_critics))
        self.target_critics = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(action_size)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=config.learning_rate)
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=config.learning_rate)

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.detach().exp()


def sample_actions(actor: nn.Module, obs: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Actions a = tanh(u) with u ~ N(mean, std), (B, d), and log π(a|s) = log N(u) − Σ log(1 − tanh² u), (B,)."""
    mean, log_std = actor(obs).chunk(2, dim=-1)
    log_std = log_std.clamp(-20.0, 2.0)
    noise = torch.randn(mean.shape, generator=generator)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi)
    # The same as log(1 − tanh² u), which would round to log 0 for large u.
    log_det = 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
    return u.tanh(), (log_normal - log_det).sum(dim=-1)


def quantiles_of(critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
    """The K quantiles of the return of (s, a) that each of N critics predicts, (N, B, K)."""
    return torch.stack([critic(torch.cat([obs, actions], dim=-1)) for critic in critics])


@torch.no_grad()
def critic_targets(agent: Agent, batch: Batch, config: Config, generator: torch.Generator) -> Tensor:
    """y_j = r + γ (1 − terminated) (z_j − α log π(a'|s')) with a' ~ π(s'), for all but the largest of the atoms z of all target
    critics together, (B, M) with M = N (K − dropped)."""
    next_actions, next_log_probs = sample_actions(agent.actor, batch.next_obs, generator)
    atoms = quantiles_of(agent.target_critics, batch.next_obs, next_actions)
    pooled = torch.cat(list(atoms), dim=-1).sort(dim=-1).values
    kept = pooled[:, : config.num_critics * (config.num_quantiles - config.drop_quantiles)]
    next_values = kept - (agent.alpha * next_log_probs).unsqueeze(-1)
    return batch.rewards.unsqueeze(-1) + config.gamma * next_values * (~batch.terminated).float().unsqueeze(-1)


def critic_loss(agent: Agent, batch: Batch, targets: Tensor) -> Tensor:
    """Σ_n of the mean quantile Huber loss ρ(u) = |τ_i − 1{u < 0}| L₁(u) over all pairs u = y_j − prediction_i."""
    predictions = quantiles_of(agent.critics, batch.obs, batch.actions)
    count = predictions.shape[-1]
    taus = (torch.arange(count, dtype=torch.float32) + 0.5) / count
    errors = targets[None, :, None, :] - predictions[:, :, :, None]  # (N, B, K, M)
    huber = torch.where(errors.abs() <= 1.0, 0.5 * errors.square(), errors.abs() - 0.5)
    weights = (taus[:, None] - (errors < 0).float()).abs()
    return (weights * huber).mean(dim=(1, 2, 3)).sum()


def actor_loss(agent: Agent, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """mean(α log π(a|s) − Q(s, a)) with a ~ π(s) and Q the mean of all quantiles of all critics, and log π(a|s), (B,)."""
    actions, log_probs = sample_actions(agent.actor, batch.obs, generator)
    q = quantiles_of(agent.critics, batch.obs, actions).mean(dim=(0, 2))
    return (agent.alpha * log_probs - q).mean(), log_probs.detach()


def alpha_loss(agent: Agent, log_probs: Tensor) -> Tensor:
    """−log α · mean(log π + target entropy): α falls while the policy is more random than asked, and rises otherwise."""
    return -agent.log_alpha * (log_probs + agent.target_entropy).mean()


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step on the optimiser's own parameters: the actor's loss also passes through the critics, which it must not move."""
    optimizer.zero_grad()
    loss.backward(inputs=optimizer.param_groups[0]["params"])
    optimizer.step()


def update(agent: Agent, batch: Batch, config: Config, generator: torch.Generator) -> dict[str, Tensor]:
    """One gradient step of critics, actor and temperature, then the target critics follow; returns the losses."""
    q_loss = critic_loss(agent, batch, critic_targets(agent, batch, config, generator))
    descend(q_loss, agent.critic_optimizer)
    pi_loss, log_probs = actor_loss(agent, batch, generator)
    descend(pi_loss, agent.actor_optimizer)
    descend(alpha_loss(agent, log_probs), agent.alpha_optimizer)
    with torch.no_grad():
        for target, online in zip(agent.target_critics.parameters(), agent.critics.parameters(), strict=True):
            target.lerp_(online, config.tau)
    return {"critic_loss": q_loss.detach(), "actor_loss": pi_loss.detach(), "entropy": -log_probs.mean()}


@torch.no_grad()
def act(agent: Agent, obs: Any, generator: torch.Generator | None = None) -> Any:
    """A sampled action in [-1, 1]; without a generator the deterministic one, tanh(mean)."""
    obs = torch.as_tensor(obs, dtype=torch.float32)
    if generator is None:
        return agent.actor(obs).chunk(2, dim=-1)[0].tanh().numpy()
    return sample_actions(agent.actor, obs, generator)[0].numpy()


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
            action = act(agent, obs, generator)
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
