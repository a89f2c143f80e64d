"""The one-file recurrent PPO and the package compute the same: rollouts, states, advantages, losses and weights after updates."""

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

REFERENCE = EXAMPLES / "recurrent_ppo_reference.py"
SEED = 5
TOLERANCE = 5e-6
RUN_SETTINGS = ("env_id", "seed", "total_timesteps", "num_envs", "eval_episodes")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def package_hyperparams(settings: Any) -> dict[str, Any]:
    """The reference's settings under the package's names."""
    values = {name: value for name, value in dataclasses.asdict(settings).items() if name not in RUN_SETTINGS}
    return {**values, "learning_rate": {"start": settings.learning_rate, "end": 0.0}}


def as_reference(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The package's weights under the reference's names; hidden layers are 0 and 2 of a body in both."""
    names = {
        "actor_core": "actor.core",
        "critic_core": "critic.core",
        "actor_body": "actor.body",
        "critic_body": "critic.body",
        "action_head.linear": "actor.body.4",
        "value_head": "critic.body.4",
    }
    renamed = {}
    for name, value in weights.items():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        renamed[names[prefix] + name.removeprefix(prefix).removesuffix("_l0")] = value.clone()
    return renamed


def close(ours: Tensor, theirs: Tensor, name: str, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=1e-5, msg=lambda text: f"{name}: {text}")


# A time limit of 15 steps makes most episodes end by truncation, the rest by termination.
@pytest.mark.parametrize("max_episode_steps", [None, 15])
@pytest.mark.parametrize("sequence_length", [8, 32])
def test_rollouts_and_updates_are_the_same(sequence_length: int, max_episode_steps: int | None) -> None:
    reference = load_reference(REFERENCE.stem)
    settings = reference.Config(num_steps=32, sequence_length=sequence_length, update_epochs=3, ent_coef=0.02)
    config, hyperparams = complete_config(
        TrainConfig(
            algo="recurrent_ppo",
            env_id=settings.env_id,
            seed=SEED,
            total_timesteps=settings.total_timesteps,
            num_envs=settings.num_envs,
            device="cpu",
            env={  # type: ignore[arg-type]
                "max_episode_steps": max_episode_steps,
                "wrappers": [{"name": "SelectObservations", "indices": reference.VISIBLE}],
            },
            policy={"hidden_sizes": (64, 64), "activation": "tanh", "orthogonal_init": True},  # type: ignore[arg-type]
            hyperparams=package_hyperparams(settings),
        )
    )
    envs: Any = EnvSource().training_envs(config)
    spaces = envs.single_observation_space, envs.single_action_space
    algorithm: Any = build_algorithm(config, hyperparams, *spaces, torch.device("cpu"))
    collector: Any = build_trainer(config, algorithm, envs, EnvSource(), (), Path()).collector  # type: ignore[attr-defined]

    env_seed = derive_seed(SEED, "training envs")
    reference_envs = reference.Envs(
        settings, [derive_seed(env_seed, "env", index) for index in range(settings.num_envs)]
    )
    if max_episode_steps is not None:
        for env in reference_envs.vector.envs:
            time_limit(env)._max_episode_steps = max_episode_steps
    policy = reference.make_policy(reference_envs, settings)
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
        close(ours.initial_state.squeeze(2), theirs.initial_state, "initial state")
        assert bool((ours.initial_state != 0).any()) == (turn > 0)
        expected = reference.estimates(policy, theirs, settings)
        metrics = algorithm.update(ours, 0.25)
        expected_metrics = reference.update(policy, optimizer, theirs, settings, 0.25, update_generator)
        for name in ("values", "advantages", "returns"):
            close(getattr(ours, name), getattr(expected, name), name, 10 * TOLERANCE)
        close(ours.logprobs, expected.log_probs, "log-probabilities")
        close(ours.states[:-1].squeeze(3), expected.states, "states")
        for name, value in as_reference(algorithm.policy.state_dict()).items():
            close(value, policy.state_dict()[name], f"{name} after update {turn}")
        for name, value in expected_metrics.items():
            ours_name = "entropy_loss" if name == "entropy" else name
            assert value == pytest.approx(float(metrics[ours_name]), abs=1e-4, rel=1e-3), name
        # From the same weights into the next rollout, or rounding would choose another action some day.
        policy.load_state_dict(as_reference(algorithm.policy.state_dict()))
    assert theirs.ended.any() and (max_episode_steps is None or ours.truncated.any())
    for name, value in policy.state_dict().items():
        assert (before[name] - value).abs().max() > 20 * TOLERANCE, f"{name} did not learn: nothing was compared"
    envs.close()


def time_limit(env: Any) -> Any:
    while not hasattr(env, "_max_episode_steps"):
        env = env.env
    return env


def test_the_comparison_notices_a_memory_that_is_kept_too_long() -> None:
    """Negative control: bootstraps that forget, or starts that do not, move the advantages by far more than the tolerance."""
    reference = load_reference(REFERENCE.stem)
    settings = reference.Config(num_steps=64)
    torch.manual_seed(0)
    envs = reference.Envs(settings, 0)
    policy = reference.make_policy(envs, settings)
    rollout = envs.collect(policy, settings.num_steps, torch.Generator().manual_seed(0))
    right = reference.estimates(policy, rollout, settings)
    assert rollout.ended.any()
    wrong = reference.estimates(policy, dataclasses.replace(rollout, ended=torch.zeros_like(rollout.ended)), settings)
    assert (right.values - wrong.values).abs().max() > 100 * TOLERANCE


def test_it_is_short_and_needs_only_three_packages() -> None:
    source = REFERENCE.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 320
    assert packages_of(source) == {"torch", "numpy", "gymnasium"}


def test_it_runs() -> None:
    printed = run_script(REFERENCE, "--total-timesteps", "256", "--num-steps", "32", "--eval-episodes", "2")
    assert printed.splitlines()[-1].startswith("evaluation: mean return ")
