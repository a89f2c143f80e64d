"""Recurrent PPO on CartPole without velocities, in one file: the whole loop in sight, with nothing but torch, numpy and gymnasium.

    python examples/recurrent_ppo_reference.py
    python examples/recurrent_ppo_reference.py --total-timesteps 50000 --seed 3

The policy sees positions only, so it has to remember. Three things are easily got wrong: what it remembers is forgotten where an
episode begins, also inside a sequence; a sequence starts from what was remembered there when it was collected; and the value of a
truncated episode's final observation needs that episode's memory, not the next one's.
The package's RecurrentPPO computes the same: tests/integration/test_recurrent_ppo_reference_parity.py compares them.
Shapes: T steps, N environments or sequences, D numbers per observation, H numbers that a core puts out.
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

VISIBLE = [0, 2]  # the cart's position and the pole's angle; their velocities are hidden


@dataclass(frozen=True)
class Config:
    """Every setting; each is also a command-line option."""

    env_id: str = "CartPole-v1"
    seed: int = 1
    total_timesteps: int = 200_000
    num_envs: int = 8
    num_steps: int = 128  # per environment and rollout
    sequence_length: int = 16  # steps that gradients flow back through; divides num_steps
    num_minibatches: int = 8
    update_epochs: int = 10
    core_size: int = 64
    learning_rate: float = 1e-3  # falls linearly to 0
    adam_eps: float = 1e-5
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    eval_episodes: int = 20


class Network(nn.Module):
    """An LSTM that reads the observations, and a network that reads the LSTM."""

    def __init__(self, obs_size: int, core_size: int, outputs: int, last_gain: float, hidden: int = 64) -> None:
        super().__init__()
        self.core = nn.LSTMCell(obs_size, core_size)
        for name, weight in self.core.named_parameters():
            nn.init.orthogonal_(weight) if "weight" in name else nn.init.zeros_(weight)
        layers = [nn.Linear(core_size, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, outputs)]
        for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)
        self.body = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

    def forward(self, obs: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (T, N, ...) of observations (T, N, D), and what is remembered after each step, (T, N, 2H).

        `state` (N, 2H) is what is remembered before the first; before the steps of `starts` (T, N) it is forgotten."""
        hidden, cell = state.chunk(2, dim=-1)
        history = []
        for x, start in zip(obs, starts.unsqueeze(-1)):
            hidden, cell = self.core(x, (hidden.masked_fill(start, 0.0), cell.masked_fill(start, 0.0)))
            history.append((hidden, cell))
        hiddens, cells = (torch.stack(part) for part in zip(*history))
        return self.body(hiddens), torch.cat([hiddens, cells], dim=-1)


class ActorCritic(nn.Module):
    """Two separate networks, each with a memory of its own. What they remember is one tensor (..., 2, 2H)."""

    def __init__(self, obs_size: int, num_actions: int, core_size: int) -> None:
        super().__init__()
        self.actor = Network(obs_size, core_size, num_actions, last_gain=0.01)  # a nearly uniform first policy
        self.critic = Network(obs_size, core_size, 1, last_gain=1.0)
        self.core_size = core_size

    def initial_state(self, count: int) -> Tensor:
        return torch.zeros(count, 2, 2 * self.core_size)

    def unroll(self, obs: Tensor, starts: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of all actions (T, N, A), values (T, N), and what is remembered after each step (T, N, 2, 2H)."""
        logits, actor_states = self.actor(obs, starts, state[:, 0])
        values, critic_states = self.critic(obs, starts, state[:, 1])
        states = torch.stack([actor_states, critic_states], dim=2)
        return logits.log_softmax(dim=-1), values.squeeze(-1), states

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for one observation each: (N, A), (N,), (N, 2, 2H)."""
        nothing = torch.zeros(1, len(obs), dtype=torch.bool)
        log_probs, values, states = self.unroll(obs.unsqueeze(0), nothing, state)
        return log_probs[0], values[0], states[0]


@dataclass
class Rollout:
    """T steps of N environments, in order."""

    initial_state: Tensor  # (N, 2, 2H) what was remembered before the first step
    obs: Tensor  # (T, N, D) what the policy saw
    actions: Tensor  # (T, N)
    rewards: Tensor  # (T, N)
    next_obs: Tensor  # (T, N, D) what followed; the final observation where an episode ended
    terminated: Tensor  # (T, N) the episode reached a terminal state, whose value is 0
    ended: Tensor  # (T, N) terminated, or truncated by the time limit

    @property
    def starts(self) -> Tensor:
        """(T, N) steps that begin an episode, but for the first: that one's state is known already."""
        return torch.cat([torch.zeros_like(self.ended[:1]), self.ended[:-1]])


def make_env(env_id: str) -> gym.Env[Any, Any]:
    env = gym.make(env_id)
    whole = env.observation_space
    assert isinstance(whole, gym.spaces.Box)
    shown = gym.spaces.Box(whole.low[VISIBLE], whole.high[VISIBLE], dtype=np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[VISIBLE], shown)


class Envs:
    """A vector environment that remembers where it is, what the policy remembers, and the returns of its episodes."""

    def __init__(self, config: Config, seeds: int | list[int | None]) -> None:
        # SAME_STEP: a finished environment resets at once, and its final observation comes in infos["final_obs"].
        self.vector = SyncVectorEnv(
            [lambda: make_env(config.env_id)] * config.num_envs, autoreset_mode=AutoresetMode.SAME_STEP
        )
        self.obs: np.ndarray[Any, Any] = self.vector.reset(seed=seeds)[0]
        self.state: Tensor | None = None
        self.running_returns = np.zeros(config.num_envs)
        self.episode_returns: deque[float] = deque(maxlen=100)

    @torch.no_grad()
    def collect(self, policy: ActorCritic, num_steps: int, generator: torch.Generator) -> Rollout:
        """Follows the policy for `num_steps` steps in every environment."""
        state = policy.initial_state(len(self.obs)) if self.state is None else self.state
        initial_state = state
        steps: list[tuple[Tensor, ...]] = []
        for _ in range(num_steps):
            obs = torch.from_numpy(self.obs)
            log_probs, _, state = policy.step(obs, state)
            action = torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(-1)
            self.obs, reward, terminated, truncated, infos = self.vector.step(action.numpy())
            ended = terminated | truncated
            state = state.masked_fill(torch.from_numpy(ended).view(-1, 1, 1), 0.0)
            next_obs = self.obs.copy()
            self.running_returns += reward
            for i in np.flatnonzero(ended):
                next_obs[i] = infos["final_obs"][i]
                self.episode_returns.append(float(self.running_returns[i]))
                self.running_returns[i] = 0.0
            arrays = (reward.astype(np.float32), next_obs, terminated, ended)
            steps.append((obs, action, *(torch.from_numpy(array) for array in arrays)))
        self.state = state
        return Rollout(initial_state, *(torch.stack(column) for column in zip(*steps)))


@dataclass
class Estimates:
    """What the current policy makes of a rollout."""

    log_probs: Tensor  # (T, N) of the actions taken
    values: Tensor  # (T, N)
    advantages: Tensor  # (T, N)
    returns: Tensor  # (T, N)
    states: Tensor  # (T, N, 2, 2H) what was remembered before each step


@torch.no_grad()
def estimates(policy: ActorCritic, rollout: Rollout, config: Config) -> Estimates:
    """Advantages by GAE.

    delta_t = r_t + gamma V(s'_t) - V(s_t), with V(s'_t) = 0 if s'_t is terminal; a truncated episode does bootstrap.
    A_t = delta_t + gamma lambda A_{t+1}, cut where an episode ended.
    """
    log_probs, values, after = policy.unroll(rollout.obs, rollout.starts, rollout.initial_state)
    log_probs = log_probs.gather(-1, rollout.actions.unsqueeze(-1)).squeeze(-1)
    # The successor comes after the step itself, in the same episode: its value is one step on from what was remembered then.
    _, next_values, _ = policy.step(rollout.next_obs.flatten(0, 1), after.flatten(0, 1))
    next_values = next_values.view_as(values)
    deltas = rollout.rewards + config.gamma * next_values * ~rollout.terminated - values
    decay = config.gamma * config.gae_lambda * (~rollout.ended).float()
    advantages = torch.zeros_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        advantages[t] = following = torch.addcmul(deltas[t], decay[t], following)  # delta + decay * following
    before = torch.cat([rollout.initial_state.unsqueeze(0), after[:-1]])  # `starts` makes zeros of what has ended
    return Estimates(log_probs, values, advantages, advantages + values, before)


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

    old = estimates(policy, rollout, config)
    length = config.sequence_length

    def cut(x: Tensor) -> Tensor:
        """(T, N, ...) -> (L, sequences, ...)."""
        return x.unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2)

    obs, actions, starts = cut(rollout.obs), cut(rollout.actions).unsqueeze(-1), cut(rollout.starts)
    old_log_probs, advantages, returns = cut(old.log_probs), cut(old.advantages), cut(old.returns)
    first_states = old.states[::length].flatten(0, 1)

    metrics: dict[str, list[Tensor]] = {"policy_loss": [], "value_loss": [], "entropy": [], "approx_kl": []}
    for _ in range(config.update_epochs):
        for batch in torch.randperm(len(first_states), generator=generator).chunk(config.num_minibatches):
            log_probs, value, _ = policy.unroll(obs[:, batch], starts[:, batch], first_states[batch])
            log_ratio = log_probs.gather(-1, actions[:, batch]).squeeze(-1) - old_log_probs[:, batch]
            ratio = log_ratio.exp()
            advantage = advantages[:, batch]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

            clipped_ratio = ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)
            policy_loss = -torch.min(advantage * ratio, advantage * clipped_ratio).mean()
            value_loss = 0.5 * (value - returns[:, batch]).square().mean()
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
    env = make_env(config.env_id)
    returns = []
    for episode in range(config.eval_episodes):
        obs, _ = env.reset(seed=config.seed + 1_000_000 + episode)
        state, total, over = policy.initial_state(1), 0.0, False
        while not over:
            log_probs, _, state = policy.step(torch.as_tensor(obs).unsqueeze(0), state)
            obs, reward, terminated, truncated, _ = env.step(log_probs.argmax(-1).item())
            total += float(reward)
            over = terminated or truncated
        returns.append(total)
    env.close()
    return returns


def make_policy(envs: Envs, config: Config) -> ActorCritic:
    obs_space, action_space = envs.vector.single_observation_space, envs.vector.single_action_space
    assert isinstance(obs_space, gym.spaces.Box) and isinstance(action_space, gym.spaces.Discrete)
    return ActorCritic(obs_space.shape[0], int(action_space.n), config.core_size)


def make_optimizer(policy: ActorCritic, config: Config) -> torch.optim.Optimizer:
    return torch.optim.Adam(policy.parameters(), lr=config.learning_rate, eps=config.adam_eps)


def train(config: Config) -> ActorCritic:
    """Collect, learn, repeat."""
    assert config.num_steps % config.sequence_length == 0, "sequence_length divides num_steps"
    torch.manual_seed(config.seed)
    torch.set_num_threads(1)  # networks this small gain nothing from more
    envs = Envs(config, config.seed)
    policy = make_policy(envs, config)
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
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, help=f"default: {field.default}")
    return Config(**vars(parser.parse_args()))


if __name__ == "__main__":
    settings = parse_args()
    final = evaluate(train(settings), settings)
    print(f"evaluation: mean return {np.mean(final):.1f}, std {np.std(final):.1f}, {len(final)} episodes")
