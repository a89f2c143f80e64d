"""The one-file TQC, REDQ, CrossQ and discrete SAC and the package compute the same: losses and weights after updates."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.ensembles import member_tensors
from helpers.references import (
    ACTION_SPACE,
    EXAMPLES,
    OBS_SPACE,
    assert_is_what_happened,
    assert_same,
    both_replays,
    load_reference,
    packages_of,
    run_loop,
    run_script,
    same_batch,
)
from rl_training.api.agent import agent_class
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.experiment.registry import load
from rl_training.policies.batch_renorm import BatchRenorm
from rl_training.policies.policy_config import PolicyConfig

TAU = 0.1
"""Larger than usual, so that a wrong move of the targets shows after a few updates."""
EPS = 1e-3
"""Likewise: with Adam's usual ε, a gradient of 0, such as that of a bias before a batch normalisation, makes steps of rounding."""
CONTINUOUS = ("tqc", "redq", "crossq")
SETTINGS: dict[str, dict[str, Any]] = {
    "tqc": {"tau": TAU},
    "redq": {"tau": TAU},
    # Small networks and a short warm-up, so that the running statistics take part.
    "crossq": {"renorm_warmup": 2, "renorm_momentum": 0.8},
    "discrete_sac": {"tau": TAU},
}
OURS = {"updates_per_step": "gradient_steps", "initial_alpha": "initial_ent_coef"}
"""Where the package has another name."""
SCRIPTS = {algo: f"{algo}_{'cartpole' if algo == 'discrete_sac' else 'pendulum'}_reference" for algo in SETTINGS}


def path_of(algo: str) -> Path:
    return EXAMPLES / f"{SCRIPTS[algo]}.py"


def settings_of(algo: str, config: Any) -> dict[str, Any]:
    """A reference's settings under the package's names."""
    values = dataclasses.asdict(config)
    for name in ("env_id", "seed", "total_timesteps", "hidden_size"):
        del values[name]
    return {OURS.get(name, name): value for name, value in values.items()}


def twins(algo: str, reference: ModuleType, config: Any) -> tuple[Any, Any, torch.Generator]:
    """The package's algorithm, the reference's agent with the same weights, and a generator with the same noise."""
    rule = load(algo)
    spaces = (OBS_SPACE, gym.spaces.Discrete(3) if algo == "discrete_sac" else ACTION_SPACE)
    sizes = (config.hidden_size, config.hidden_size)
    policy = PolicyConfig(hidden_sizes=sizes, activation="relu", orthogonal_init=False)
    algorithm = rule(*spaces, rule.config_class(**settings_of(algo, config), adam_eps=EPS), policy)
    agent = reference.Agent(3, 3 if algo == "discrete_sac" else 2, config)
    for optimizer in (agent.actor_optimizer, agent.critic_optimizer, agent.alpha_optimizer):
        optimizer.param_groups[0]["eps"] = EPS
    with torch.no_grad():
        if algorithm.target_critics is not None:
            for parameter in algorithm.target_critics.parameters():
                parameter += 0.01  # not the online ones
        for ours, theirs in pairs(algo, algorithm, agent):
            assert len(ours) == len(theirs)
            for source, parameter in zip(ours, theirs):
                parameter.copy_(source)
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    return algorithm, agent, generator


def pairs(algo: str, algorithm: Any, agent: Any) -> list[tuple[list[Tensor], list[Tensor]]]:
    """What must be the same: actor, each critic and its target, with their normalisations."""
    found = [(weights(algorithm.policy.actor), weights(agent.actor))]
    ensembles = [(algorithm.policy.critics, agent.critics)]
    if algorithm.target_critics is not None:
        ensembles.append((algorithm.target_critics, agent.target_critics))
    for ensemble, critics in ensembles:
        for member, critic in enumerate(critics):
            ours = member_tensors(ensemble, member)
            for norm in ensemble.input_norms:
                ours += [part[member].squeeze(0) for part in renorm_parts(norm)]
            found.append((ours, weights(critic)))
    return found


def weights(network: Any) -> list[Tensor]:
    """Linear layers in order, then the normalisations in order."""
    modules = list(network.modules())
    layers = [module for module in modules if isinstance(module, torch.nn.Linear)]
    norms = [module for module in modules if type(module).__name__ == "BatchRenorm"]
    tensors = [tensor for layer in layers for tensor in (layer.weight.data, layer.bias.data)]
    return tensors + [part.squeeze(0) for norm in norms for part in renorm_parts(norm)]


def renorm_parts(norm: Any) -> list[Tensor]:
    if isinstance(norm, BatchRenorm):
        return [norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var]
    return [norm.scale.data, norm.shift.data, norm.mean, norm.var]


def compare(algo: str, reference: ModuleType, batches: list[tuple[TransitionBatch, Any]]) -> None:
    config = dataclasses.replace(reference.Config(hidden_size=32), **SETTINGS[algo])
    algorithm, agent, generator = twins(algo, reference, config)
    delay = algorithm.policy_delay
    for turn, (ours, theirs) in enumerate(batches, start=1):
        more = [] if algo == "discrete_sac" else [generator]
        more += [turn % delay == 0] if algo in ("redq", "crossq") else []
        losses = reference.update(agent, theirs, config, *more)
        metrics = algorithm.update(ours, 0.0)
        assert set(losses) == {"critic_loss", "actor_loss", "entropy"} or turn % delay
        for name, loss in losses.items():
            torch.testing.assert_close(metrics[name], loss, atol=2e-5, rtol=1e-5)
        for mine, other in pairs(algo, algorithm, agent):
            assert_same(mine, other, 2e-5)
        assert_same([algorithm.temperature.log_alpha], [agent.log_alpha], 1e-5)
    assert agent.log_alpha != 0 and len(batches) >= 2 * delay
    assert torch.equal(generator.get_state(), algorithm.generator.get_state())


@pytest.mark.parametrize("algo", CONTINUOUS)
def test_losses_and_weights_are_the_same(algo: str) -> None:
    reference = load_reference(SCRIPTS[algo])
    plain, ours, _ = both_replays(reference, 300)
    sampled = [ours.sample(64) for _ in range(6)]
    compare(algo, reference, [(batch, same_batch(reference, plain, batch)) for batch in sampled])


def test_losses_and_weights_are_the_same_for_discrete_actions() -> None:
    reference, rng = load_reference(SCRIPTS["discrete_sac"]), np.random.default_rng(0)
    config, batches = reference.Config(), []
    for _ in range(5):
        obs, next_obs = (torch.from_numpy(rng.normal(size=(64, 3)).astype(np.float32)) for _ in range(2))
        rewards = torch.from_numpy(rng.normal(size=64).astype(np.float32))
        actions, ended = torch.from_numpy(rng.integers(3, size=64)), torch.from_numpy(rng.random(64) < 0.2)
        theirs = reference.Batch(obs, actions, rewards, next_obs, ended)
        discounts, ones = config.gamma * (~ended).float(), torch.ones(64)
        # The replay has scaled the rewards of the package's batches.
        scaled = config.reward_scale * rewards
        batches.append((TransitionBatch(obs, actions, scaled, next_obs, discounts, ones, np.arange(64)), theirs))
    compare("discrete_sac", reference, batches)


@pytest.mark.parametrize("algo", CONTINUOUS)
def test_the_loop_remembers_what_happened_and_learns_from_it(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = load_reference(SCRIPTS[algo])
    config = reference.Config(total_timesteps=420, learning_starts=360, batch_size=16, hidden_size=16)
    _, replay, updates = run_loop(reference, monkeypatch, config)
    assert_is_what_happened(replay, 420)
    per_step = getattr(config, "updates_per_step", 1)
    assert len(updates) == per_step * (420 - 359)
    moved = [losses for losses in updates if "actor_loss" in losses]
    assert len(moved) == (len(updates) if algo == "tqc" else len(updates) // 3)
    assert all(torch.isfinite(value) for losses in updates for value in losses.values())


def test_the_loop_of_discrete_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = load_reference(SCRIPTS["discrete_sac"])
    config = reference.Config(total_timesteps=240, learning_starts=200, batch_size=16, hidden_size=16)
    _, replay, updates = run_loop(reference, monkeypatch, config)
    env = gym.make("CartPole-v1")
    obs, _ = env.reset(seed=0)
    for row in range(240):
        assert np.array_equal(replay.obs[row], obs), row
        obs, _, terminated, truncated, _ = env.step(int(replay.actions[row]))
        assert np.array_equal(replay.next_obs[row], obs) and replay.terminated[row] == terminated, row
        obs = env.reset()[0] if terminated or truncated else obs
    assert replay.terminated.any() and len(updates) == 2 * 11


@pytest.mark.parametrize("algo", SETTINGS)
def test_its_settings_are_settings_of_the_package(algo: str) -> None:
    reference = load_reference(SCRIPTS[algo])
    kind = agent_class(algo)
    agent = kind(reference.Config.env_id, **settings_of(algo, reference.Config()))
    agent.close()


@pytest.mark.parametrize("algo", SETTINGS)
def test_it_is_short_and_needs_only_three_packages(algo: str) -> None:
    source = path_of(algo).read_text()
    assert len(source.splitlines()) <= 310
    assert packages_of(source) == {"torch", "numpy", "gymnasium"}


@pytest.mark.parametrize("algo", SETTINGS)
def test_it_runs(algo: str) -> None:
    printed = run_script(path_of(algo), "--total-timesteps", "1004")
    assert "step   1,000" in printed and "evaluation return" in printed
