"""The one-file A2C and TRPO and the package compute the same: rollouts, advantages, losses and weights after updates."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.references import EXAMPLES, load_reference, packages_of, run_script
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import build_algorithm, build_trainer, complete_config
from rl_training.experiment.run.env_source import EnvSource
from rl_training.utils.seeding import derive_seed

SEED = 5
SETTINGS: dict[str, dict[str, Any]] = {
    "a2c": {"ent_coef": 0.05, "num_steps": 16, "learning_rate": 0.2, "max_grad_norm": 5.0},
    "trpo": {"num_steps": 64},
}
TOLERANCE = {"a2c": 2e-6, "trpo": 2e-4}
"""TRPO solves a system of equations in float32, in which the order of the sums shows."""
RUN_SETTINGS = ("env_id", "seed", "total_timesteps", "num_envs", "eval_episodes")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def path_of(algo: str) -> Path:
    return EXAMPLES / f"{algo}_cartpole_reference.py"


def package_hyperparams(settings: Any) -> dict[str, Any]:
    """The reference's settings under the package's names."""
    values = {name: value for name, value in dataclasses.asdict(settings).items() if name not in RUN_SETTINGS}
    if "learning_rate" in values:
        values |= {"learning_rate": {"start": settings.learning_rate, "end": 0.0}, "optimizer": "rmsprop"}
    return values


def as_reference(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The package's weights under the reference's names; hidden layers are 0 and 2 of a body in both."""
    names = {"actor_body": "actor", "critic_body": "critic", "action_head.linear": "actor.4", "value_head": "critic.4"}
    renamed = {}
    for name, value in weights.items():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        renamed[names[prefix] + name.removeprefix(prefix)] = value.clone()
    return renamed


def close(ours: Tensor, theirs: Tensor, name: str, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=1e-5, msg=lambda text: f"{name}: {text}")


# A time limit of 15 steps makes most episodes end by truncation, the rest by termination.
@pytest.mark.parametrize("max_episode_steps", [None, 15])
@pytest.mark.parametrize("algo", SETTINGS)
def test_rollouts_and_updates_are_the_same(algo: str, max_episode_steps: int | None) -> None:
    reference = load_reference(path_of(algo).stem)
    settings = reference.Config(**SETTINGS[algo])
    config, hyperparams = complete_config(
        TrainConfig(
            algo=algo,
            env_id=settings.env_id,
            seed=SEED,
            total_timesteps=settings.total_timesteps,
            num_envs=settings.num_envs,
            device="cpu",
            env={"max_episode_steps": max_episode_steps},  # type: ignore[arg-type]
            policy={"hidden_sizes": (64, 64), "activation": "tanh", "orthogonal_init": True},  # type: ignore[arg-type]
            hyperparams=package_hyperparams(settings),
        )
    )
    envs: Any = EnvSource().training_envs(config)
    spaces = envs.single_observation_space, envs.single_action_space
    algorithm: Any = build_algorithm(config, hyperparams, *spaces, torch.device("cpu"))
    collector: Any = build_trainer(config, algorithm, envs, EnvSource(), (), Path()).collector  # type: ignore[attr-defined]

    env_seed = derive_seed(SEED, "training envs")
    seeds = [derive_seed(env_seed, "env", index) for index in range(settings.num_envs)]
    reference_envs = reference.Envs(settings.env_id, settings.num_envs, seeds)
    if max_episode_steps is not None:
        for env in reference_envs.vector.envs:
            while not hasattr(env, "_max_episode_steps"):
                env = env.env
            env._max_episode_steps = max_episode_steps
    policy = reference.make_policy(reference_envs)
    policy.load_state_dict(as_reference(algorithm.policy.state_dict()))
    optimizer = reference.make_optimizer(policy, settings)
    action_generator, update_generator = torch.Generator(), torch.Generator()
    action_generator.set_state(collector.generator.get_state())
    update_generator.set_state(algorithm.generator.get_state())

    collector.reset()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    for turn in range(3):
        ours, _ = collector.collect()
        theirs = reference_envs.collect(policy, settings.num_steps, action_generator)
        for name, part in (("obs", theirs.obs), ("actions", theirs.actions), ("rewards", theirs.rewards)):
            assert torch.equal(getattr(ours, name), part), f"{name} of rollout {turn}"
        assert torch.equal(ours.dones, theirs.ended) and torch.equal(ours.dones & ~ours.truncated, theirs.terminated)
        _, advantages, returns = reference.advantages_and_returns(policy, theirs, settings)
        metrics = algorithm.update(ours, 0.25)
        if algo == "a2c":
            expected = reference.update(policy, optimizer, theirs, settings, 0.25)
        else:
            # The package shuffles the steps before it takes all of them.
            torch.randperm(settings.num_steps * settings.num_envs, generator=update_generator)
            expected = reference.update(policy, optimizer, theirs, settings, update_generator)
            assert expected["step_fraction"] > 0
        close(ours.advantages, advantages, "advantages", 10 * TOLERANCE[algo])
        close(ours.returns, returns, "returns", 10 * TOLERANCE[algo])
        for name, value in as_reference(algorithm.policy.state_dict()).items():
            close(value, policy.state_dict()[name], f"{name} after update {turn}", TOLERANCE[algo])
        for name, value in expected.items():
            ours_name = "entropy_loss" if name == "entropy" else name
            assert value == pytest.approx(float(metrics[ours_name]), abs=1e-4, rel=1e-3), name
        # From the same weights into the next rollout, or rounding would choose another action some day.
        policy.load_state_dict(as_reference(algorithm.policy.state_dict()))
    assert theirs.ended.any() and (max_episode_steps is None or ours.truncated.any())
    for name, value in policy.state_dict().items():
        moved = (before[name] - value).abs().max()
        assert moved > 20 * TOLERANCE[algo], f"{name} did not learn: nothing was compared"
    envs.close()


def test_a_step_out_of_the_trust_region_is_shortened() -> None:
    reference = load_reference(path_of("trpo").stem)
    settings = reference.Config(target_kl=0.05, cg_damping=1e-4, num_steps=32)
    torch.manual_seed(0)
    envs = reference.Envs(settings.env_id, settings.num_envs, 0)
    policy = reference.make_policy(envs)
    rollout = envs.collect(policy, settings.num_steps, torch.Generator().manual_seed(0))
    _, advantages, _ = reference.advantages_and_returns(policy, rollout, settings)
    obs, actions = rollout.obs.flatten(0, 1), rollout.actions.flatten().unsqueeze(-1)
    metrics = reference.policy_step(policy, obs, actions, advantages.flatten(), settings)
    assert 0 < metrics["step_fraction"] < 1 and 0 < metrics["kl"] <= settings.target_kl


@pytest.mark.parametrize("algo", SETTINGS)
def test_it_is_short_and_needs_only_three_packages(algo: str) -> None:
    source = path_of(algo).read_text()
    assert len(source.splitlines()) <= 310
    assert packages_of(source) == {"torch", "numpy", "gymnasium"}


@pytest.mark.parametrize("algo", SETTINGS)
def test_it_runs(algo: str) -> None:
    printed = run_script(path_of(algo), "--total-timesteps", "256", "--eval-episodes", "2")
    assert printed.splitlines()[-1].startswith("evaluation: mean return ")
