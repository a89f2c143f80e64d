"""Nested Dict and Tuple observations are flattened where environments are made; every number type survives a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from helpers.envs import CounterEnv, RandomWalkEnv
from rl_training import DQN, PPO, SAC, Callback
from rl_training.envs.contract import EnvStepper
from rl_training.experiment.run.runner import resume_run
from rl_training.utils.errors import SpaceError
from rl_training.utils.nested import flat_obs, flat_space, is_nested
from rl_training.utils.spaces import obs_layout, stored_obs
from rl_training.utils.trees import differing_paths

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
NESTED = spaces.Dict(
    {
        "arm": spaces.Dict({"position": BOX, "grip": spaces.Discrete(3, start=-1)}),
        "goals": spaces.Tuple((BOX, spaces.MultiBinary(2))),
        "time": spaces.Box(0, np.inf, (1,)),
    }
)
FLAT = ["arm/grip", "arm/position", "goals/0", "goals/1", "time"]


class NestedEnv(RandomWalkEnv):
    """The random walk with a Dict in a Dict, a Tuple in it, and a Discrete that does not start at 0."""

    def __init__(self, space: spaces.Space[Any] = NESTED) -> None:
        super().__init__()
        self.observation_space = space

    def _obs(self) -> Any:
        walk = super()._obs()
        arm = {"position": walk, "grip": np.int64(self.count % 3 - 1)}
        bits = np.array([self.count % 2, 1], np.int8)
        return {"arm": arm, "goals": (walk * 2, bits), "time": np.array([self.count], np.float32)}


class TupleEnv(RandomWalkEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Tuple((spaces.Discrete(20), BOX))

    def _obs(self) -> Any:
        return self.count, super()._obs()


def test_spaces_and_observations_flatten_alike() -> None:
    space = flat_space(NESTED)
    assert isinstance(space, spaces.Dict) and list(space.spaces) == FLAT
    assert space["arm/grip"] == spaces.Discrete(3, start=-1)
    env = NestedEnv()
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs) and space.contains(flat_obs(obs))
    assert flat_obs(obs)["goals/0"] is obs["goals"][0]
    assert not is_nested(space) and flat_space(space) is space
    assert flat_space(BOX) is BOX and flat_obs(obs["time"]) is obs["time"]


def test_two_entries_of_one_name_are_refused() -> None:
    space = spaces.Dict({"a": spaces.Dict({"b": BOX}), "a/b": BOX})
    with pytest.raises(SpaceError, match="two entries .* called 'a/b'"):
        flat_space(space)


def small(cls: Any, environment: Any, folder: Path | None = None, **settings: Any) -> Any:
    """An agent that is quick to train; off-policy ones learn from the start."""
    common: dict[str, Any] = {"num_envs": 2, "policy": {"hidden_sizes": [8]}}
    if folder is not None:
        common |= {"output_dir": str(folder), "evaluation": {"every": 32, "episodes": 2}}
        common["logging"] = {"console": "off", "tensorboard": False}
    own = {"num_steps": 8} if cls is PPO else {"learning_starts": 16, "batch_size": 8, "buffer_size": 100}
    return cls(environment, **{**common, **own, **settings})


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("make", [NestedEnv, TupleEnv], ids=["nested", "tuple"])
@pytest.mark.parametrize("algorithm", [PPO, DQN])
def test_nested_observations_train_evaluate_and_predict(algorithm: Any, make: Any, backend: str) -> None:
    agent = small(algorithm, make, env={"backend": backend})
    agent.learn(64)
    assert agent.evaluate(2).episodes == 2
    env = make()
    obs, _ = env.reset(seed=0)
    action, _ = agent.predict(obs)
    assert env.action_space.contains(action), "the environment's own form is understood"
    envs = SyncVectorEnv([make] * 3)
    batch, _ = envs.reset(seed=0)
    actions, _ = agent.predict(batch)
    assert actions.shape == (3,) and actions[0] == action
    agent.close()


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_vector_environment_objects_are_flattened_too(mode: AutoresetMode) -> None:
    agent = small(PPO, SyncVectorEnv([NestedEnv] * 2, autoreset_mode=mode))
    agent.learn(64)
    stepper: EnvStepper = agent._session.trainer.collector.stepper
    assert isinstance(stepper.obs, dict) and sorted(stepper.obs) == FLAT
    record = next(
        r for r in (stepper.step(np.zeros(2, np.int64)) for _ in range(20)) if r.terminated.any() or r.truncated.any()
    )
    ended = int(np.flatnonzero(record.terminated | record.truncated)[0])
    assert record.next_obs["time"][ended, 0] == record.obs["time"][ended, 0] + 1, "the true final observation"
    assert (record.next_obs["goals/0"] == record.next_obs["arm/position"] * 2).all()


class StopsHalfway(Callback):
    def on_iteration_end(self, trainer: Any) -> None:
        if trainer.global_step == 64:
            trainer.stop("halfway", interrupted=True)


def test_a_run_with_nested_observations_resumes_exactly(tmp_path: Path) -> None:
    gym.register("Nested-v0", NestedEnv)
    try:
        result = small(DQN, "Nested-v0", tmp_path).learn(128, callbacks=[StopsHalfway()])
        assert result.metrics["global_step"] == 64
        resumed = resume_run(result.run_dir)
        whole = small(DQN, "Nested-v0")
        whole.learn(128)
    finally:
        del gym.registry["Nested-v0"]
    assert resumed.resume_grade == "exact"
    agent = DQN.load(resumed.run_dir)
    assert differing_paths(dict(agent.policy.state_dict()), dict(whole.policy.state_dict())) == []


def test_blackjack_trains() -> None:
    agent = small(DQN, "Blackjack-v1")
    agent.learn(64)
    action, _ = agent.predict((14, 10, 0))
    assert action in (0, 1)


@pytest.mark.parametrize(
    "dtype", ["uint16", "uint32", "uint64", "int8", "int16", "float16", "float64", "uint8", "bool"]
)
@pytest.mark.parametrize("algorithm", [PPO, SAC])
def test_every_number_type_trains_and_is_saved(algorithm: Any, dtype: str, tmp_path: Path) -> None:
    class Typed(CounterEnv):
        def __init__(self) -> None:
            super().__init__(script=((20, "terminated"),))
            if dtype == "bool":
                self.observation_space = spaces.MultiBinary(2)
            else:
                self.observation_space = spaces.Box(0, 100, (2,), np.dtype(dtype).type)
            self.action_space = spaces.Box(-1.0, 1.0, (1,))

        def _obs(self) -> Any:
            value = self.count % 2 if dtype == "bool" else self.count
            return np.array([value, 1], self.observation_space.dtype)

    agent = small(algorithm, Typed, tmp_path / "run")
    agent.learn(64)
    saved = agent.save(tmp_path / "agent")
    loaded = algorithm.load(saved, Typed)
    obs = np.array([1, 1], agent._spaces.observation.dtype)
    assert np.array_equal(agent.predict(obs)[0], loaded.predict(obs)[0])
    loaded.learn(96)


def test_whole_numbers_are_kept_in_types_that_torch_computes_with() -> None:
    for given, kept in {
        "uint16": "int32",
        "uint32": "int64",
        "uint64": "float32",
        "float64": "float32",
        "int8": "int8",
    }.items():
        array = np.array([np.iinfo(given).max if given[0] in "iu" else 1.5, 3], given)
        stored = stored_obs(array)
        assert stored.dtype == kept and obs_layout(spaces.Box(0, 1, (2,), np.dtype(given).type))[1] == kept
        assert torch.from_numpy(stored)[[1]].float().item() == 3.0
        assert np.isclose(float(stored[0]), float(array[0]))


UNSUPPORTED = {
    "Text": (spaces.Text(5), "hello", "Encode the text"),
    "Sequence": (spaces.Sequence(spaces.Discrete(2)), (1, 0), "Pad the sequence"),
    "Graph": (spaces.Graph(spaces.Box(0, 1, (2,)), None), None, "Give the graph as Box"),
    "OneOf": (spaces.OneOf((spaces.Discrete(2), BOX)), (0, 1), "one key per alternative"),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
@pytest.mark.parametrize("within", [False, True], ids=["alone", "in a Dict"])
def test_spaces_that_cannot_be_encoded_are_refused_with_a_way_out(kind: str, within: bool) -> None:
    space, value, advice = UNSUPPORTED[kind]

    class Odd(CounterEnv):
        def __init__(self) -> None:
            super().__init__()
            nested = spaces.Dict({"a": spaces.Dict({"b": space}), "c": BOX})
            self.observation_space = nested if within else space  # type: ignore[assignment]

        def _obs(self) -> Any:
            return {"a": {"b": value}, "c": np.zeros(2, np.float32)} if within else value

    refusal = f"'a/b'.* is a {kind}, which is not supported. .*{advice}" if within else f"does not support {kind} obs"
    with pytest.raises(SpaceError, match=refusal):
        PPO(Odd, num_envs=2)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Tuple((BOX,)), NESTED])
def test_actions_of_other_spaces_are_refused_with_a_way_out(space: Any) -> None:
    class Odd(CounterEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

    with pytest.raises(SpaceError, match=rf"(?i)action.*{type(space).__name__}"):
        PPO(Odd, num_envs=2)


def test_actions_that_do_not_start_at_0_reach_the_environment() -> None:
    class Shifted(CounterEnv):
        def __init__(self) -> None:
            super().__init__(script=((5, "terminated"),))
            self.action_space = spaces.Discrete(3, start=5)

    agent = small(PPO, Shifted)
    agent.learn(32)  # CounterEnv asserts that actions are in its space
    assert agent.predict(np.zeros(2, np.float32))[0] in (5, 6, 7)
