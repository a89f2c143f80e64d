"""`check_env` finds what is wrong with an environment, says how to mend it, and has nothing to say about those that are right."""

from __future__ import annotations

import ast
import itertools
import random
import re
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import Autoreset, TimeLimit

import rl_training
from helpers import broken_envs
from helpers.broken_envs import MISTAKES
from helpers.envs import (
    BufferEnv,
    ConstantRewardEnv,
    CounterEnv,
    GlobalCounterEnv,
    OsRandomEnv,
    RandomWalkEnv,
    SelfExportingEnv,
)
from rl_training.envs import check as module
from rl_training.envs.check import check_env
from rl_training.envs.check_report import CHECKS, EnvReport, Finding
from rl_training.envs.env_config import EnvConfig
from rl_training.utils.errors import ConfigError, EnvCreationError, UserError

SCRIPT = ((7, "terminated"), (4, "truncated"))


class Walk(RandomWalkEnv):
    """The random walk with a space that holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class ExportingWalk(SelfExportingEnv):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


def found(report: EnvReport, *levels: str) -> set[tuple[str, str]]:
    return {(finding.level, finding.check) for finding in report.findings if not levels or finding.level in levels}


def the(report: EnvReport, check: str) -> Finding:
    (finding,) = [finding for finding in report.findings if finding.check == check]
    return finding


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Walk, ExportingWalk, Walk()])
def test_environments_that_are_right_have_nothing_to_mend(env: Any) -> None:
    report = check_env(env, steps=300)
    assert report.passed and found(report) == set(), str(report)
    assert report.facts["resume_grade"] == "exact" and report.facts["steps_per_second"] > 0


def test_the_facts_are_those_of_the_environment() -> None:
    report = check_env(lambda: ConstantRewardEnv(2.5, SCRIPT), steps=110)
    assert report.facts["observation_space"] == "Box (2,) float32, 0 to inf"
    assert report.facts["action_space"] == "Discrete(3)" and report.facts["time_limit"] == "none declared"
    assert report.facts["episodes"] == "20 ended, 5.5 steps each, 10 terminated"
    assert report.facts["rewards"] == "2.5 to 2.5, mean 2.5"
    assert report.to_dict()["facts"] == report.facts and report.to_dict()["passed"] is True


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_every_mistake_that_stops_a_training_is_an_error(mistake: Any) -> None:
    report = check_env(mistake, steps=20)
    assert not report.passed
    assert {check for _, check in found(report, "error")} <= {"api", "resume"}
    assert "Broken" not in str(report) and mistake.__name__ in str(report)


@pytest.mark.parametrize(
    "make", [broken_envs.NoDisplay, broken_envs.LeavesAtOnce, broken_envs.NotAnEnv, "NoSuchEnv-v0"]
)
def test_an_environment_that_cannot_be_made_is_an_error(make: Any) -> None:
    report = check_env(make)
    assert found(report) == {("error", "creation")} and not report.passed


class Uncopyable(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class TwoAtOnce(CounterEnv):
    """Draws from the generator of everybody."""

    def _obs(self) -> Any:
        return np.array([self.count, random.random()], np.float32)


class DrawsForNothing(CounterEnv):
    def step(self, action: Any) -> Any:
        random.random()
        return super().step(action)


class Remembers(CounterEnv):
    """Counts its resets, seeded or not."""

    resets = 0

    def reset(self, **kwargs: Any) -> Any:
        _, info = super().reset(**kwargs)
        self.resets += 1
        return self._obs(), info

    def _obs(self) -> Any:
        return np.array([self.count, self.resets], np.float32)


class IgnoresSeed(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=5 if seed is not None else None)


class Outside(CounterEnv):
    def __init__(self) -> None:
        super().__init__(SCRIPT)
        self.observation_space = spaces.Box(0.0, 3.0, (2,), np.float32)


class Doubles(CounterEnv):
    def _obs(self) -> Any:
        return np.array([self.count, 500.0])


class Picture(CounterEnv):
    def __init__(self, dtype: Any) -> None:
        super().__init__(SCRIPT)
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), dtype)

    def _obs(self) -> Any:
        return np.full((8, 8, 3), self.count, self.observation_space.dtype)


class Slow(CounterEnv):
    def step(self, action: Any) -> Any:
        threading.Event().wait(0.005)
        return super().step(action)


class Reading(CounterEnv):
    def __init__(self, space: Any) -> None:
        super().__init__(SCRIPT)
        self.observation_space = space


class Acting(CounterEnv):
    def __init__(self, space: Any) -> None:
        super().__init__(SCRIPT)
        self.action_space = space


CLOCK = itertools.count()


class Clock(CounterEnv):
    """Stands for a clock: what it shows depends on when it is asked."""

    def _obs(self) -> Any:
        return np.array([self.count, time.perf_counter_ns() % 65_536], np.float32)


FINDINGS = {
    "uncopyable": (Uncopyable(), "warning", "creation", "cannot be copied"),
    "text": (partial(Reading, spaces.Text(3)), "error", "observation-space", "is a Text"),
    "nothing": (
        partial(Reading, spaces.Box(0, 1, (0,))),
        "error",
        "observation-space",
        r"\(0,\), which holds no values",
    ),
    "inside": (
        partial(Reading, spaces.Dict({"a": spaces.Tuple((spaces.Text(1),))})),
        "error",
        "observation-space",
        "'a/0'",
    ),
    "infinite actions": (
        partial(Acting, spaces.Box(-np.inf, np.inf, (1,))),
        "error",
        "action-space",
        "infinite bounds",
    ),
    "tuple actions": (partial(Acting, spaces.Tuple((spaces.Discrete(2),))), "error", "action-space", "Tuple"),
    "outside": (Outside, "warning", "bounds", "holds 4 after step 4, its space says 0 to 3"),
    "other dtype": (partial(Doubles, SCRIPT), "info", "bounds", "float64, its space float32"),
    "large": (partial(Doubles, SCRIPT), "info", "bounds", "observations reach 500"),
    "float image": (partial(Picture, np.float32), "warning", "images", "4 times the memory"),
    "image": (partial(Picture, np.uint8), "info", "images", "flat vector"),
    "buffer": (partial(BufferEnv, SCRIPT), "info", "buffers", "writes into an array"),
    "buffers in a Dict": (partial(BufferEnv, SCRIPT, "Dict"), "info", "buffers", "writes into an array"),
    "ignores its seed": (IgnoresSeed, "warning", "seeding", "two seeds give the same episodes"),
    "alike": (partial(ConstantRewardEnv, script=((5, "terminated"),)), None, None, None),
    "no randomness": ("CliffWalking-v1", "info", "seeding", "whatever the seed"),
    "operating system": (partial(OsRandomEnv, SCRIPT), "warning", "determinism", "differ at the reset"),
    "class attribute": (partial(GlobalCounterEnv, SCRIPT), "warning", "determinism", "differ at the reset"),
    "clock": (partial(Clock, SCRIPT), "warning", "determinism", "differ at"),
    "everybody's generator": (partial(TwoAtOnce, SCRIPT), "warning", "shared-generators", "draws from random"),
    "remembers": (partial(Remembers, SCRIPT), "warning", "carried-state", "after other episodes"),
    "endless": (CounterEnv, "warning", "endless", "no episode ended in 100 random steps, and there is no time limit"),
    "long": (lambda: TimeLimit(CounterEnv(), 5_000), "info", "endless", "the time limit is 5000 steps"),
    "NaN at a termination": (broken_envs.NaNTerminal, "info", "final-observation", "nothing is learned"),
    "resets itself": (lambda: Autoreset(CounterEnv(SCRIPT)), "error", "autoreset", "Autoreset"),
    "large rewards": (partial(ConstantRewardEnv, 1e4, SCRIPT), "info", "rewards", "rewards reach 1e"),
    "small rewards": (partial(ConstantRewardEnv, 1e-4, SCRIPT), "info", "rewards", "rewards reach 0.0001"),
    "no rewards": (partial(ConstantRewardEnv, 0.0, SCRIPT), "info", "rewards", "no reward at all"),
    "not to be restored": (partial(OsRandomEnv, SCRIPT), "warning", "resume", "episode-boundary"),
    "slow": (partial(Slow, SCRIPT), "info", "speed", "steps a second"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_what_is_wrong_is_found_and_comes_with_its_fix(name: str) -> None:
    env, level, check, message = FINDINGS[name]
    report = check_env(env, steps=100)
    if level is None:
        assert found(report, "error", "warning") == set(), str(report)
        return
    assert check is not None and message is not None
    (finding,) = [f for f in report.findings if (f.level, f.check) == (level, check) and re.search(message, f.message)]
    assert finding.fix or level == "info" or check == "observation-space", str(finding)
    assert report.passed == (level != "error")


def test_draws_that_change_nothing_are_not_mentioned() -> None:
    assert "shared-generators" not in {
        check for _, check in found(check_env(partial(DrawsForNothing, SCRIPT), steps=50))
    }


def test_the_program_around_it_keeps_its_random_numbers() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    check_env(partial(TwoAtOnce, SCRIPT), steps=50)
    assert random.random() == expected


def test_an_object_is_copied_and_left_alone() -> None:
    env = CounterEnv(SCRIPT)
    env.reset(seed=0)
    env.step(0)
    check_env(env, steps=50)
    assert (env.count, env.episode) == (1, 0)
    report = check_env(Uncopyable(), steps=50)
    assert report.facts["copies"].startswith("none") and "resume_grade" not in report.facts


class TestArguments:
    def test_settings(self) -> None:
        report = check_env("CliffWalking-v1", settings={"max_episode_steps": 20}, steps=100)
        assert report.facts["time_limit"] == "20 steps" and "endless" not in {check for _, check in found(report)}
        assert (
            check_env("CliffWalking-v1", settings=EnvConfig(max_episode_steps=20), steps=100).facts["time_limit"]
            == "20 steps"
        )
        report = check_env("FrozenLake-v1", settings={"kwargs": {"map_name": "8x8"}}, steps=50)
        assert report.facts["observation_space"] == "Discrete(64)"
        report = check_env(
            "CartPole-v1", settings={"wrappers": [{"name": "FrameStackObservation", "stack_size": 3}]}, steps=50
        )
        assert report.facts["observation_space"].startswith("Box (3, 4)")
        assert (
            check_env(ConstantRewardEnv, settings={"kwargs": {"reward": 3.0}}, steps=9)
            .facts["rewards"]
            .startswith("3 to 3")
        )
        with pytest.raises(ConfigError, match="env.kwarg.*did you mean 'kwargs'"):
            check_env("CartPole-v1", settings={"kwarg": {}})
        with pytest.raises(UserError, match="vector environment object"):
            check_env(SyncVectorEnv([CounterEnv]), settings={"kwargs": {"n_actions": 2}})
        report = check_env(CounterEnv(), settings={"kwargs": {"n_actions": 2}})
        assert "made already" in the(report, "creation").message and not report.passed

    def test_settings_of_the_backend(self) -> None:
        report = check_env(Walk, settings={"backend": "async"}, steps=60)
        assert found(report) == set(), str(report)
        report = check_env(partial(GlobalCounterEnv, SCRIPT), settings={"backend": "async"}, steps=60)
        assert ("warning", "workers") in found(report)
        report = check_env("CartPole-v1", settings={"backend": "native"}, steps=60)
        assert report.facts["num_envs"] == 2 and found(report) == set()
        report = check_env("FrozenLake-v1", settings={"backend": "native"})
        assert "no native vector version" in the(report, "creation").message
        report = check_env(Walk, settings={"autoreset": "next_step", "backend": "async"}, steps=60)
        assert found(report) == set(), str(report)

    def test_steps(self) -> None:
        assert check_env(ConstantRewardEnv, steps=10).facts["episodes"].startswith("2 ended")
        with pytest.raises(UserError, match="steps must be at least 1"):
            check_env("CartPole-v1", steps=0)

    def test_seed(self) -> None:
        rewards = {check_env("Pendulum-v1", steps=50, seed=seed).facts["rewards"] for seed in (0, 0, 1)}
        assert len(rewards) == 2

    def test_env(self) -> None:
        with pytest.raises(EnvCreationError, match="not int"):
            check_env(3)  # type: ignore[arg-type]


class Undeclared(SyncVectorEnv):
    def __init__(self) -> None:
        super().__init__([CounterEnv])
        self.metadata = {}


class Forgets(SyncVectorEnv):
    """SAME_STEP without the final observations."""

    def step(self, actions: Any) -> Any:
        *rest, infos = super().step(actions)
        return (*rest, {key: value for key, value in infos.items() if "final" not in key})


VECTORS = {
    "undeclared": (Undeclared, "error", "autoreset", "does not say how it resets"),
    "forgets": (
        lambda: Forgets([partial(CounterEnv, SCRIPT)] * 2, autoreset_mode=AutoresetMode.SAME_STEP),
        "error",
        "autoreset",
        "final_obs",
    ),
    "raises": (lambda: SyncVectorEnv([broken_envs.Raises] * 2), "error", "api", "ZeroDivisionError"),
    "text": (lambda: SyncVectorEnv([partial(Reading, spaces.Text(3))]), "error", "observation-space", "Text"),
    "actions": (lambda: SyncVectorEnv([partial(Acting, spaces.Text(3))]), "error", "action-space", "Text"),
    "operating system": (
        lambda: SyncVectorEnv([partial(OsRandomEnv, SCRIPT)]),
        "warning",
        "determinism",
        "second time",
    ),
    "endless": (lambda: SyncVectorEnv([CounterEnv] * 2), "warning", "endless", "no episode ended in 50 steps"),
    "state": (lambda: SyncVectorEnv([partial(CounterEnv, SCRIPT)] * 2), "warning", "resume", "cannot export its state"),
}


@pytest.mark.parametrize("name", VECTORS)
def test_vector_environments(name: str) -> None:
    make, level, check, message = VECTORS[name]
    report = check_env(make(), steps=100)
    assert any((f.level, f.check) == (level, check) and message in f.message for f in report.findings), str(report)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
def test_a_vector_environments_mode_is_among_the_facts(mode: AutoresetMode) -> None:
    report = check_env(SyncVectorEnv([Walk] * 2, autoreset_mode=mode), steps=100)
    assert report.facts["autoreset"] == mode.name.lower() and report.facts["num_envs"] == 2
    assert found(report) == {("warning", "resume")}, str(report)


def test_a_vector_environment_with_nested_observations() -> None:
    report = check_env(SyncVectorEnv([lambda: gym.make("Blackjack-v1")] * 2, autoreset_mode="SameStep"), steps=100)
    assert report.passed and report.facts["observation_space"].startswith("0: Discrete(32); 1:")


def test_the_report_reads_like_a_report() -> None:
    report = EnvReport("My-v0", facts={"time_limit": "none"})
    report.add("info", "speed", "slow", "be fast")
    report.add("error", "api", "wrong")
    assert str(report) == (
        "My-v0\n  time limit: none\nerror: api: wrong\ninfo: speed: slow\n    fix: be fast\nnot passed: 1 error, 0 warnings"
    )
    with pytest.raises(AssertionError):
        report.add("info", "no such check", "x")


def test_every_check_that_the_code_makes_is_explained_in_the_docs() -> None:
    sources = [Path(str(module.__file__)).with_name(name).read_text() for name in ("check.py", "check_rules.py")]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add"]
    made = {call.args[1].value for call in calls if len(call.args) > 2 and isinstance(call.args[1], ast.Constant)}
    assert made == set(CHECKS)
    page = (Path(__file__).parents[3] / "docs" / "environments.md").read_text()
    assert [check for check in CHECKS if f"| `{check}` |" not in page] == []


def test_it_is_public_and_needs_no_torch() -> None:
    assert rl_training.check_env is check_env
    code = (
        "import sys, rl_training; print(rl_training.check_env('CartPole-v1', steps=50).passed, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"]
