"""Every hyperparameter of every algorithm changes something, or is refused: two tiny runs that differ in one key.

A new key needs a value in `OTHER` (and in `BESIDE` what makes it show); what it `Needs` is switched on by itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.api.agent import agent_class
from rl_training.experiment.registry import BUILT_IN, load
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Needs, Unused, conditions

OTHER: dict[str, tuple[Any, ...]] = {
    # The optimiser
    "learning_rate": (0.02,),
    "encoder_learning_rate": (0.2,),
    "optimizer": ("rmsprop", "adam"),
    "weight_decay": (0.5,),
    "max_grad_norm": (1e-3,),
    "adam_eps": (1.0,),
    "adam_beta1": (0.2,),
    "rmsprop_alpha": (0.2,),
    "rmsprop_eps": (1.0,),
    # Batches and replay
    "gamma": (0.5,),
    "batch_size": (5,),
    "reward_scale": (3.0,),
    "buffer_size": (10,),
    "learning_starts": (12,),
    "train_frequency": (5,),
    "gradient_steps": (3,),
    "replay_storage": ("disk",),
    "n_step": (2,),
    "prioritized": (True, False),
    "per_alpha": (0.9,),
    "per_beta": (0.0,),
    "per_epsilon": (2.0,),
    "hindsight": (0.5,),
    # DQN
    "epsilon": (0.3,),
    "target_update_interval": (3,),
    "tau": (0.5,),
    "double": (True, False),
    "dueling": (True, False),
    "noisy": (True, False),
    "noisy_sigma": (2.0,),
    "distribution": ("quantile", "categorical"),
    "num_atoms": (7,),
    "v_min": (-3.0,),
    "v_max": (4.0,),
    "num_quantiles": (5,),
    "num_taus": (3,),
    "num_target_taus": (3,),
    "kappa": (0.1,),
    "munchausen": (True,),
    "munchausen_alpha": (0.1,),
    "munchausen_tau": (1.0,),
    "munchausen_clip": (-0.01,),
    # Off-policy actors and critics
    "actor_learning_rate": (0.2,),
    "num_critics": (3,),
    "policy_delay": (4,),
    "layer_norm": (True, False),
    "dropout": (0.4,),
    "random_shift": (2,),
    "trunk_size": (3,),
    "critic_subset": (1,),
    "actor_value": ("mean", "min"),
    "ent_coef": (0.3, 0.0),
    "initial_ent_coef": (0.3,),
    "temperature_learning_rate": (0.2,),
    "target_entropy": (-3.0,),
    "target_entropy_scale": (0.2,),
    "noise_correlation": (0.9,),
    "action_noise": ("ornstein_uhlenbeck",),
    "exploration_noise": (0.9,),
    "noise_theta": (0.7,),
    "target_noise": (1.0,),
    "target_noise_clip": (0.05,),
    "drop_quantiles": (1,),
    "renorm_momentum": (0.5,),
    "renorm_warmup": (0,),
    # On-policy
    "num_steps": (4,),
    "gae_lambda": (0.3,),
    "vf_coef": (5.0,),
    "critic_learning_rate": (0.2,),
    "num_minibatches": (2, 1),
    "update_epochs": (2,),
    "clip_coef": (0.001,),
    "clip_value_loss": (True,),
    "normalize_advantages": (True, False),
    "target_kl": (1e-6,),
    "recompute_advantages": (True,),
    "cg_iterations": (1,),
    "cg_damping": (5.0,),
    "fisher_fraction": (0.3,),
    "backtrack_coef": (0.1,),
    "backtrack_steps": (1,),
    "critic_epochs": (2,),
    "critic_minibatches": (2, 1),
    # Memory
    "core": ("gru",),
    "core_size": (3,),
    "core_layers": (2,),
    "shared_core": (True,),
    "sequence_length": (2,),
}
"""Values to try for each key, whatever the algorithm; the first that is not the default."""

PLAIN_VALUES = {"distribution": "none", "double": False}
BACKTRACKING = {"target_kl": 0.02, "cg_damping": 1e-3}
BESIDE: dict[str, dict[str, Any]] = {
    "num_steps": {"sequence_length": 4},
    "tau": {"target_update_interval": 3},
    "buffer_size": {"learning_starts": 16},
    **dict.fromkeys(("munchausen", "munchausen_alpha", "munchausen_tau", "munchausen_clip"), PLAIN_VALUES),
    "clip_value_loss": {"clip_coef": 0.001},
    **dict.fromkeys(("backtrack_coef", "backtrack_steps"), BACKTRACKING),
}
"""What a key needs besides to show in a few updates; where the algorithm has no such key it is left out."""

REPLAY = {"learning_starts": 8, "batch_size": 4, "buffer_size": 64, "gradient_steps": 2, "learning_rate": 0.05}
SMALL: dict[str, Any] = {**REPLAY, "num_steps": 6, "num_atoms": 5, "num_taus": 4, "num_target_taus": 4}
"""Settings of all runs, as far as an algorithm has them and they mean something."""


class Tiny(gym.Env[Any, Any]):
    """Noise, rewards that depend on the actions, and ends of both kinds; with goals or images if asked."""

    def __init__(self, discrete: bool, goals: bool = False, images: bool = False):
        box = spaces.Box(0, 255, (5, 5, 1), np.uint8) if images else spaces.Box(-9.0, 9.0, (2,), np.float32)
        self.goals, self.images, self.taken = goals, images, []
        self.observation_space: Any = box
        if goals:
            self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))
        self.action_space = spaces.Discrete(3) if discrete else spaces.Box(-2.0, 2.0, (2,), np.float32)

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -np.abs(achieved - desired).sum(axis=-1)

    def _obs(self) -> Any:
        if self.images:
            return self.np_random.integers(0, 256, (5, 5, 1), dtype=np.uint8)
        values = self.np_random.normal(size=(3, 2)).astype(np.float32)
        return dict(zip(self.observation_space, values)) if self.goals else values[0]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(3, 8))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.taken.append(np.asarray(action, np.float64).sum())
        self.steps += 1
        ended = self.steps == self.length
        return self._obs(), float(np.sum(action)), ended and self.length % 2 == 0, ended and self.length % 2 == 1, {}


class TinyEncoder(nn.Module):
    """Has weights, so that there is something for `encoder_learning_rate` to set."""

    features = 3

    def __init__(self, observation_space: Any):
        super().__init__()
        self.layer = nn.Linear(
            6 if isinstance(observation_space, spaces.Dict) else math.prod(observation_space.shape), 3
        )

    def forward(self, obs: Any) -> Tensor:
        numbers = torch.cat(list(obs.values()), dim=-1) if isinstance(obs, dict) else obs.flatten(1)
        values: Tensor = self.layer(numbers.float() / (255 if numbers.dtype == torch.uint8 else 1))
        return values


@functools.cache
def trace(algo: str, settings: tuple[tuple[str, Any], ...], *observed: bool) -> Tensor:
    """All that a run has computed: the actions taken, the weights, targets and optimisers, and where its replay lies."""
    discrete = "Discrete" in load(algo).action_spaces
    envs = [Tiny(discrete, *observed) for _ in range(2)]
    made = iter([*envs, *(Tiny(discrete, *observed) for _ in range(9))])
    policy: dict[str, Any] = {"hidden_sizes": (4,), "encoder": TinyEncoder}
    if "critic_hidden_sizes" in BUILT_IN[algo].policy:
        policy["critic_hidden_sizes"] = (4,)
    kind = agent_class(algo)
    agent: Any = kind(
        lambda: next(made), seed=0, num_envs=2, execution="eager", policy=policy, hyperparams=dict(settings)
    )
    agent.learn(total_timesteps=20)
    parts: list[Any] = [agent.policy.state_dict(), agent.algorithm.state_dict(), [env.taken for env in envs]]
    replay = agent._session.trainer.replay
    parts.append([replay is not None and replay._obs.allocator.folder is not None])
    agent.close()
    return torch.cat(list(_numbers(parts)))


def _numbers(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if name != "learning_rates":  # what was set is no proof that it was used
                yield from _numbers(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _numbers(value)
    elif tree is not None:
        yield torch.as_tensor(tree).detach().double().flatten()


def default_of(algo: str, key: str) -> Any:
    return getattr(load(algo).config_class(), key)


def other_value(algo: str, key: str) -> Any:
    return next(value for value in OTHER[key] if value != default_of(algo, key))


def beside(algo: str, key: str) -> dict[str, Any]:
    """The settings of both runs: small ones, and what the key needs."""
    config_class = load(algo).config_class
    stated = conditions(config_class)
    known = {field.name for field in dataclasses.fields(config_class)}
    settings = {name: value for name, value in {**SMALL, **BESIDE.get(key, {})}.items() if name in known}
    for need in stated.get(key, ()):
        assert isinstance(need, Needs)
        if " " in need.key:  # no setting, but something about the environment
            continue
        settings[need.key] = need.values[0] if need.above is None else need.above + 1
    idle: set[str] = set()
    for own in ({}, {key: other_value(algo, key)}):
        facts = {**vars(config_class()), **settings, **own}
        idle |= {name for name, needs in stated.items() if any(need.problem(facts) for need in needs)}
    return {name: value for name, value in settings.items() if name not in idle and name != key}


KEYS = [(algo, field.name) for algo in BUILT_IN for field in dataclasses.fields(load(algo).config_class)]


@pytest.mark.parametrize("algo", BUILT_IN)
def test_control_the_same_settings_give_the_same_trace(algo: str) -> None:
    settings = tuple(beside(algo, "gamma").items())
    assert torch.equal(trace(algo, settings), trace.__wrapped__(algo, settings))


@pytest.mark.parametrize(("algo", "key"), KEYS, ids=[f"{algo}-{key}" for algo, key in KEYS])
def test_every_hyperparameter_changes_something_or_is_refused(algo: str, key: str) -> None:
    assert key in OTHER, f"give {key} another value than its default in {__name__}.OTHER, so that it is tried"
    config_class, value = load(algo).config_class, other_value(algo, key)
    stated = conditions(config_class).get(key, ())
    if any(isinstance(condition, Unused) for condition in stated):
        with pytest.raises(ConfigError, match=f"{key}.*means nothing here"):
            config_class(**{key: value})
        return
    settings, observed = beside(algo, key), (key == "hindsight", key == "random_shift")
    usual = {key: SMALL[key]} if key in SMALL else {}
    one, other = (trace(algo, tuple({**settings, **own}.items()), *observed) for own in (usual, {key: value}))
    assert not (len(one) == len(other) and torch.equal(one, other)), f"{key}={value} changes nothing"


NEEDY = [
    (algo, key, need)
    for algo in BUILT_IN
    for key, needs in conditions(load(algo).config_class).items()
    for need in needs
    if isinstance(need, Needs) and need.problem(vars(load(algo).config_class()))
]


@pytest.mark.parametrize(("algo", "key", "need"), NEEDY, ids=[f"{algo}-{key}" for algo, key, _ in NEEDY])
def test_without_what_it_needs_it_is_refused(algo: str, key: str, need: Needs) -> None:
    with pytest.raises(ConfigError, match=f"'{key}': means nothing while {need.key} is"):
        load(algo).config_class(**{key: other_value(algo, key)})


@pytest.mark.parametrize(("key", "value"), [("log_std_init", -1.0), ("squash", True)])
@pytest.mark.parametrize("algo", ["ppo", "a2c", "trpo"])
def test_settings_of_continuous_actions_are_refused_for_a_choice(algo: str, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"'policy.{key}': means nothing while the action space is Discrete"):
        agent_class(algo)(lambda: Tiny(True, False), policy={key: value})
    agent_class(algo)(lambda: Tiny(False, False), policy={key: value}).close()


@pytest.mark.parametrize("algo", ["sac", "td3", "tqc", "discrete_sac", "drq_v2"])
def test_shifts_are_refused_where_there_are_no_images(algo: str) -> None:
    discrete = "Discrete" in load(algo).action_spaces
    with pytest.raises(
        ConfigError, match="'hyperparams.random_shift': means nothing while the observations is numbers"
    ):
        agent_class(algo)(lambda: Tiny(discrete), random_shift=2)


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_sizes_that_nothing_reads_are_refused(algo: str) -> None:
    sizes: dict[str, Any] = {"actor_hidden_sizes": (4,), "critic_hidden_sizes": (4,)}
    with pytest.raises(ConfigError, match="policy.hidden_sizes.*means nothing while actor_hidden_sizes and critic"):
        agent_class(algo)(lambda: Tiny(False, False), policy={**sizes, "hidden_sizes": (8, 8)})
    agent_class(algo)(lambda: Tiny(False, False), policy=sizes).close()
