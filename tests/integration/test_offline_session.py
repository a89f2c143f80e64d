"""An algorithm without environments: behaviour cloning in a few lines, through the same session as all others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training import check_algorithm, load_agent, register_algorithm
from rl_training.algorithms.base import Metrics
from rl_training.algorithms.off_policy import BatchAlgorithm, BatchConfig
from rl_training.algorithms.optimization import make_optimizer
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.data.sources import MixtureSource, ReplaySource, TransitionDataset
from rl_training.execution.draws import RandomSource
from rl_training.execution.executor import recordable
from rl_training.execution.optimizers import FlatOptimizer, StepReport
from rl_training.policies.actor_critic import ActorCritic
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import CheckpointError, ConfigError, UserError
from rl_training.utils.trees import differing_paths

# --- the algorithm -----------------------------------------------------------------------------------------------------


@dataclass
class CloningConfig(BatchConfig):
    """Hyperparameters of behaviour cloning."""

    learning_rate: float = 1e-2


class CloningAlgorithm(BatchAlgorithm[CloningConfig]):
    """Makes the actions of a dataset likely."""

    config_class = CloningConfig
    action_spaces = ("Discrete", "Box")
    unused_policy_keys = ()

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.optimizer = make_optimizer(self.config, [(self.policy, None)])

    @staticmethod
    def make_policy(spec: PolicySpec, hyperparams: Any) -> ActorCritic:
        return ActorCritic(spec)

    def optimizers(self) -> Mapping[str, FlatOptimizer]:
        return {"policy": self.optimizer}

    def _update(self, batch: TransitionBatch, progress: float) -> Metrics:
        return self.train_batch(batch, self.generator).metrics()

    @recordable
    def train_batch(self, batch: TransitionBatch, random: RandomSource) -> StepReport:
        loss = -self.policy.distribution(batch.obs).log_prob(batch.actions).mean()
        return self.optimizer.step(self.optimizer.gradient(loss), {"loss": loss}, self.config.max_grad_norm)


Cloning = register_algorithm("cloning", CloningAlgorithm)

# --- the tests ---------------------------------------------------------------------------------------------------------


def dataset(size: int = 400, seed: int = 0) -> TransitionDataset:
    """An expert that goes where the first number points."""
    rng = np.random.default_rng(3)
    obs = rng.normal(size=(size, 4)).astype(np.float32)
    return TransitionDataset(
        spaces.Box(-9, 9, (4,), np.float32),
        spaces.Discrete(2),
        obs=obs,
        actions=(obs[:, 0] > 0).astype(np.int64),
        rewards=np.zeros(size),
        next_obs=np.roll(obs, -1, axis=0),
        terminated=np.zeros(size, dtype=bool),
        seed=seed,
    )


def test_it_learns_without_an_environment() -> None:
    agent = Cloning(dataset(), seed=0, batch_size=64)
    result = agent.learn(total_timesteps=400)
    assert result.metrics["global_step"] == 400, "gradient steps"
    obs = np.random.default_rng(9).normal(size=(200, 4)).astype(np.float32)
    actions, _ = agent.predict(obs)
    assert np.mean(actions == (obs[:, 0] > 0)) > 0.95
    with pytest.raises(UserError, match="environment"):
        agent.evaluate()


@pytest.mark.parametrize("execution", ["eager", "recorded"])
def test_a_resume_is_exact(execution: str, tmp_path: Path) -> None:
    def make(**more: Any) -> Any:
        return Cloning(dataset(), seed=0, batch_size=32, execution=execution, **more)

    whole = make()
    whole.learn(total_timesteps=500)
    stopped = make()
    stopped.learn(total_timesteps=200)
    stopped.save(tmp_path / "half")
    resumed = load_agent(tmp_path / "half", dataset())
    resumed.learn(total_timesteps=500)
    assert not differing_paths(whole.policy.state_dict(), resumed.policy.state_dict())
    assert not differing_paths(whole.algorithm.state_dict(), resumed.algorithm.state_dict())
    with pytest.raises(CheckpointError, match="dataset of 400 transitions"):
        load_agent(tmp_path / "half", dataset(300)).learn(total_timesteps=500)


def test_a_run_folder_is_written_and_resumed(tmp_path: Path) -> None:
    agent = Cloning(dataset(), seed=0, output_dir=tmp_path, checkpoint={"every": 100})
    run = agent.learn(total_timesteps=300).run_dir
    assert run is not None and (run / "metrics.jsonl").exists() and list((run / "checkpoints").glob("step_*"))
    again = load_agent(run, dataset())
    again.learn(total_timesteps=400)
    assert again.num_timesteps == 400


def test_evaluation_in_an_environment_where_there_is_one(tmp_path: Path) -> None:
    agent = Cloning(dataset(), "CartPole-v1", seed=0, evaluation={"every": 100, "episodes": 2}, output_dir=tmp_path)
    result = agent.learn(total_timesteps=200)
    assert result.evaluation is not None and result.evaluation.episodes == 2
    assert agent.evaluate(num_episodes=3).episodes == 3


def test_an_online_algorithm_takes_no_dataset_and_the_other_way_round() -> None:
    from rl_training import PPO

    with pytest.raises(ConfigError, match="ppo learns from environments"):
        PPO(dataset())
    with pytest.raises(ConfigError, match="cloning learns from a dataset"):
        Cloning("CartPole-v1")


def test_the_conformance_suite_knows_datasets() -> None:
    checks = ("same_seed", "save_load", "split_run", "state_tree", "execution", "refusals")
    check_algorithm("cloning", total_timesteps=300, only=checks).raise_if_failed()


def test_a_mixture_takes_its_shares_and_hands_feedback_on() -> None:
    first, second = dataset(seed=1), dataset(seed=2)
    told: list[tuple[int, int]] = []
    for index, source in enumerate((first, second)):
        source.feedback = lambda batch, errors, index=index: told.append((index, len(batch.indices)))  # type: ignore[method-assign]
    mixture = MixtureSource([(first, 0.25), (second, 0.75)])
    batch = mixture.sample(32, 0.0)
    assert batch.obs.shape == (32, 4) and len(batch.indices) == 32  # type: ignore[union-attr]
    torch.testing.assert_close(batch.obs[:8], dataset(seed=1).sample(8, 0.0).obs)  # type: ignore[index]
    torch.testing.assert_close(batch.obs[8:], dataset(seed=2).sample(24, 0.0).obs)  # type: ignore[index]
    mixture.feedback(batch, torch.zeros(32))
    assert told == [(0, 8), (1, 24)]
    saved = mixture.state_dict()
    wanted = mixture.sample(16, 0.0)
    mixture.load_state_dict(saved)
    assert np.array_equal(mixture.sample(16, 0.0).indices, wanted.indices)
    with pytest.raises(UserError, match="add up to 1"):
        MixtureSource([(first, 0.5), (second, 0.6)])
    assert ReplaySource is not None
