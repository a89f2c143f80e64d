"""The environments that a trained agent plays in: its own, or others with the same spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import VectorEnv

from rl_training.envs.factory import EnvLike
from rl_training.experiment.checkpoint.snapshot import Spaces
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.env_source import EnvSource
from rl_training.runtime.evaluator import Evaluator
from rl_training.runtime.video import MAX_VIEWS
from rl_training.utils.errors import UserError


@contextmanager
def evaluator_in(
    env: EnvLike | None,
    own: EnvSource,
    config: TrainConfig,
    num_episodes: int,
    num_envs: int | None,
    seed: int,
    device: torch.device,
    *,
    fits: Callable[[Spaces, str], None],
    film: bool,
) -> Iterator[Evaluator]:
    """An evaluator in `env`, or in the agent's `own` environments; closed afterwards, but for an environment object.

    `fits` refuses the spaces of environments that the agent was not made for; with `film` they take pictures.
    """
    source, max_episode_steps = own, config.evaluation.max_episode_steps
    if env is not None:
        source = EnvSource(env)
        config = source.adopted(config)
    if num_envs is None:
        num_envs = 1 if isinstance(env, gym.Env) else getattr(env, "num_envs", 5)
    if num_episodes < 1 or num_envs < 1:
        raise UserError(f"num_episodes and num_envs must be at least 1, got {num_episodes} and {num_envs}")
    if isinstance(env, VectorEnv) and num_envs != env.num_envs:
        raise UserError(f"num_envs is {num_envs}, but the vector environment has {env.num_envs}: leave it out.")
    if film and num_envs > MAX_VIEWS:
        raise UserError(f"a video shows at most {MAX_VIEWS} environments side by side, got num_envs={num_envs}")
    given = isinstance(env, gym.Env | VectorEnv)
    make = source.evaluation_envs(config, itself=given, film=film)

    def fitting(count: int) -> VectorEnv[Any, Any, Any]:
        envs = make(count)
        fits(Spaces.of(envs), config.env_id)
        return envs

    evaluator = Evaluator(fitting, num_envs=num_envs, seed=seed, device=device, max_episode_steps=max_episode_steps)
    try:
        yield evaluator
    finally:
        if not given:
            evaluator.close()
