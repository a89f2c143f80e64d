"""The one-file TD3 and the package compute the same: transitions, targets, losses, gradients and weights after updates."""

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

PATH = EXAMPLES / "td3_pendulum_reference.py"
TAU = 0.1
"""Larger than in the preset, so that a wrong move of the targets shows after a few updates."""


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_reference(PATH.stem)


def _twins(reference: ModuleType) -> tuple[Any, Any, torch.Generator]:
    """The package's algorithm, the reference's agent with the same weights, and a generator with the same noise."""
    algorithm = algorithm_of_preset("td3/pendulum", tau=TAU)
    agent = reference.Agent(3, 2, reference.Config())
    with torch.no_grad():
        for target in (algorithm.target_actor, algorithm.target_critics):
            for parameter in target.parameters():
                parameter += 0.01  # not the online ones
        for (_, actor, critics), (_, our_actor, ensemble) in zip(_networks(agent), _networks(algorithm), strict=True):
            for parameter, source in zip(actor.parameters(), our_actor.parameters(), strict=True):
                parameter.copy_(source)
            for member, critic in enumerate(critics):
                for parameter, source in zip(critic.parameters(), member_tensors(ensemble, member), strict=True):
                    parameter.copy_(source)
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    return algorithm, agent, generator


def _networks(learner: Any) -> list[tuple[str, Any, Any]]:
    online = getattr(learner, "policy", learner)
    return [("online", online.actor, online.critics), ("target", learner.target_actor, learner.target_critics)]


def test_transitions_losses_and_weights_are_the_same(reference: ModuleType) -> None:
    plain, ours, _ = both_replays(reference, 300)
    algorithm, agent, generator = _twins(reference)
    config = reference.Config(tau=TAU)
    for step in range(1, 7):
        batch = ours.sample(64)
        losses = reference.update(agent, same_batch(reference, plain, batch), config, generator)
        metrics = algorithm.update(batch, 0.0)
        assert ("actor_loss" in losses) == (step % 2 == 0), "every second update"
        for name, loss in losses.items():
            torch.testing.assert_close(metrics[name], loss, atol=1e-5, rtol=1e-5)
        for (name, actor, critics), (_, our_actor, ensemble) in zip(_networks(agent), _networks(algorithm)):
            tolerance = 1e-5 if name == "online" else 2e-6
            assert_same([*our_actor.parameters()], [*actor.parameters()], tolerance)
            for member, critic in enumerate(critics):
                assert_same(member_tensors(ensemble, member), [*critic.parameters()], tolerance)
    assert torch.equal(generator.get_state(), algorithm.generator.get_state())


def test_a_time_limit_bootstraps_and_an_end_does_not(reference: ModuleType) -> None:
    plain, ours, cut = both_replays(reference, 300)
    algorithm, agent, generator = _twins(reference)
    config = reference.Config(tau=TAU)
    batch = ours.sample(300)
    rows = batch.indices
    batch = rows_of(batch, cut[rows] | plain.terminated[rows])
    same = same_batch(reference, plain, batch)
    assert same.terminated.any() and not same.terminated.all()

    again = torch.Generator()
    again.set_state(generator.get_state())
    targets = reference.critic_targets(agent, same, config, generator)
    with torch.no_grad():
        noise = (0.2 * torch.randn(len(same.rewards), 2, generator=again)).clamp(-0.5, 0.5)
        actions = (agent.target_actor(same.next_obs) + noise).clamp(-1, 1)
        first, second = (reference.q_value(critic, same.next_obs, actions) for critic in agent.target_critics)
        worth = config.gamma * torch.minimum(first, second)
        errors = [reference.q_value(critic, same.obs, same.actions) - targets for critic in agent.critics]
    assert torch.equal(targets[same.terminated], same.rewards[same.terminated])
    torch.testing.assert_close((targets - same.rewards)[~same.terminated], worth[~same.terminated], atol=1e-5, rtol=0)
    assert (targets - same.rewards)[~same.terminated].abs().min() > 1e-3
    algorithm.update(batch, 0.0)
    torch.testing.assert_close(algorithm.priorities(), torch.stack(errors).abs().mean(dim=0), atol=1e-5, rtol=1e-5)


def test_exploration_is_the_same(reference: ModuleType) -> None:
    algorithm, agent, _ = _twins(reference)
    with torch.no_grad():
        agent.actor[-2].bias += torch.tensor([3.0, 0.0])  # near the bound, where noise is cut off
        algorithm.policy.actor.network[-1].bias += torch.tensor([3.0, 0.0])
    obs = torch.randn(1, 3, generator=torch.Generator().manual_seed(0))
    noise, ours = (torch.Generator().manual_seed(1) for _ in range(2))
    explorer = algorithm.make_explorer()
    acted = [explorer.act(obs, None, generator=ours, progress=0.0)[0].clone() for _ in range(50)]
    actions = [one[0] for one in acted]
    same = [torch.from_numpy(reference.act(agent, obs[0], 0.1, noise)) for _ in range(50)]
    assert_same(actions, same, 1e-6)
    assert torch.stack(actions).amax(dim=0)[0] == 1 and torch.stack(actions).std(dim=0)[1] > 0.05


def test_defaults_are_those_of_the_preset(reference: ModuleType) -> None:
    preset, hyperparams = complete_config(resolve("td3/pendulum").config)
    config = reference.Config()
    for name in (
        *("learning_rate", "batch_size", "buffer_size", "learning_starts", "gamma", "tau", "policy_delay"),
        *("exploration_noise", "target_noise", "target_noise_clip"),
    ):
        assert getattr(config, name) == getattr(hyperparams, name), name
    assert (preset.env_id, preset.total_timesteps, preset.num_envs) == (config.env_id, config.total_timesteps, 1)
    assert preset.policy.hidden_sizes == (config.hidden_size, config.hidden_size)
    # What the reference has no setting for.
    assert (hyperparams.train_frequency, hyperparams.gradient_steps, hyperparams.num_critics) == (1, 1, 2)
    assert (hyperparams.action_noise, hyperparams.max_grad_norm) == ("gaussian", None)
    assert preset.policy.activation == "relu" and not preset.policy.orthogonal_init


def test_ddpg_preset_is_that_of_td3_without_its_additions() -> None:
    td3, ddpg = (complete_config(resolve(f"{algo}/pendulum").config)[1] for algo in ("td3", "ddpg"))
    changed = {name for name, value in vars(td3).items() if getattr(ddpg, name) != value}
    assert changed == {"num_critics", "policy_delay", "target_noise"}
    assert (ddpg.num_critics, ddpg.policy_delay, ddpg.target_noise) == (1, 1, 0.0)


def test_the_loop_remembers_what_happened_and_learns_from_it(
    reference: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = reference.Config(total_timesteps=420, learning_starts=300, batch_size=16, hidden_size=16)
    agent, replay, updates = run_loop(reference, monkeypatch, config)
    assert_is_what_happened(replay, 420)
    assert replay.actions[:300].std() == pytest.approx(1 / 3**0.5, abs=0.05), "uniform"
    assert len(updates) == agent.updates == 420 - 299
    assert sum("actor_loss" in losses for losses in updates) == 60
    assert all(torch.isfinite(value) for losses in updates for value in losses.values())


def test_it_is_short_and_needs_only_three_packages() -> None:
    source = PATH.read_text()
    assert len(source.splitlines()) <= 260
    assert packages_of(source) == {"torch", "numpy", "gymnasium"}


def test_it_runs() -> None:
    command = [sys.executable, str(PATH), "--total-timesteps", "1020"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "step   1,000" in result.stdout and "evaluation return" in result.stdout
