"""Recurrent PPO through the whole runtime: acting, evaluating, predicting, saving, overlapping, killing and resuming."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import TrainConfig
from rl_training.contrib import RecurrentPPO
from rl_training.experiment.proof.resume import verify_resume
from rl_training.experiment.run.build import complete_config
from rl_training.utils.errors import UserError

SMALL: dict[str, Any] = {"seed": 2, "num_envs": 2, "num_steps": 32, "sequence_length": 8, "core_size": 16}
NO_VELOCITIES: dict[str, Any] = {"wrappers": [{"name": "SelectObservations", "indices": [0, 2]}]}


@pytest.fixture(scope="module")
def agent() -> Any:
    trained = RecurrentPPO("CartPole-v1", **SMALL, env=NO_VELOCITIES)
    trained.learn(total_timesteps=256)
    yield trained
    trained.close()


def test_predict_remembers_what_it_is_given_back(agent: Any) -> None:
    obs = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    state: Any = None
    states = []
    for one in obs:
        action, state = agent.predict(one, state)
        assert action in (0, 1)
        states.append(state)
    with torch.no_grad():
        distribution, _, expected = agent.policy.unroll(
            torch.from_numpy(obs).unsqueeze(1), torch.zeros(6, 1, dtype=torch.bool), agent.policy.initial_state(1)
        )
    torch.testing.assert_close(torch.stack(states), expected, atol=1e-6, rtol=0)
    assert distribution.mode().shape == (6, 1)
    fresh, again = agent.predict(obs[3]), agent.predict(obs[3], state, episode_start=True)
    assert torch.equal(fresh[1], again[1]) and not torch.equal(fresh[1], agent.predict(obs[3], state)[1])
    _, both = agent.predict(np.stack([obs[3], obs[3]]), state.expand(2, -1, -1, -1), episode_start=[False, True])
    torch.testing.assert_close(both[1:], fresh[1], atol=1e-6, rtol=0)
    assert not torch.allclose(both[:1], fresh[1])


def test_a_state_of_other_episodes_is_refused(agent: Any) -> None:
    obs = np.zeros(2, np.float32)
    _, state = agent.predict(obs)
    for wrong in (state.expand(2, -1, -1, -1), {"h": state[..., 0]}, (state, state)):
        with pytest.raises(UserError, match="not what predict returned for 1 observations"):
            agent.predict(obs, wrong)


def test_an_evaluation_plays_what_predict_would(agent: Any) -> None:
    result = agent.evaluate(num_episodes=4, num_envs=2)
    kept = agent._session.trainer.collector.acting_state.clone()
    again = agent.evaluate(num_episodes=4, num_envs=2)
    assert result.returns == again.returns
    assert torch.equal(kept, agent._session.trainer.collector.acting_state), "evaluations have a memory of their own"


def test_a_loaded_agent_goes_on_with_its_memory(agent: Any, tmp_path: Path) -> None:
    agent.save(tmp_path / "saved")
    loaded = RecurrentPPO.load(tmp_path / "saved")
    obs = np.array([0.1, -0.1], np.float32)
    for one, other in zip(agent.predict(obs), loaded.predict(obs)):
        assert np.array_equal(one, other)
    ours, theirs = (
        one._session_for(()).trainer.collector.acting_state
        if one is loaded
        else one._session.trainer.collector.acting_state
        for one in (agent, loaded)
    )
    assert torch.equal(ours, theirs) and (ours != 0).any()
    loaded.close()


@pytest.mark.parametrize("autoreset", ["next_step", "disabled"])
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_killed_and_resumed_it_ends_the_same(tmp_path: Path, core: str, autoreset: str) -> None:
    config = TrainConfig(
        algo="recurrent_ppo",
        env_id="CartPole-v1",
        total_timesteps=4_000,
        num_envs=2,
        hyperparams={"num_steps": 32, "sequence_length": 8, "core": core, "core_size": 16},
        env={**NO_VELOCITIES, "autoreset": autoreset, "normalize_observations": True},  # type: ignore[arg-type]
        checkpoint={"every": 500},  # type: ignore[arg-type]
        evaluation={"every": 1_500, "episodes": 2},  # type: ignore[arg-type]
        logging={"tensorboard": False},  # type: ignore[arg-type]
    )
    report = verify_resume(complete_config(config)[0], tmp_path, kills=2, rng=random.Random())
    assert report.differences == () and set(report.grades) == {"exact"}
