"""CrossQ on Pendulum in one file (Bhatt et al. 2024, arXiv 1902.05605): SAC with batch renormalisation and no target networks.

    python examples/crossq_pendulum_reference.py
    python examples/crossq_pendulum_reference.py --seed 3 --total-timesteps 4000   # to a return of about -220

It needs torch, numpy and gymnasium, nothing else. The package computes the same update; a test compares them.
"""

from __future__ import annotations

import argparse
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
    """Hyperparameters: those of SAC without τ, and four more."""

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
    hidden_size: int = 256
    """Of all networks; the paper's critics have 2048 units, but Pendulum is small."""
    policy_delay: int = 3
    """Updates of the critics per update of the actor."""
    adam_beta1: float = 0.5
    renorm_momentum: float = 0.99
    """Share of the running statistics that each batch leaves in place."""
    renorm_warmup: int = 100_000
    """Batches that are normalised by their own statistics alone, before the running ones take part."""


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


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe 2017, arXiv 1702.03275) of (B, F).

    In training mode x̂ = r (x − μ_B) / σ_B + d, where r and d, without gradient, lead from the batch's statistics to the running
    ones; in evaluation mode x̂ = (x − μ) / σ. Then a learned scale and shift.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, features: int, config: Config):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.momentum, self.warmup, self.batches = config.renorm_momentum, config.renorm_warmup, 0

    def forward(self, x: Tensor) -> Tensor:
        std = (self.var + 1e-3).sqrt()
        if not self.training:
            return (x - self.mean) / std * self.scale + self.shift
        batch_mean, batch_var = x.mean(dim=0), x.var(dim=0, correction=0)
        batch_std = (batch_var + 1e-3).sqrt()
        normalized = (x - batch_mean) / batch_std
        with torch.no_grad():
            if self.batches >= self.warmup:
                r = (batch_std / std).clamp(1.0 / 3.0, 3.0)
                d = ((batch_mean - self.mean) / std).clamp(-5.0, 5.0)
            else:  # plain batch normalisation
                r, d = torch.ones_like(std), torch.zeros_like(std)
            self.mean.lerp_(batch_mean, 1.0 - self.momentum)
            self.var.lerp_(batch_var, 1.0 - self.momentum)
            self.batches += 1
        return (normalized * r + d) * self.scale + self.shift


def make_network(inputs: int, outputs: int, config: Config) -> nn.Sequential:
    """(B, inputs) -> (B, outputs), with a normalisation before each linear layer."""
    hidden = config.hidden_size
    network = nn.Sequential(
        *(BatchRenorm(inputs, config), nn.Linear(inputs, hidden), nn.ReLU()),
        *(BatchRenorm(hidden, config), nn.Linear(hidden, hidden), nn.ReLU()),
        *(BatchRenorm(hidden, config), nn.Linear(hidden, outputs)),
    )
    return network.eval()


class Agent:
    """An actor, two critics, a temperature α, and their optimisers. All networks are in evaluation mode but where it is said."""

    def __init__(self, obs_size: int, action_size: int, config: Config):
        self.actor = make_network(obs_size, 2 * action_size, config)
        self.critics = nn.ModuleList(make_network(obs_size + action_size, 1, config) for _ in range(2))
        self.log_alpha = torch.zeros((), requires_grad=True)
        self.target_entropy = -float(action_size)
        betas = (config.adam_beta1, 0.999)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.learning_rate, betas=betas)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=config.learning_rate, betas=betas)
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


def q_values(critics: nn.ModuleList, obs: Tensor, actions: Tensor) -> Tensor:
    """Q_n(s, a) of both critics, (2, B)."""
    return torch.stack([critic(torch.cat([obs, actions], dim=-1)).squeeze(-1) for critic in critics])


def critic_loss(agent: Agent, batch: Batch, config: Config, generator: torch.Generator) -> Tensor:
    """½ Σ_n mean (Q_n(s, a) − y)² with y = r + γ (1 − terminated) (min_n Q_n(s', a') − α log π(a'|s')) and a' ~ π(s').

    Both ends of the transitions go through the critics at once, in training mode: then one set of batch statistics fits both,
    and no target networks are needed. No gradient flows into y.
    """
    with torch.no_grad():
        next_actions, next_log_probs = sample_actions(agent.actor, batch.next_obs, generator)
    agent.critics.train()
    both = q_values(agent.critics, torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.actions, next_actions]))
    agent.critics.eval()
    q, next_q = both.chunk(2, dim=1)
    next_values = next_q.detach().min(dim=0).values - agent.alpha * next_log_probs
    targets = batch.rewards + config.gamma * next_values * (~batch.terminated).float()
    return 0.5 * (q - targets).square().mean(dim=1).sum()


def actor_loss(agent: Agent, batch: Batch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """mean(α log π(a|s) − min_n Q_n(s, a)) with a ~ π(s), and log π(a|s), (B,). Only the actor is in training mode."""
    agent.actor.train()
    actions, log_probs = sample_actions(agent.actor, batch.obs, generator)
    agent.actor.eval()
    q = q_values(agent.critics, batch.obs, actions).min(dim=0).values
    return (agent.alpha * log_probs - q).mean(), log_probs.detach()


def alpha_loss(agent: Agent, log_probs: Tensor) -> Tensor:
    """−log α · mean(log π + target entropy): α falls while the policy is more random than asked, and rises otherwise."""
    return -agent.log_alpha * (log_probs + agent.target_entropy).mean()


def descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """One step on the optimiser's own parameters: the actor's loss also passes through the critics, which it must not move."""
    optimizer.zero_grad()
    loss.backward(inputs=optimizer.param_groups[0]["params"])
    optimizer.step()


def update(
    agent: Agent, batch: Batch, config: Config, generator: torch.Generator, moves_actor: bool
) -> dict[str, Tensor]:
    """One gradient step of the critics, and if asked of actor and temperature; returns the losses."""
    q_loss = critic_loss(agent, batch, config, generator)
    descend(q_loss, agent.critic_optimizer)
    losses = {"critic_loss": q_loss.detach()}
    if moves_actor:
        pi_loss, log_probs = actor_loss(agent, batch, generator)
        descend(pi_loss, agent.actor_optimizer)
        descend(alpha_loss(agent, log_probs), agent.alpha_optimizer)
        losses |= {"actor_loss": pi_loss.detach(), "entropy": -log_probs.mean()}
    return losses


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

    begin, returns, episode_return, updates = time.monotonic(), [], 0.0, 0
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
            updates += 1
            moves_actor = updates % config.policy_delay == 0
            update(agent, replay.sample(config.batch_size), config, generator, moves_actor)
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
