"""What a policy remembers goes through collector, evaluator, predict, checkpoints and a kill."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import memory_policy
from helpers.memory_policy import Memory
from rl_training import TrainConfig, check_algorithm
from rl_training.experiment.proof.resume import verify_resume
from rl_training.experiment.run.build import complete_config
from rl_training.utils.errors import UserError


def make(**settings: Any) -> Any:
    return Memory("CartPole-v1", seed=2, num_envs=3, **settings)


def collector_of(agent: Any) -> Any:
    return agent._session.trainer.collector


@pytest.mark.parametrize("execution", ["eager", "recorded"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_the_state_begins_anew_with_every_episode(autoreset: str, execution: str) -> None:
    agent = make(env={"autoreset": autoreset}, execution=execution)
    agent.learn(total_timesteps=15)
    collector = collector_of(agent)
    for _ in range(40):
        before = collector.buffer
        collector.collect()
        assert before.initial_state["steps"].shape == (3,)
        lengths = torch.from_numpy(collector.statistics.running_lengths).float()
        # In the step that only resets, nothing of an episode was seen yet.
        assert torch.equal(collector.acting_state["steps"].cpu(), lengths)
    assert collector.statistics.episodes > 3, "episodes ended"


def test_the_evaluator_has_a_state_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make()
    agent.learn(total_timesteps=15)
    kept = {key: value.clone() for key, value in collector_of(agent).acting_state.items()}
    longest = []
    act = memory_policy.MemoryPolicy.act

    def watched(self: Any, obs: Any, state: Any = None, **how: Any) -> Any:
        longest.append(float(state["steps"].max()))
        return act(self, obs, state, **how)

    monkeypatch.setattr(memory_policy.MemoryPolicy, "act", watched)
    result = agent.evaluate(num_episodes=7, num_envs=2)
    assert max(longest) == max(result.lengths) - 1, "counted from 0 in every episode"
    assert all(torch.equal(value, kept[key]) for key, value in collector_of(agent).acting_state.items())


def test_predict_hands_the_state_back() -> None:
    agent = make()
    obs = np.array([0.1, 0.2, 0.3, 0.4], dtype=np.float32)
    action, state = agent.predict(obs)
    assert action in (0, 1) and state["steps"].tolist() == [1.0]
    _, state = agent.predict(obs, state)
    assert state["steps"].tolist() == [2.0]
    torch.testing.assert_close(state["mean"][0].cpu(), 0.75 * torch.from_numpy(obs))
    _, state = agent.predict(obs, state, episode_start=True)
    assert state["steps"].tolist() == [1.0]
    _, both = agent.predict(np.stack([obs, obs]))
    _, both = agent.predict(np.stack([obs, obs]), both, episode_start=[False, True])
    assert both["steps"].tolist() == [2.0, 1.0]


def test_a_policy_without_a_memory_takes_none() -> None:
    from rl_training import PPO

    agent = PPO("CartPole-v1")
    obs = np.zeros(4, dtype=np.float32)
    assert agent.predict(obs)[1] is None
    assert agent.predict(obs, episode_start=True)[1] is None
    with pytest.raises(UserError, match="no memory"):
        agent.predict(obs, state=torch.zeros(1))


def test_the_conformance_suite_knows_memories() -> None:
    checks = ("same_seed", "save_load", "split_run", "state_tree", "evaluation", "execution")
    check_algorithm("memory", total_timesteps=120, only=checks).raise_if_failed()


def test_killed_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="memory",
        env_id="CartPole-v1",
        total_timesteps=20_000,
        num_envs=2,
        checkpoint={"every": 2_000},  # type: ignore[arg-type]
        evaluation={"every": 8_000, "episodes": 3},  # type: ignore[arg-type]
        logging={"tensorboard": False},  # type: ignore[arg-type]
    )
    module = str(Path(memory_policy.__file__).resolve())
    report = verify_resume(complete_config(config)[0], tmp_path, kills=2, rng=random.Random(), modules=(module,))
    assert report.differences == () and set(report.grades) == {"exact"}
