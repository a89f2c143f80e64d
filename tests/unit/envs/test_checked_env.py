"""An environment's mistakes are named as the environment's, with its id, index and step, in this process and in workers."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from helpers import broken_envs
from helpers.broken_envs import AT, MISTAKES
from helpers.envs import BufferEnv, CounterEnv
from rl_training import PPO, SAC
from rl_training.cli import main
from rl_training.envs.contract import EnvStepper
from rl_training.envs.env_config import EnvConfig
from rl_training.envs.factory import EnvFactory, make_vector_env
from rl_training.utils.errors import EnvCreationError, EnvFailure

BACKENDS = ("sync", "async")
MODES = ("same_step", "next_step", "disabled")


def stepper_of(make: Any, backend: Any = "sync", mode: Any = "same_step", num_envs: int = 2) -> EnvStepper:
    env = EnvConfig(backend=backend, autoreset=mode)
    cfg = SimpleNamespace(env_id="Broken-v0", env=env, num_envs=num_envs, seed=0)
    return EnvStepper(make_vector_env(cfg, custom=make))


def play(stepper: EnvStepper, steps: int = AT + 3) -> list[Any]:
    stepper.reset(seed=0)
    actions = np.zeros(stepper.num_envs, dtype=np.int64)
    return [stepper.step(actions) for _ in range(steps)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_is_the_environments_and_says_where(mistake: Any, backend: str) -> None:
    stepper = stepper_of(mistake, backend)
    try:
        with pytest.raises(EnvFailure, match=MISTAKES[mistake]) as caught:
            play(stepper)
    finally:
        stepper.close()
    assert re.match(r"environment 'Broken-v0' \(index 0, ", str(caught.value)), str(caught.value)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("mode", MODES)
def test_the_other_autoreset_modes_look_as_well(mode: str) -> None:
    for mistake in (broken_envs.NaNObservation, broken_envs.NaNTruncated, broken_envs.WrongShape):
        with pytest.raises(EnvFailure, match=MISTAKES[mistake]):
            play(stepper_of(mistake, mode=mode))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
def test_nan_at_a_termination_is_no_mistake(mode: str, backend: str) -> None:
    stepper = stepper_of(broken_envs.NaNTerminal, backend, mode)
    records = play(stepper)
    stepper.close()
    last = records[AT - 1]
    assert last.terminated.all()
    assert np.isnan(last.next_obs[:, 0]).all(), "the transition keeps what the environment said"
    assert all(np.isfinite(record.obs).all() for record in records), "but no policy acts on it"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("within", ["Box", "Dict", "Tuple"])
def test_the_final_observation_is_true_even_if_the_environment_writes_into_its_array(
    within: Any, mode: str, backend: str
) -> None:
    stepper = stepper_of(partial(BufferEnv, ((3, "truncated"),), within), backend, mode)
    records = play(stepper, 5)
    stepper.close()
    last = records[2].next_obs
    assert (last if within == "Box" else last["x" if within == "Dict" else "1"])[:, 0].tolist() == [3.0, 3.0]


def test_the_index_is_the_environments_own() -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(CounterEnv() if len(made) != 1 else broken_envs.NaNFlag())
        return made[-1]

    with pytest.raises(EnvFailure, match=r"\(index 1, episode 1, step 3\)"):
        play(stepper_of(make, num_envs=3))
    made.clear()

    def make_nan() -> Any:
        made.append(CounterEnv() if len(made) != 1 else broken_envs.NaNReward())
        return made[-1]

    with pytest.raises(EnvFailure, match=r"\(index 1, step 3 since the start\): step\(\) returned the reward nan"):
        play(stepper_of(make_nan, num_envs=3))


class Usual(CounterEnv):
    """What is right though unusual: other number types, one-element arrays, float64 for float32, a list."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        rewards = (np.array([reward]), np.float16(reward), int(reward), np.array(reward), np.int8(reward))
        observations = (obs.astype(np.float64), obs.tolist(), obs.astype(np.int64), obs, obs)
        flags = (np.bool_(terminated), 0, np.array(False), 0.0, np.array([False]))
        index = self.count - 1
        return observations[index], rewards[index], flags[index], flags[-index - 1], info


def test_what_is_unusual_but_right_is_taken() -> None:
    records = play(stepper_of(Usual), steps=5)
    assert [record.rewards.tolist() for record in records] == [[float(n), float(n)] for n in range(1, 6)]
    assert [record.next_obs[0, 0] for record in records] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert not any(record.ended.any() for record in records)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (broken_envs.NoDisplay, r"RuntimeError: cannot connect to X server.*broken_envs.py:\d+\)\nIt wants a display"),
        (broken_envs.NeedsPackage, r"ModuleNotFoundError: No module named 'no_such_simulator'.*\nInstall"),
        (broken_envs.LeavesAtOnce, r"it called sys.exit\(0\)"),
        (broken_envs.NotAnEnv, r"must return a gymnasium.Env, not helpers.broken_envs.NotAnEnv"),
    ],
)
def test_an_environment_that_cannot_be_made_is_named(make: Any, message: str) -> None:
    with pytest.raises(EnvCreationError, match=rf"environment 'Broken-v0'.*{message}"):
        stepper_of(make)
    name = "CannotBeMade-v0"
    gym.register(name, make)
    try:
        with pytest.raises(EnvCreationError, match=f"environment '{name}' could not be made"):
            EnvFactory(name)()
    finally:
        del gym.registry[name]


def test_render_and_close_are_named_too() -> None:
    env = EnvFactory("Broken-v0", custom=broken_envs.BrokenRender)()
    env.reset(seed=0)
    with pytest.raises(EnvFailure, match=r"environment 'Broken-v0' .* failed in render\(\): RuntimeError: no display"):
        env.render()
    with pytest.warns(UserWarning, match=r"'Broken-v0' .* failed in close\(\): RuntimeError: already closed"):
        EnvFactory("Broken-v0", custom=broken_envs.BrokenClose)().close()


@pytest.mark.parametrize("mistake", [broken_envs.Raises, broken_envs.NaNReward, broken_envs.NaNObservation])
def test_vector_environments_of_others_are_looked_at(mistake: Any) -> None:
    envs = SyncVectorEnv([mistake] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(EnvFailure, match=r"environment 'SyncVectorEnv' .*(step 3|the simulator broke)"):
        play(EnvStepper(envs))


class StrangeVector(SyncVectorEnv):
    """A vector environment that gives other shapes and types than it should."""

    def __init__(self, **changes: Any) -> None:
        super().__init__([CounterEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
        self.changes = changes

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, infos = super().step(actions)
        parts = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, **self.changes}
        return (*parts.values(), infos)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": np.zeros((2, 5))}, r"an observation of shape \(2, 5\) came back, its space has \(2, 2\)"),
        ({"obs": {"x": np.zeros((2, 2))}}, "not of its space"),
        ({"reward": np.zeros((2, 3))}, r"a reward of 3 numbers.*LinearReward"),
        ({"reward": np.zeros(5)}, r"rewards of shape \(5,\) for 2 environments"),
        ({"terminated": np.zeros(5)}, r"terminated of shape \(5,\) for 2 environments"),
        ({"truncated": np.array([0.0, np.nan])}, r"\(index 1, .*truncated=.*nan.*, which is neither true nor false"),
    ],
)
def test_the_form_of_a_vector_environment_of_others_is_looked_at(changes: Any, message: str) -> None:
    with pytest.raises(EnvFailure, match=message):
        play(EnvStepper(StrangeVector(**changes)))


def test_training_and_evaluation_name_the_environment() -> None:
    with pytest.raises(EnvFailure, match=r"environment 'Raises' \(index 0, episode 1, step 3\) failed in step"):
        PPO(broken_envs.Raises, num_envs=2, num_steps=8).learn(16)
    with pytest.raises(EnvFailure, match=r"environment 'Raises' \(index 0, episode 1, step 3\) failed in step"):
        PPO(broken_envs.Raises, num_envs=2, num_steps=8).evaluate(1)


def test_a_double_that_float32_cannot_hold_is_named() -> None:
    class Huge(CounterEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)

        def _obs(self) -> Any:
            return np.array([1e30 if self.count < AT else 1e300, 0.0])

    with pytest.raises(EnvFailure, match=r"step 3 since.*1e\+300, more than float32 holds"):
        play(stepper_of(Huge))


MODULE = """
import sys
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

class {name}(CartPoleEnv):
    def step(self, action):
        {statement}

gym.register("{name}-v0", {name}, max_episode_steps=20)
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("name", "statement", "message"),
    [
        ("Exits", "sys.exit(0)", r"it called sys.exit\(0\) \(.*exits.*.py:8\)"),
        ("Divides", "return 1 / 0", r"ZeroDivisionError: division by zero \(.*divides.*.py:8\)"),
        ("Old", "return super().step(action)[:4]", r"must return five values"),
    ],
)
def test_on_the_command_line_it_is_one_message_and_exit_code_1(
    name: str, statement: str, message: str, backend: str, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    name += backend.title()
    file = tmp_path / f"{name.lower()}.py"
    file.write_text(MODULE.format(name=name, statement=statement))
    config = tmp_path / "run.yaml"
    config.write_text(
        f"algo: ppo\nenv_id: {name}-v0\nnum_envs: 2\nenv: {{backend: {backend}}}\noutput_dir: {tmp_path}/runs"
    )
    arguments = ["train", "--config", str(config), "--import", str(file), "--set", "logging.console=off"]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert re.search(rf"^error: environment '{name}-v0' \(index 0, episode 1, step 1\).*{message}", said), said
    assert "Traceback" not in said and "bug" not in said
    monkeypatch.setenv("AXIOMRL_TRACEBACK", "1")
    assert main(arguments) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_off_policy_run_survives_nan_at_terminations() -> None:
    class Continuous(broken_envs.NaNTerminal):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    agent = SAC(Continuous, num_envs=1, learning_starts=8, batch_size=8, buffer_size=100, policy={"hidden_sizes": [8]})
    agent.learn(4)  # the step contract lets it through; what a buffer makes of it is the buffer's matter
    assert agent.num_timesteps == 4
