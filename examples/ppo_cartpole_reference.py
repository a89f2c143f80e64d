"""PPO on CartPole in one file: the whole loop in sight, with nothing but torch, numpy and gymnasium.

    python examples/ppo_cartpole_reference.py
    python examples/ppo_cartpole_reference.py --total-timesteps 50000 --seed 3

The package's PPO computes the same: tests/integration/test_ppo_reference_parity.py compares one rollout and one update.
Shapes: T steps, N environments, D numbers per observation, B = T * N.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Every setting; each is also a command-line option."""

    env_id: str = "CartPole-v1"
    seed: int = 1
    total_timesteps: int = 100_000
    num_envs: int = 8
    num_steps: int = 256  # per environment and rollout
    num_minibatches: int = 32
    update_epochs: int = 10
    learning_rate: float = 3e-4  # falls linearly to 0
    adam_eps: float = 1e-5
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    clip_value_loss: bool = False
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    eval_episodes: int = 20


class ActorCritic(nn.Module):
    """Two separate networks: logits of the actions (B, A), and the value of the state (B,)."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.actor = self._network(obs_size, hidden, num_actions, last_gain=0.01)  # a nearly uniform first policy
        self.critic = self._network(obs_size, hidden, 1, last_gain=1.0)

    @staticmethod
    def _network(inputs: int, hidden: int, outputs: int, last_gain: float) -> nn.Sequential:
        layers = [nn.Linear(inputs, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
        for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def log_probs(self, obs: Tensor) -> Tensor:
        """Log-probabilities of all actions, (B, A)."""
        return self.actor(obs).log_softmax(dim=-1)

    def value(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)


@dataclass
class Rollout:
    """T steps of N environments, in order."""

    obs: Tensor  # (T, N, D) what the policy saw
    actions: Tensor  # (T, N)
    rewards: Tensor  # (T, N)
    next_obs: Tensor  # (T, N, D) what followed; the final observation where an episode ended
    terminated: Tensor  # (T, N) the episode reached a terminal state, whose value is 0
    ended: Tensor  # (T, N) terminated, or truncated by the time limit


class Envs:
    """A vector environment that remembers where it is, and the returns of its episodes."""

    def __init__(self, env_id: str, num_envs: int, seeds: int | list[int | None]) -> None:
        # SAME_STEP: a finished environment resets at once, and its final observation comes in infos["final_obs"].
        self.vector = SyncVectorEnv([lambda: gym.make(env_id)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self.obs: np.ndarray[Any, Any] = self.vector.reset(seed=seeds)[0]
        self.running_returns = np.zeros(num_envs)
        self.episode_returns: deque[float] = deque(maxlen=100)

    def collect(self, policy: ActorCritic, num_steps: int, generator: torch.Generator) -> Rollout:
        """Follows the policy for `num_steps` steps in every environment."""
        steps: list[tuple[Tensor, ...]] = []
        for _ in range(num_steps):
            obs = torch.from_numpy(self.obs)
            with torch.no_grad():
                action = torch.multinomial(policy.log_probs(obs).exp(), 1, generator=generator).squeeze(-1)
            self.obs, reward, terminated, truncated, infos = self.vector.step(action.numpy())
            ended = terminated | truncated
            next_obs = self.obs.copy()
            self.running_returns += reward
            for i in np.flatnonzero(ended):
                next_obs[i] = infos["final_obs"][i]
                self.episode_returns.append(float(self.running_returns[i]))
                self.running_returns[i] = 0.0
            arrays = (reward.astype(np.float32), next_obs, terminated, ended)
            steps.append((obs, action, *(torch.from_numpy(array) for array in arrays)))
        return Rollout(*(torch.stack(column) for column in zip(*steps)))


@torch.no_grad()
def advantages_and_returns(policy: ActorCritic, rollout: Rollout, config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Values, advantages by GAE and value targets, each (T, N).

    delta_t = r_t + gamma V(s'_t) - V(s_t), with V(s'_t) = 0 if s'_t is terminal; a truncated episode does bootstrap.
    A_t = delta_t + gamma lambda A_{t+1}, cut where an episode ended.
    """
    values, next_values = policy.value(rollout.obs), policy.value(rollout.next_obs)
    deltas = rollout.rewards + config.gamma * next_values * ~rollout.terminated - values
    decay = config.gamma * config.gae_lambda * (~rollout.ended).float()
    advantages = torch.zeros_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        advantages[t] = following = torch.addcmul(deltas[t], decay[t], following)  # delta + decay * following
    return values, advantages, advantages + values


def update(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: Config,
    progress: float,
    generator: torch.Generator,
) -> dict[str, float]:
    """Several epochs of clipped policy gradient on one rollout; `progress` in [0, 1] anneals the learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate * (1.0 - progress)

    values, advantages, returns = (x.flatten() for x in advantages_and_returns(policy, rollout, config))
    obs, actions = rollout.obs.flatten(0, 1), rollout.actions.flatten().unsqueeze(-1)
    with torch.no_grad():  # the weights are still those that acted
        old_log_probs = policy.log_probs(obs).gather(-1, actions).squeeze(-1)

    metrics: dict[str, list[Tensor]] = {"policy_loss": [], "value_loss": [], "entropy": [], "approx_kl": []}
    for _ in range(config.update_epochs):
        for batch in torch.randperm(len(obs), generator=generator).chunk(config.num_minibatches):
            log_probs = policy.log_probs(obs[batch])
            log_ratio = log_probs.gather(-1, actions[batch]).squeeze(-1) - old_log_probs[batch]
            ratio = log_ratio.exp()
            advantage = advantages[batch]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

            clipped_ratio = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
            policy_loss = -torch.min(advantage * ratio, advantage * clipped_ratio).mean()

            value, old_value = policy.value(obs[batch]), values[batch]
            squared_error = (value - returns[batch]).square()
            if config.clip_value_loss:
                clipped = old_value + (value - old_value).clamp(-config.clip_coef, config.clip_coef)
                squared_error = torch.max(squared_error, (clipped - returns[batch]).square())
            value_loss = 0.5 * squared_error.mean()

            entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
            loss = policy_loss - config.ent_coef * entropy + config.vf_coef * value_loss

            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), config.max_grad_norm)
            optimizer.step()

            approx_kl = ((ratio - 1) - log_ratio).mean()
            for name, metric in zip(metrics, (policy_loss, value_loss, entropy, approx_kl)):
                metrics[name].append(metric.detach())
    return {name: float(torch.stack(history).mean()) for name, history in metrics.items()}


@torch.no_grad()
def evaluate(policy: ActorCritic, config: Config) -> list[float]:
    """Returns of complete episodes in a fresh environment, always with the most likely action."""
    env = gym.make(config.env_id)
    returns = []
    for episode in range(config.eval_episodes):
        obs, _ = env.reset(seed=config.seed + 1_000_000 + episode)
        total, over = 0.0, False
        while not over:
            action = policy.log_probs(torch.as_tensor(obs).unsqueeze(0)).argmax(-1).item()
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    env.close()
    return returns


def make_policy(envs: Envs) -> ActorCritic:
    obs_space, action_space = envs.vector.single_observation_space, envs.vector.single_action_space
    assert isinstance(obs_space, gym.spaces.Box) and len(obs_space.shape) == 1, "flat observations only"
    assert isinstance(action_space, gym.spaces.Discrete) and action_space.start == 0, "discrete actions only"
    return ActorCritic(obs_space.shape[0], int(action_space.n))


def make_optimizer(policy: ActorCritic, config: Config) -> torch.optim.Optimizer:
    return torch.optim.Adam(policy.parameters(), lr=config.learning_rate, eps=config.adam_eps)


def train(config: Config) -> ActorCritic:
    """Collect, learn, repeat."""
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)  # networks this small gain nothing from more
    envs = Envs(config.env_id, config.num_envs, config.seed)
    policy = make_policy(envs)
    optimizer = make_optimizer(policy, config)
    generator = torch.Generator().manual_seed(config.seed)

    step, begin = 0, time.perf_counter()
    while step < config.total_timesteps:
        rollout = envs.collect(policy, config.num_steps, generator)
        metrics = update(policy, optimizer, rollout, config, step / config.total_timesteps, generator)
        step += config.num_steps * config.num_envs
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        speed = step / (time.perf_counter() - begin)
        mean = np.mean(envs.episode_returns) if envs.episode_returns else np.nan
        print(f"step {step:>7}  return {mean:6.1f}  {numbers}  {speed:.0f} steps/s", flush=True)
    envs.vector.close()
    return policy


def parse_args() -> Config:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Config):
        flag, default = f"--{field.name.replace('_', '-')}", field.default
        if isinstance(default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default, help=f"default: {default}")
    return Config(**vars(parser.parse_args()))


if __name__ == "__main__":
    settings = parse_args()
    final = evaluate(train(settings), settings)
    print(f"evaluation: mean return {np.mean(final):.1f}, std {np.std(final):.1f}, {len(final)} episodes")
