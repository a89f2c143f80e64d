"""TRPO on CartPole in one file (Schulman et al. 2015, arXiv 1502.05477), with nothing but torch, numpy and gymnasium.

    python examples/trpo_cartpole_reference.py
    python examples/trpo_cartpole_reference.py --total-timesteps 30000 --seed 3   # half a minute, to 500

The package's TRPO computes the same: tests/integration/test_on_policy_reference_parity.py compares rollouts and updates.
Shapes: T steps, N environments, D numbers per observation, B = T * N; P weights of the actor.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable
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
    num_steps: int = 128  # per environment and rollout
    gamma: float = 0.99
    gae_lambda: float = 0.95
    target_kl: float = 0.01  # the trust region
    cg_iterations: int = 15
    cg_damping: float = 0.1
    backtrack_coef: float = 0.8
    backtrack_steps: int = 10
    critic_learning_rate: float = 1e-3
    critic_epochs: int = 10
    critic_minibatches: int = 8
    max_grad_norm: float = 0.5  # of the critic
    adam_eps: float = 1e-5
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


def flat(tensors: Any) -> Tensor:
    """Tensors side by side, as one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def conjugate_gradient(product: Callable[[Tensor], Tensor], b: Tensor, iterations: int) -> Tensor:
    """x with A x = b, (P,), for the symmetric positive definite A behind `product`."""
    x, residual, direction = torch.zeros_like(b), b.clone(), b.clone()
    squared = residual @ residual
    goal = 1e-10 * squared
    for _ in range(iterations):
        if squared <= goal:
            break
        along = product(direction)
        alpha = squared / (direction @ along)
        x, residual = x + alpha * direction, residual - alpha * along
        before, squared = squared, residual @ residual
        direction = residual + squared / before * direction
    return x


def policy_step(
    policy: ActorCritic, obs: Tensor, actions: Tensor, advantages: Tensor, config: Config
) -> dict[str, float]:
    """The longest step along the natural gradient that stays in the trust region and is an improvement.

    The natural gradient is H^-1 g, with g the gradient of the surrogate E[pi / pi_old A] and H the Hessian of the mean
    KL(old || new), the Fisher matrix. H is never formed: H v is the gradient of (gradient of KL) . v.
    """
    weights = list(policy.actor.parameters())
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    with torch.no_grad():
        old = policy.log_probs(obs)

    def surrogate() -> Tensor:
        log_ratio = (policy.log_probs(obs) - old).gather(-1, actions).squeeze(-1)
        return (log_ratio.exp() * advantages).mean()

    def mean_kl() -> Tensor:
        return (old.exp() * (old - policy.log_probs(obs))).sum(-1).mean()

    start = surrogate()
    gradient = flat(torch.autograd.grad(start, weights))
    kl_gradient = flat(torch.autograd.grad(mean_kl(), weights, create_graph=True))

    def fisher_product(vector: Tensor) -> Tensor:
        return flat(torch.autograd.grad(kl_gradient @ vector, weights, retain_graph=True)) + config.cg_damping * vector

    direction = conjugate_gradient(fisher_product, gradient, config.cg_iterations)
    # The length at which the quadratic model of the KL, x H x / 2, reaches its bound.
    full_step = (2.0 * config.target_kl / (direction @ fisher_product(direction))).sqrt() * direction

    old_weights = flat(weights).detach()
    with torch.no_grad():
        for attempt in range(config.backtrack_steps):
            fraction = config.backtrack_coef**attempt
            nn.utils.vector_to_parameters(old_weights + fraction * full_step, weights)
            improvement, kl = (surrogate() - start).item(), mean_kl().item()
            if kl <= config.target_kl and improvement > 0:
                return {"step_fraction": fraction, "kl": kl, "surrogate_improvement": improvement}
        nn.utils.vector_to_parameters(old_weights, weights)  # none was good enough
    return {"step_fraction": 0.0, "kl": 0.0, "surrogate_improvement": 0.0}


def critic_steps(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    obs: Tensor,
    returns: Tensor,
    config: Config,
    generator: torch.Generator,
) -> dict[str, float]:
    """Epochs of regression of the values on the returns."""
    losses = []
    for _ in range(config.critic_epochs):
        for batch in torch.randperm(len(obs), generator=generator).chunk(config.critic_minibatches):
            loss = 0.5 * (policy.value(obs[batch]) - returns[batch]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.critic.parameters(), config.max_grad_norm)
            optimizer.step()
            losses.append(loss.item())
    return {"value_loss": sum(losses) / len(losses)}


def update(
    policy: ActorCritic,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    config: Config,
    generator: torch.Generator,
) -> dict[str, float]:
    """One step of the policy and several of the critic on one rollout."""
    _, advantages, returns = (x.flatten() for x in advantages_and_returns(policy, rollout, config))
    obs, actions = rollout.obs.flatten(0, 1), rollout.actions.flatten().unsqueeze(-1)
    metrics = policy_step(policy, obs, actions, advantages, config)
    return metrics | critic_steps(policy, optimizer, obs, returns, config, generator)


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
    """Of the critic: the actor needs none."""
    return torch.optim.Adam(policy.critic.parameters(), lr=config.critic_learning_rate, eps=config.adam_eps)


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
        metrics = update(policy, optimizer, rollout, config, generator)
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
