"""What the conformance suite runs its checks on: short runs of one algorithm in synthetic environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.data.sources import TransitionDataset
from rl_training.envs.builtin.synthetic import ACTION_SPACES, OBSERVATION_SPACES, SyntheticEnv
from rl_training.envs.factory import make_vector_env
from rl_training.execution.executor import Execution
from rl_training.experiment import registry
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.build import build_algorithm, complete_config
from rl_training.experiment.run.env_source import EnvSource
from rl_training.experiment.run.session import TrainingSession
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import BaseTrainer
from rl_training.utils.spaces import ActionAdapter, Observation, stored_obs

NUM_ENVS = 2

SMALL_NETWORKS = (32, 32)

Groups = dict[str, Any]

SHORT_RUN: dict[str, dict[str, Any]] = {
    "on_policy": {},
    # Learning begins early, and the ring of the replay buffer goes round.
    "off_policy": {
        "learning_starts": 64,
        "batch_size": 16,
        "buffer_size": 256,
        "train_frequency": 2,
        "gradient_steps": 1,
    },
    "offline": {"batch_size": 16},
}
"""Settings that let a short run do everything a long one does, by kind of trainer."""


class ConformanceError(AssertionError):
    """An algorithm breaks a promise that every algorithm makes."""


@dataclass(frozen=True)
class Bench:
    """Builds short runs of one algorithm."""

    algo: str
    total_timesteps: int
    hyperparams: dict[str, Any]
    seed: int
    device: torch.device

    @property
    def algorithm_class(self) -> Any:
        return registry.load(self.algo)

    @property
    def observation_space(self) -> spaces.Space[Any]:
        """The space used where the check is not about spaces: Box if it is declared."""
        names = self.algorithm_class.observation_spaces
        return OBSERVATION_SPACES["Box" if "Box" in names else names[0]][0]

    @property
    def action_space(self) -> spaces.Space[Any]:
        return ACTION_SPACES[self.algorithm_class.action_spaces[0]][0]

    def config(self, seed: int, *, evaluate: bool = False, execution: Execution = "auto") -> TrainConfig:
        hyperparams = dict(SHORT_RUN[registry.algorithm_info(self.algo).trainer])
        if getattr(self.algorithm_class, "default_rollout", None) is not None:
            hyperparams["num_steps"] = 64  # the default is as long as the whole run
        settings: dict[str, Any] = {
            "hyperparams": {**hyperparams, **self.hyperparams},
            "policy": self._small_networks(),
            # On, because what the normalisers keep is easily forgotten in a checkpoint.
            "env": {
                "normalize_observations": True,
                "normalize_rewards": self.algorithm_class.normalizes_rewards,
            },
            "evaluation": {
                "every": max(self.total_timesteps // 3, 1) if evaluate else 0,
                "episodes": 3,
                "num_envs": 2,
                "deterministic": False,
            },
            "logging": {"console": "off", "tensorboard": False, "every": 0},
        }
        return TrainConfig(
            algo=self.algo,
            env_id="synthetic",
            seed=seed,
            total_timesteps=self.total_timesteps,
            num_envs=NUM_ENVS,
            device=str(self.device),
            execution=execution,
            **settings,
        )

    def _small_networks(self) -> dict[str, Any]:
        """Also where the algorithm's own defaults have sizes for actor or critic alone."""
        own = registry.algorithm_info(self.algo).policy
        sizes = {key: SMALL_NETWORKS for key in ("actor_hidden_sizes", "critic_hidden_sizes") if own.get(key)}
        return {"hidden_sizes": SMALL_NETWORKS, **sizes}

    @contextmanager
    def session(
        self,
        *,
        observation_space: spaces.Space[Any] | None = None,
        action_space: spaces.Space[Any] | None = None,
        seed: int | None = None,
        evaluate: bool = False,
        execution: Execution = "auto",
        stop_at: int | None = None,
    ) -> Iterator[TrainingSession]:
        """A run that has not started; `stop_at` ends it at the first iteration boundary at or after that step."""
        observed = self.observation_space if observation_space is None else observation_space
        acted = self.action_space if action_space is None else action_space
        settings = self.config(self.seed if seed is None else seed, evaluate=evaluate, execution=execution)
        config, hyperparams = complete_config(settings)
        source = EnvSource(lambda: SyntheticEnv(observed, acted), self._dataset(observed, acted))
        envs = source.training_envs(config)
        try:
            algorithm = build_algorithm(config, hyperparams, observed, acted, self.device)
            yield TrainingSession(config, algorithm, envs, source, callbacks=[_Watch(stop_at)])
        finally:
            if envs is not None:
                envs.close()

    def _dataset(self, observed: spaces.Space[Any], acted: spaces.Space[Any]) -> TransitionDataset | None:
        """Random steps for an offline algorithm, None for any other."""
        return synthetic_dataset(observed, acted) if registry.algorithm_info(self.algo).trainer == "offline" else None

    def trained(self, **settings: Any) -> Groups:
        """The final state of a run."""
        with self.session(**settings) as session:
            session.train()
            return snapshot(session)

    def build(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Algorithm[Any, Any]:
        config, hyperparams = complete_config(self.config(self.seed))
        return build_algorithm(config, hyperparams, observation_space, action_space, self.device)

    def observations(self, count: int = 32) -> Observation:
        """A batch of observations as a vector environment gives them."""
        observed, acted = self.observation_space, self.action_space
        envs = make_vector_env(self.config(self.seed), count, custom=lambda: SyntheticEnv(observed, acted))
        try:
            return envs.reset(seed=self.seed)[0]
        finally:
            envs.close()


def synthetic_dataset(observed: spaces.Space[Any], acted: spaces.Space[Any], steps: int = 200) -> TransitionDataset:
    """Transitions of random actions in a synthetic environment."""
    env, adapter, rng = SyntheticEnv(observed, acted), ActionAdapter(acted), np.random.default_rng(0)
    rows: list[tuple[Any, ...]] = []
    obs, _ = env.reset(seed=0)
    for _ in range(steps):
        action = adapter.sample(rng, 1)
        next_obs, reward, terminated, truncated, _ = env.step(adapter.to_env(action)[0])
        rows.append((obs, action[0], reward, next_obs, terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    before, actions, rewards, after, terminated_rows = zip(*rows)

    def stacked(parts: Any) -> Observation:
        if isinstance(parts[0], dict):
            return stored_obs({key: np.stack([part[key] for part in parts]) for key in parts[0]})
        return stored_obs(np.stack(parts))

    return TransitionDataset(
        observed,
        acted,
        obs=stacked(before),
        actions=np.stack(actions),
        rewards=np.array(rewards),
        next_obs=stacked(after),
        terminated=np.array(terminated_rows),
    )


class _Watch(Callback):
    """Looks at the metrics of every iteration, and stops where it is told to."""

    name = "conformance"

    def __init__(self, stop_at: int | None):
        self._stop_at = stop_at

    def on_iteration_end(self, trainer: BaseTrainer) -> None:
        for name, value in trainer.metrics.items():
            if not isinstance(value, Tensor) or value.dim() != 0:
                raise ConformanceError(f"metric {name!r} is {value!r}; metrics are tensors of shape ()")
            if not bool(torch.isfinite(value)):
                raise ConformanceError(f"metric {name!r} is {float(value)} at step {trainer.global_step}")
        if self._stop_at is not None and trainer.global_step >= self._stop_at:
            trainer.stop("half-way", interrupted=True)

    def on_training_end(self, trainer: BaseTrainer) -> None:
        require(bool(trainer.metrics), "the whole training made no update, so nothing was checked: train for longer")


def snapshot(session: TrainingSession) -> Groups:
    """A copy of the whole state on the CPU, which further training does not change."""
    groups, _ = session.snapshot()
    return {name: _copied(tree) for name, tree in groups.items()}


def _copied(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _copied(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_copied(value) for value in tree)
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise ConformanceError(problem)
