"""Hindsight in whole runs: it is wired up, resumes exactly, works with each kind of algorithm, and says what it cannot do."""

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_training import DQN, PPO
from rl_training.api.agent import agent_class
from rl_training.config import TrainConfig
from rl_training.data.hindsight import HindsightReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.builtin.goal_tasks import BitFlip, PointReach
from rl_training.experiment.checkpoint.store import read_checkpoint
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.utils.errors import ConfigError, EnvCreationError, SpaceError
from rl_training.utils.trees import differing_paths

SHORT: dict[str, Any] = {"learning_starts": 40, "batch_size": 16, "train_frequency": 4, "buffer_size": 200}
NSTEP_PER: dict[str, Any] = {"n_step": 3, "prioritized": True}


def config_in(folder: Path, **values: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "algo": "dqn",
        "env_id": "BitFlip-v0",
        "num_envs": 2,
        "total_timesteps": 400,
        "output_dir": str(folder),
        "env": {"kwargs": {"bits": 5}},
        "hyperparams": {**SHORT, **NSTEP_PER, "hindsight": 0.8},
        "evaluation": {"every": 200, "episodes": 4},
        "checkpoint": {"every": 80, "keep": 10},
        "logging": {"console": "off", "tensorboard": False},
    }
    return TrainConfig(**{**defaults, **values})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"env": {"kwargs": {"bits": 5}, "backend": "async", "autoreset": "next_step"}},
        {"algo": "sac", "env_id": "PointReach-v0", "env": {}, "hyperparams": {**SHORT, "hindsight": 0.8}},
    ],
    ids=["dqn-n-step-per", "dqn-async", "sac"],
)
def test_a_resumed_run_ends_like_one_that_was_never_stopped(settings: dict[str, Any], tmp_path: Path) -> None:
    whole = start_run(config_in(tmp_path / "whole", **settings)).run_dir
    assert whole is not None
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    for folder in (run_dir / "checkpoints").glob("step_*"):
        if int(folder.name.removeprefix("step_")) > 240:  # as if it had been killed there
            shutil.rmtree(folder)
    (run_dir / "checkpoints" / "latest").write_text("step_000000240\n")
    result = resume_run(run_dir)
    step = int(result.metrics["global_step"])
    assert result.resume_grade == "exact" and 400 <= step < 404, "at most one collection of 4 steps too far"
    ends = [read_checkpoint(run / "checkpoints" / f"step_{step:09d}").groups for run in (whole, run_dir)]
    assert differing_paths(*ends, ignore=("runtime.timer", "runtime.resume_count")) == []
    assert result.evaluation is not None and result.evaluation.success_rate is not None


def test_the_switch_changes_the_training() -> None:
    def trained(share: float) -> Any:
        agent = DQN("BitFlip-v0", env={"kwargs": {"bits": 5}}, hindsight=share, **SHORT)
        agent.learn(120)
        replay = agent._session.trainer.replay  # type: ignore[union-attr]
        assert type(replay) is (HindsightReplayBuffer if share else ReplayBuffer)
        return agent.policy.state_dict()

    first, again, without = trained(0.8), trained(0.8), trained(0.0)
    assert differing_paths(first, again) == []
    assert differing_paths(first, without) != []


DISCRETE = ("rainbow", "iqn", "qr_dqn", "nstep_dqn")
CONTINUOUS = ("sac", "td3", "ddpg")


@pytest.mark.parametrize("algo", [*DISCRETE, *CONTINUOUS])
def test_every_kind_of_off_policy_algorithm(algo: str) -> None:
    env = (lambda: BitFlip(4)) if algo in DISCRETE else PointReach
    agent = agent_class(algo)(env, hindsight=0.8, **SHORT)
    agent.learn(100)
    batch = agent._session.trainer.replay.sample(64)  # type: ignore[union-attr]
    # Episodes of random play never reach their goal at the first try; what they do reach is now a goal.
    assert (batch.rewards == 0).any()


def test_the_users_own_environment_is_asked_in_a_copy() -> None:
    class Watched(BitFlip):
        closed = 0

        def close(self) -> None:
            Watched.closed += 1

    env = Watched(4)
    agent = DQN(env, hindsight=0.5, **SHORT)
    agent.learn(100)
    batch = agent._session.trainer.replay.sample(32)  # type: ignore[union-attr]
    assert batch.obs["desired_goal"].unique(dim=0).shape[0] > 4  # type: ignore[index]
    assert Watched.closed == 1, "the copy with which the environment was checked; not the one that trains"


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="hindsight needs a goal environment"):
        DQN("CartPole-v1", hindsight=0.8)

    class NoRule(BitFlip):
        compute_reward = property()  # type: ignore[assignment]

        def _outcome(self) -> Any:
            return 0.0, {}

    with pytest.raises(SpaceError, match="no compute_reward"):
        DQN(NoRule, hindsight=0.8)
    vector = gym.vector.SyncVectorEnv([lambda: BitFlip(4)], autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    with pytest.raises(EnvCreationError, match="give an id or a callable"):
        DQN(vector, hindsight=0.8)
    DQN(vector).close()
    with pytest.raises(ConfigError, match="hindsight"):
        DQN("BitFlip-v0", hindsight=1.0)
    with pytest.raises(ConfigError, match="unknown setting 'hindsight'"):
        PPO("BitFlip-v0", hindsight=0.8)
    with pytest.raises(SpaceError, match="goal environment"):
        start_run(config_in(tmp_path, env_id="CartPole-v1", env={"backend": "async"}))
    assert list(tmp_path.iterdir()) == []
