"""The one-file SAC and the package compute the same: transitions, targets, losses, gradients and weights after updates."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from helpers.ensembles import member_tensors
from helpers.references import (
    EXAMPLES,
    algorithm_of_preset,
    assert_is_what_happened,
    assert_same,
    both_replays,
    load_reference,
    packages_of,
    rows_of,
    run_loop,
    same_batch,
)
from rl_training.experiment.config.loader import resolve
from rl_training.experiment.run.build import complete_config

PATH = EXAMPLES / "sac_pendulum_reference.py"
TAU = 0.1
"""Larger than in the preset, so that a wrong move of the targets shows after a few updates."""


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_reference(PATH.stem)


def _twins(reference: ModuleType) -> tuple[Any, Any, torch.Generator]:
    """The package's algorithm, the reference's agent with the same weights, and a generator with the same noise."""
    algorithm = algorithm_of_preset("sac/pendulum", tau=TAU)
    agent = reference.Agent(3, 2, reference.Config())
    with torch.no_grad():
        for parameter in algorithm.target_critics.parameters():
            parameter += 0.01  # not the online ones
        for parameter, source in zip(agent.actor.parameters(), algorithm.policy.actor.parameters(), strict=True):
            parameter.copy_(source)
        for critics, ensemble in (
            (agent.critics, algorithm.policy.critics),
            (agent.target_critics, algorithm.target_critics),
        ):
            for member, critic in enumerate(critics):
                for parameter, source in zip(critic.parameters(), member_tensors(ensemble, member), strict=True):
                    parameter.copy_(source)
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    return algorithm, agent, generator


def test_transitions_losses_and_weights_are_the_same(reference: ModuleType) -> None:
    plain, ours, _ = both_replays(reference, 300)
    algorithm, agent, generator = _twins(reference)
    config = reference.Config(tau=TAU)
    for _ in range(5):
        batch = ours.sample(64)
        losses = reference.update(agent, same_batch(reference, plain, batch), config, generator)
        metrics = algorithm.update(batch, 0.0)
        for name, loss in losses.items():
            torch.testing.assert_close(metrics[name], loss, atol=1e-5, rtol=1e-5)
        temperature = algorithm.temperature.log_alpha
        assert_same([*algorithm.policy.actor.parameters()], [*agent.actor.parameters()], 1e-5)
        assert_same([temperature], [agent.log_alpha], 1e-5)
        for member, critic in enumerate(agent.critics):
            assert_same(member_tensors(algorithm.policy.critics, member), [*critic.parameters()], 1e-5)
        for member, critic in enumerate(agent.target_critics):
            assert_same(member_tensors(algorithm.target_critics, member), [*critic.parameters()], 2e-6)
    assert torch.equal(generator.get_state(), algorithm.generator.get_state())


def test_a_time_limit_bootstraps_and_an_end_does_not(reference: ModuleType) -> None:
    plain, ours, cut = both_replays(reference, 300)
    algorithm, agent, generator = _twins(reference)
    config = reference.Config(tau=TAU)
    batch = ours.sample(300)
    rows = batch.indices
    ended = cut[rows] | plain.terminated[rows]
    batch = rows_of(batch, ended)
    same = same_batch(reference, plain, batch)
    assert same.terminated.any() and not same.terminated.all()

    again = torch.Generator()
    again.set_state(generator.get_state())
    targets = reference.critic_targets(agent, same, config, generator)
    with torch.no_grad():
        actions, log_probs = reference.sample_actions(agent.actor, same.next_obs, again)
        q = reference.q_values(agent.target_critics, same.next_obs, actions).amin(dim=0)
        worth = config.gamma * (q - log_probs)  # α = 1
        errors = (reference.q_values(agent.critics, same.obs, same.actions) - targets).abs().mean(dim=0)
    assert torch.equal(targets[same.terminated], same.rewards[same.terminated])
    torch.testing.assert_close((targets - same.rewards)[~same.terminated], worth[~same.terminated], atol=1e-5, rtol=0)
    assert (targets - same.rewards)[~same.terminated].abs().min() > 1e-3
    algorithm.update(batch, 0.0)
    torch.testing.assert_close(algorithm.priorities(), errors, atol=1e-5, rtol=1e-5)


def test_defaults_are_those_of_the_preset(reference: ModuleType) -> None:
    preset, hyperparams = complete_config(resolve("sac/pendulum").config)
    config = reference.Config()
    for name in ("learning_rate", "batch_size", "buffer_size", "learning_starts", "gamma", "tau"):
        assert getattr(config, name) == getattr(hyperparams, name), name
    assert (preset.env_id, preset.total_timesteps, preset.num_envs) == (config.env_id, config.total_timesteps, 1)
    assert preset.policy.hidden_sizes == (config.hidden_size, config.hidden_size)
    # What the reference has no setting for.
    assert (hyperparams.train_frequency, hyperparams.gradient_steps, hyperparams.policy_delay) == (1, 1, 1)
    assert (hyperparams.num_critics, hyperparams.ent_coef, hyperparams.max_grad_norm) == (2, "auto", None)
    assert preset.policy.activation == "relu" and not preset.policy.orthogonal_init


def test_the_loop_remembers_what_happened_and_learns_from_it(
    reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = reference.Config(total_timesteps=420, learning_starts=300, batch_size=16, hidden_size=16)
    agent, replay, updates = run_loop(reference, monkeypatch, config)
    assert_is_what_happened(replay, 420)
    assert replay.actions[:300].std() == pytest.approx(1 / 3**0.5, abs=0.05), "uniform"
    assert len(updates) == 420 - 299
    assert all(torch.isfinite(value) for losses in updates for value in losses.values())
    assert agent.alpha != 1


def test_it_is_short_and_needs_only_three_packages() -> None:
    source = PATH.read_text()
    assert len(source.splitlines()) <= 260
    assert packages_of(source) == {"torch", "numpy", "gymnasium"}


def test_it_runs() -> None:
    command = [sys.executable, str(PATH), "--total-timesteps", "1020"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "step   1,000" in result.stdout and "evaluation return" in result.stdout
