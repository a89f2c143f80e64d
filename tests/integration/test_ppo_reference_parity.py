"""examples/ppo_cartpole_reference.py and the package's PPO are the same algorithm: one rollout, one update, the same tensors."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.experiment.config.loader import resolve
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import build_algorithm, build_trainer, complete_config
from rl_training.experiment.run.env_source import EnvSource
from rl_training.runtime.trainer import OnPolicyTrainer
from rl_training.utils.seeding import derive_seed

REFERENCE = Path(__file__).parents[2] / "examples" / "ppo_cartpole_reference.py"
ATOL = 1e-6
SEED = 5


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_cartpole_reference", REFERENCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# A time limit of 15 steps makes most episodes end by truncation, the rest by termination.
@pytest.mark.parametrize("max_episode_steps", [None, 15])
@pytest.mark.parametrize("ent_coef", [0.0, 0.05])
@pytest.mark.parametrize("clip_value_loss", [True, False])
def test_one_rollout_and_update_are_the_same(
    reference: ModuleType, max_episode_steps: int | None, ent_coef: float, clip_value_loss: bool
) -> None:
    settings = reference.Config(ent_coef=ent_coef, clip_value_loss=clip_value_loss, num_steps=64)
    total, progress_steps = settings.total_timesteps, 20_000
    config, hyperparams = complete_config(
        TrainConfig(
            algo="ppo",
            env_id=settings.env_id,
            seed=SEED,
            total_timesteps=total,
            num_envs=settings.num_envs,
            device="cpu",
            env={"max_episode_steps": max_episode_steps},  # type: ignore[arg-type]
            hyperparams=_package_hyperparams(settings),
        )
    )
    package_envs = EnvSource().training_envs(config)
    algorithm = build_algorithm(
        config,
        hyperparams,
        package_envs.single_observation_space,
        package_envs.single_action_space,
        torch.device("cpu"),
    )
    assert isinstance(algorithm, PPOAlgorithm)
    trainer = build_trainer(config, algorithm, package_envs, EnvSource(), (), Path())
    assert isinstance(trainer, OnPolicyTrainer)
    collector = trainer.collector

    env_seed = derive_seed(SEED, "training envs")
    reference_envs = reference.Envs(
        settings.env_id, settings.num_envs, [derive_seed(env_seed, "env", index) for index in range(settings.num_envs)]
    )
    if max_episode_steps is not None:
        for env in reference_envs.vector.envs:
            _time_limit(env)._max_episode_steps = max_episode_steps
    policy = reference.make_policy(reference_envs)
    policy.load_state_dict(_as_reference(algorithm.policy.state_dict()))
    optimizer = reference.make_optimizer(policy, settings)
    action_generator, update_generator = torch.Generator(), torch.Generator()
    action_generator.set_state(collector.generator.get_state())
    update_generator.set_state(algorithm.generator.get_state())

    collector.reset()
    ours, _ = collector.collect()
    theirs = reference_envs.collect(policy, settings.num_steps, action_generator)
    assert torch.equal(ours.obs, theirs.obs)
    assert torch.equal(ours.actions, theirs.actions)
    assert torch.equal(ours.rewards, theirs.rewards)
    assert torch.equal(ours.dones, theirs.ended)
    assert torch.equal(ours.dones & ~ours.truncated, theirs.terminated)
    assert theirs.ended.any() and ours.actions.unique().tolist() == [0, 1]
    assert bool(ours.truncated.any()) == (max_episode_steps is not None)

    before = {name: value.clone() for name, value in policy.state_dict().items()}
    values, advantages, returns = reference.advantages_and_returns(policy, theirs, settings)
    metrics = algorithm.update(ours, progress_steps / total)
    expected_metrics = reference.update(policy, optimizer, theirs, settings, progress_steps / total, update_generator)
    _assert_close(ours.values, values, "values")
    _assert_close(ours.advantages, advantages, "advantages")
    _assert_close(ours.returns, returns, "returns")
    weights = _as_reference(algorithm.policy.state_dict())
    assert weights.keys() == policy.state_dict().keys()
    for name, value in policy.state_dict().items():
        _assert_close(weights[name], value, name)
        assert not torch.allclose(before[name], value, atol=100 * ATOL), f"{name} did not learn: nothing was compared"
    for name, ours_name in [("policy_loss", "policy_loss"), ("entropy", "entropy_loss"), ("approx_kl", "approx_kl")]:
        assert expected_metrics[name] == pytest.approx(float(metrics[ours_name]), abs=1e-5)
    package_envs.close()


def test_the_comparison_notices_a_wrong_bootstrap(reference: ModuleType) -> None:
    """Negative control: treating the time limit as a terminal state moves the advantages by far more than the tolerance."""
    settings = reference.Config(num_steps=32)
    envs = reference.Envs(settings.env_id, settings.num_envs, 0)
    for env in envs.vector.envs:
        _time_limit(env)._max_episode_steps = 6
    torch.manual_seed(0)
    policy = reference.make_policy(envs)
    rollout = envs.collect(policy, settings.num_steps, torch.Generator().manual_seed(0))
    _, right, _ = reference.advantages_and_returns(policy, rollout, settings)
    rollout.terminated = rollout.ended
    _, wrong, _ = reference.advantages_and_returns(policy, rollout, settings)
    assert (right - wrong).abs().max() > 100 * ATOL


def test_defaults_are_those_of_the_preset(reference: ModuleType) -> None:
    preset, hyperparams = complete_config(resolve("ppo/cartpole").config)
    settings = reference.Config()
    assert (settings.env_id, settings.total_timesteps, settings.num_envs) == (
        preset.env_id,
        preset.total_timesteps,
        preset.num_envs,
    )
    expected = PPOAlgorithm.config_class(**_package_hyperparams(settings))
    assert hyperparams == expected


def test_the_file_is_short_and_stands_alone() -> None:
    source = REFERENCE.read_text(encoding="utf-8")
    assert len(source.splitlines()) < 250
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None
            imported.add(node.module.split(".")[0])
    assert imported - set(sys.stdlib_module_names) == {"torch", "numpy", "gymnasium"}


def test_it_runs_as_a_script() -> None:
    command = [sys.executable, str(REFERENCE), "--total-timesteps", "256", "--num-steps", "32", "--eval-episodes", "2"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["step", "256"]
    assert lines[-1].startswith("evaluation: mean return ") and lines[-1].endswith("2 episodes")


def _package_hyperparams(settings: Any) -> dict[str, Any]:
    """The reference's settings under the package's names."""
    values = dataclasses.asdict(settings)
    for name in ("env_id", "seed", "total_timesteps", "num_envs", "eval_episodes"):
        del values[name]
    return {**values, "learning_rate": {"start": settings.learning_rate, "end": 0.0}}


def _as_reference(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The package's weights under the reference's names; hidden layers are 0 and 2 of a body in both."""
    names = {"actor_body": "actor", "critic_body": "critic", "action_head.linear": "actor.4", "value_head": "critic.4"}
    renamed = {}
    for name, value in weights.items():
        prefix = next(prefix for prefix in names if name.startswith(prefix))
        renamed[names[prefix] + name.removeprefix(prefix)] = value.clone()
    return renamed


def _time_limit(env: Any) -> Any:
    while not hasattr(env, "_max_episode_steps"):
        env = env.env
    return env


def _assert_close(ours: torch.Tensor, theirs: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(ours, theirs, atol=ATOL, rtol=1e-6, msg=lambda text: f"{name}: {text}")
