"""Training by function call: `train(cfg)` for any algorithm, `train_ppo(cfg, ...)` for PPO."""

from __future__ import annotations

from dataclasses import replace

from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.runner import start_run
from rl_training.experiment.run.session import TrainResult
from rl_training.experiment.run.signals import pass_on


def train(cfg: TrainConfig) -> TrainResult:
    """One run in its own run directory, from the beginning. Ctrl-C saves it and then raises KeyboardInterrupt."""
    result = start_run(cfg)
    pass_on(result.exit_code)
    return result


def train_ppo(
    cfg: TrainConfig, total_timesteps: int | None = None, num_envs: int | None = None, num_steps: int | None = None
) -> TrainResult:
    """PPO with the config's settings; the arguments, where given, replace its numbers."""
    hyperparams = dict(cfg.hyperparams) if num_steps is None else {**cfg.hyperparams, "num_steps": num_steps}
    cfg = replace(
        cfg,
        algo="ppo",
        hyperparams=hyperparams,
        total_timesteps=total_timesteps or cfg.total_timesteps,
        num_envs=num_envs or cfg.num_envs,
    )
    return train(cfg)
