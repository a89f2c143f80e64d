"""The outer loop: how far it goes, what it counts, and that it can be split anywhere."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.envs import ConstantRewardEnv, RandomWalkEnv
from helpers.tools import through_codec
from rl_training import A2C, PPO
from rl_training.experiment.run.session import TrainingSession
from rl_training.runtime.callbacks import Callback
from rl_training.utils.trees import differing_paths

IGNORED = ("runtime.timer", "runtime.resume_count")


def make_agent(cls: Any = PPO, make: Any = RandomWalkEnv, **settings: Any) -> Any:
    defaults: dict[str, Any] = {"num_envs": 2, "num_steps": 10, "seed": 3}
    return cls(make, **{**defaults, **settings})


def state_of(session: TrainingSession) -> Any:
    return through_codec(session.snapshot()[0])


@pytest.mark.parametrize(("asked", "taken"), [(1, 20), (20, 20), (21, 40), (59, 60), (60, 60)])
def test_total_timesteps_is_overshot_by_less_than_one_rollout(asked: int, taken: int) -> None:
    result = make_agent(num_minibatches=1).learn(total_timesteps=asked)
    assert result.metrics["global_step"] == taken
    assert result.stop_reason is None and result.exit_code == 0


def test_the_reset_calls_of_next_step_are_no_timesteps() -> None:
    class Valid(Callback):
        steps = 0

        def on_iteration_end(self, trainer: Any) -> None:
            self.steps += int(trainer.collector.buffer.valid.sum())

    counter = Valid()
    agent = make_agent(
        make=ConstantRewardEnv, env={"autoreset": "next_step"}
    )  # episodes of five steps, and one to reset
    agent.learn(total_timesteps=50, callbacks=[counter])
    # Every sixth call is a reset: the 6th, then the 12th and 18th, then the 24th and 30th, in both environments.
    assert agent.num_timesteps == counter.steps == 2 * 9 + 2 * 8 + 2 * 8


@pytest.mark.parametrize("settings", [{"cls": A2C}, {"cls": PPO, "num_minibatches": 1, "target_kl": 0.5}])
def test_a_rollout_of_resets_only_teaches_nothing(settings: dict[str, Any]) -> None:
    agent = make_agent(num_envs=1, num_steps=1, env={"autoreset": "next_step"}, **settings)
    result = agent.learn(total_timesteps=60)  # several episodes, and after each a rollout that is one reset call
    assert result.metrics["global_step"] == 60
    assert agent._session.trainer.iterations > 60


def test_progress_is_the_share_of_steps_before_the_rollout() -> None:
    seen = []

    class Looks(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            seen.append((trainer.previous_step, trainer.global_step, trainer.iterations, trainer.progress))

    agent = make_agent(learning_rate={"start": 1.0, "end": 0.0}, num_minibatches=1)
    result = agent.learn(total_timesteps=80, callbacks=[Looks()])
    assert seen == [(0, 20, 1, 0.25), (20, 40, 2, 0.5), (40, 60, 3, 0.75), (60, 80, 4, 1.0)]
    assert result.metrics["train/learning_rate"] == pytest.approx(0.25), "the fourth of four updates"


@pytest.mark.parametrize("cls", [PPO, A2C])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_a_split_run_equals_the_whole_run(cls: Any, autoreset: str) -> None:
    settings: dict[str, Any] = {
        "total_timesteps": 120,
        "env": {"autoreset": autoreset, "normalize_observations": True, "normalize_rewards": True},
        "evaluation": {"every": 40, "episodes": 2},
        "stopping": {"patience": 100},
    }
    whole = make_agent(cls, **settings)
    whole.learn()

    class Saves(Callback):
        state: Any = None

        def on_iteration_end(self, trainer: Any) -> None:
            if trainer.iterations == 3:
                self.state = {
                    "policy": through_codec(dict(first.policy.state_dict())),
                    "algorithm": through_codec(first.algorithm.state_dict()),
                    "runtime": through_codec(trainer.state_dict()),
                }

    first, saves = make_agent(cls, **settings), Saves()
    first.learn(callbacks=[saves])
    assert saves.state["runtime"]["global_step"] < first.num_timesteps
    second = make_agent(cls, **settings)
    second.policy.load_state_dict(saves.state["policy"])
    second.algorithm.load_state_dict(saves.state["algorithm"])
    session = second._session_for(())
    session.trainer.load_state_dict(saves.state["runtime"])
    assert session.trainer.resume_grade == "exact"
    session.train()
    assert differing_paths(state_of(session), state_of(whole._session), ignore=IGNORED) == []


def test_two_calls_of_learn_equal_one(tmp_path: Any) -> None:
    once, twice = make_agent(), make_agent()
    once.learn(total_timesteps=120)
    twice.learn(total_timesteps=60)
    twice.learn(total_timesteps=120)
    assert differing_paths(state_of(once._session), state_of(twice._session), ignore=IGNORED) == []


def test_the_clock_goes_on_in_a_second_call() -> None:
    agent = make_agent()
    first = agent.learn(total_timesteps=60).metrics["time/elapsed"]
    trainer = agent._session.trainer
    assert trainer.timer.elapsed >= first
    stopped = trainer.timer.elapsed
    assert trainer.timer.elapsed == stopped, "no time passes between the calls"
    assert agent.learn(total_timesteps=120).metrics["time/elapsed"] > stopped


def test_the_programs_own_random_numbers_are_not_touched_and_do_not_matter() -> None:
    import numpy as np
    import torch

    class Draws(RandomWalkEnv):
        """Uses the process-wide generator, as some environments do."""

        def step(self, action: Any) -> Any:
            self.position += float(np.random.normal())  # noqa: NPY002
            return super().step(action)

    states = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        expected = np.random.RandomState(seed).random_sample(), torch.Generator().manual_seed(seed)
        agent = make_agent(make=Draws)
        agent.learn(total_timesteps=60)
        states.append(state_of(agent._session))
        assert np.random.random_sample() == expected[0]  # noqa: NPY002
        assert torch.rand(()) == torch.rand((), generator=expected[1])
    assert differing_paths(*states, ignore=IGNORED) == []
