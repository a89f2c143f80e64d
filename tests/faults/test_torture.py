"""Kill a run with SIGKILL at random moments, resume it, and compare its end with an uninterrupted run, bit for bit.

`make torture` kills each run ten times; the ordinary suite kills fewer of the same runs fewer times.
"""

import random
from pathlib import Path

import pytest

from rl_training.experiment.config.loader import resolve
from rl_training.experiment.proof.resume import verify_resume
from rl_training.experiment.run.build import complete_config

SMALL = {"policy.hidden_sizes": [64, 64], "hyperparams.learning_starts": 500, "hyperparams.buffer_size": 1_500}

# Preset and what makes the run short but with several checkpoints; iterations are kept small, so that there are many.
RUNS = {
    "cartpole-sync": ("ppo/cartpole", {"total_timesteps": 20_000}),
    "cartpole-async": ("ppo/cartpole", {"total_timesteps": 16_000, "env.backend": "async"}),
    "cartpole-async-next-step": (
        "ppo/cartpole",
        {"total_timesteps": 16_000, "env.backend": "async", "env.autoreset": "next_step"},
    ),
    "cartpole-native": ("ppo/cartpole", {"total_timesteps": 30_000, "env.backend": "native"}),
    "cartpole-tensor": ("ppo/cartpole", {"total_timesteps": 30_000, "env.backend": "tensor"}),
    "pendulum": ("ppo/pendulum", {"total_timesteps": 15_000}),
    "acrobot": ("ppo/acrobot", {"total_timesteps": 15_000, "hyperparams.num_steps": 64}),
    "lunarlander": (
        "ppo/lunarlander",
        {"total_timesteps": 12_000, "hyperparams.num_steps": 64, "hyperparams.num_minibatches": 16},
    ),
    "hopper": ("ppo/hopper", {"total_timesteps": 8_000, "hyperparams.num_steps": 512}),
    "a2c-cartpole": ("a2c/cartpole", {"total_timesteps": 15_000}),
    # Off-policy: the replay buffer must come back too; small, so that its ring goes round.
    "dqn-cartpole": ("dqn/cartpole", {"total_timesteps": 12_000, "hyperparams.buffer_size": 4_000}),
    "dqn-lunarlander": ("dqn/lunarlander", {"total_timesteps": 6_000, "hyperparams.buffer_size": 2_500}),
    "rainbow-cartpole": (
        "rainbow/cartpole",
        {"total_timesteps": 6_000, "hyperparams.buffer_size": 2_500, "num_envs": 2, "env.autoreset": "next_step"},
    ),
    "dqn-bitflip": ("dqn/bitflip", {"total_timesteps": 6_000, "hyperparams.buffer_size": 2_500}),
    "trpo-cartpole": ("trpo/cartpole", {"total_timesteps": 20_000}),
    "sac-pendulum": ("sac/pendulum", {"total_timesteps": 4_000, **SMALL}),
    "sac-hopper": ("sac/hopper", {"total_timesteps": 4_000, **SMALL}),
    "td3-hopper": ("td3/hopper", {"total_timesteps": 4_000, **SMALL}),
    "ddpg-pendulum": (
        "ddpg/pendulum",
        {"total_timesteps": 4_000, "num_envs": 2, "hyperparams.action_noise": "ornstein_uhlenbeck", **SMALL},
    ),
    "crossq-pendulum": (
        "crossq/pendulum",
        {"total_timesteps": 4_000, "policy.critic_hidden_sizes": [64, 64], **SMALL},
    ),
    "redq-pendulum": ("redq/pendulum", {"total_timesteps": 2_500, **SMALL}),
    "droq-pendulum": ("droq/pendulum", {"total_timesteps": 2_500, **SMALL}),
}
QUICK = ("cartpole-sync", "cartpole-async", "hopper", "dqn-cartpole", "sac-hopper")


def _config(name: str):
    preset, overrides = RUNS[name]
    steps = overrides["total_timesteps"]
    common = {"checkpoint.every": steps // 10, "evaluation.every": steps // 3, "evaluation.episodes": 5}
    return complete_config(resolve(preset, {**overrides, **common, "logging.tensorboard": False}))[0]


def _check(name: str, kills: int, folder: Path) -> None:
    report = verify_resume(_config(name), folder, kills=kills, rng=random.Random())
    assert report.differences == (), f"{name} differs after kills at {report.kill_steps}"
    assert report.arrays > 20, "there was something to compare"
    assert set(report.grades) == {"exact"}
    assert report.kills == kills and report.proved


@pytest.mark.parametrize("name", QUICK)
def test_killed_and_resumed_run_is_identical(name, tmp_path):
    _check(name, kills=2, folder=tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("name", RUNS)
def test_killed_ten_times(name, tmp_path):
    _check(name, kills=10, folder=tmp_path)
