"""The state tree of a run, put back only where it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.envs import CounterEnv
from rl_training import PPO
from rl_training.experiment.checkpoint.snapshot import check_weights, config_of, restore, spaces_of
from rl_training.experiment.checkpoint.store import Checkpoint, read_checkpoint
from rl_training.utils.errors import CheckpointError, UserError


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    agent = PPO(CounterEnv, num_envs=1, num_steps=8, seed=4, policy={"hidden_sizes": [4]})
    agent.learn(total_timesteps=8)
    return read_checkpoint(agent.save(tmp_path / "agent"))


def fresh_agent(**settings: Any) -> Any:
    return PPO(CounterEnv, **{"num_envs": 1, "num_steps": 8, "seed": 9, "policy": {"hidden_sizes": [4]}, **settings})


def test_config_and_spaces_come_back(checkpoint: Checkpoint) -> None:
    config = config_of(checkpoint, "ppo")
    assert (config.algo, config.seed, config.policy.hidden_sizes) == ("ppo", 4, (4,))
    found = spaces_of(checkpoint)
    assert (found.observation, found.action) == (CounterEnv().observation_space, CounterEnv().action_space)


def test_another_algorithm_is_the_users_mistake(checkpoint: Checkpoint) -> None:
    with pytest.raises(UserError, match="'ppo', not 'a2c'"):
        config_of(checkpoint, "a2c")


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"config": None}, "holds no config"),
        ({"config": {"algo": "ppo", "no such key": 1}}, "its config is not valid"),
        ({"config": {"algo": "ppo", "seed": -4}}, "its config is not valid"),
        ({"config": {"algo": "a2c"}}, "its config is for 'a2c', the rest for 'ppo'"),
    ],
)
def test_a_bad_config_is_a_checkpoint_error(checkpoint: Checkpoint, info: dict[str, Any], message: str) -> None:
    checkpoint.info.update(info)
    with pytest.raises(CheckpointError, match=message):
        config_of(checkpoint)


@pytest.mark.parametrize("group", [None, {}, {"weights": {}}])
def test_a_checkpoint_without_a_policy(checkpoint: Checkpoint, group: Any) -> None:
    checkpoint.groups["policy"] = group
    with pytest.raises(CheckpointError, match="holds no policy"):
        spaces_of(checkpoint)


def test_weights_must_fit_exactly() -> None:
    source, target = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    good = dict(source.state_dict())
    for wrong, message in [
        ({"weight": good["weight"]}, "other names"),
        ({**good, "more": good["bias"]}, "other names"),
        ({**good, "weight": good["weight"].T.contiguous()}, r"float32 \(2, 3\), the policy has torch.float32 \(3, 2\)"),
        ({**good, "weight": good["weight"].double()}, "float64"),
        ({**good, "weight": [1.0]}, "is list"),
        (None, "other names"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            check_weights(target, wrong)  # type: ignore[arg-type]
    check_weights(target, good)


def test_a_policy_of_another_size_does_not_fit(checkpoint: Checkpoint) -> None:
    agent = fresh_agent(policy={"hidden_sizes": [5]})
    with pytest.raises(CheckpointError, match="saved weight"):
        restore(checkpoint, agent.algorithm, None)


def damaged(path: tuple[Any, ...], value: Any) -> Any:
    return pytest.param(path, value, id=".".join(map(str, path)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        damaged(("algorithm", "optimizers"), {}),
        damaged(("algorithm", "optimizers", "policy", "moments", "mean"), torch.zeros(7)),
        damaged(("algorithm", "optimizers", "policy", "moments"), {}),
        damaged(("algorithm", "generator"), torch.zeros(3)),
        damaged(("runtime", "global_step"), None),
        damaged(("runtime", "callbacks"), 3),
        damaged(("runtime", "collector"), {}),
        damaged(("runtime", "collector", "envs"), None),
        damaged(("runtime", "collector", "generator"), torch.zeros(2)),
        damaged(("runtime", "collector", "statistics"), {"returns": 3}),
        damaged(("runtime", "collector", "envs", "envs", "kind"), 3.5),
        damaged(("runtime", "collector", "envs", "envs", "envs"), [{}]),
    ],
)
def test_parts_that_do_not_fit_are_checkpoint_errors(checkpoint: Checkpoint, path: tuple[Any, ...], value: Any) -> None:
    node: Any = checkpoint.groups
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    agent = fresh_agent()
    session = agent._session_for(())
    try:
        restore(checkpoint, agent.algorithm, session.trainer)
    except CheckpointError as error:
        assert str(checkpoint.path) in str(error)
    else:
        # A damaged environment state may also be survived by fresh episodes, if that is what is reported.
        assert path[:3] == ("runtime", "collector", "envs") and session.resume_grade == "episode-boundary"
