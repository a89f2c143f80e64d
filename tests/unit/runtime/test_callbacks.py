"""When callbacks act, what they stop, and what they remember."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.envs import ConstantRewardEnv, CounterEnv
from helpers.tools import through_codec
from rl_training import PPO
from rl_training.runtime.callbacks import (
    Callback,
    Evaluate,
    Every,
    SaveCheckpoints,
    StopOnNoImprovement,
    StopOnReward,
    StopOnTime,
)
from rl_training.runtime.evaluator import EvaluationResult
from rl_training.runtime.throughput import StageTimer
from rl_training.utils.errors import ConfigError


def result(mean: float) -> EvaluationResult:
    return EvaluationResult.from_episodes([mean], [1], deterministic=True)


class Loop:
    """The part of a trainer that callbacks use, driven by hand."""

    def __init__(self, callback: Callback):
        self.callback = callback
        self.global_step = self.previous_step = 0
        self.timer = StageTimer()
        self.complete = True
        self.reasons: list[str] = []

    def stop(self, reason: str, **_: Any) -> None:
        self.reasons.append(reason)

    def step_to(self, step: int) -> None:
        self.previous_step, self.global_step = self.global_step, step
        self.callback.on_iteration_end(self)  # type: ignore[arg-type]

    def report_evaluation(self, evaluation: EvaluationResult) -> None:
        self.callback.on_evaluation(self, evaluation)  # type: ignore[arg-type]


def test_every_counts_environment_steps() -> None:
    every = Every(100)
    passed = [every.passed(before, now) for before, now in ((0, 64), (64, 128), (128, 192), (192, 450), (450, 500))]
    assert passed == [False, True, False, True, True]
    assert not Every(0).passed(0, 10**9)


def test_stop_on_reward() -> None:
    loop = Loop(StopOnReward(10.0))
    loop.report_evaluation(result(9.9))
    assert loop.reasons == []
    loop.report_evaluation(result(10.0))
    assert loop.reasons == ["evaluation return 10.0 reached 10"]


def test_stop_on_no_improvement_counts_evaluations_in_a_row() -> None:
    loop = Loop(StopOnNoImprovement(patience=2))
    for mean in (1.0, 0.0, 2.0, 2.0):  # an equal mean is no improvement
        loop.report_evaluation(result(mean))
    assert loop.reasons == []
    resumed = StopOnNoImprovement(patience=2)
    resumed.load_state_dict(through_codec(loop.callback.state_dict()))
    loop.callback = resumed
    loop.report_evaluation(result(1.5))
    assert loop.reasons == ["no improvement in 2 evaluations (best 2.0)"]


def test_stop_on_no_improvement_before_any_evaluation_can_be_saved() -> None:
    fresh = StopOnNoImprovement(patience=1)
    fresh.load_state_dict(through_codec(fresh.state_dict()))
    loop = Loop(fresh)
    loop.report_evaluation(result(-1e9))
    assert loop.reasons == []


def test_stop_on_time_counts_earlier_sessions() -> None:
    loop = Loop(StopOnTime(60.0))
    loop.step_to(10)
    assert loop.reasons == []
    loop.timer.load_state_dict({"elapsed": 60.5})
    loop.step_to(20)
    assert loop.reasons == ["time limit of 60 s reached"]


class FakeEvaluator:
    def __init__(self) -> None:
        self.streams: list[int] = []
        self.closed = 0

    def evaluate(
        self, policy: Any, episodes: int, *, deterministic: bool, stream: int, stopped: Any
    ) -> EvaluationResult:
        self.streams.append(stream)
        return result(float(stream))

    def close(self) -> None:
        self.closed += 1


def evaluate_callback() -> tuple[Evaluate, FakeEvaluator]:
    evaluator = FakeEvaluator()
    return Evaluate(evaluator, None, every=100, episodes=1, deterministic=True), evaluator  # type: ignore[arg-type]


def test_evaluations_come_every_so_many_steps_and_once_at_the_end() -> None:
    callback, evaluator = evaluate_callback()
    loop = Loop(callback)
    for step in (60, 120, 180, 240):
        loop.step_to(step)
    callback.on_training_end(loop)  # type: ignore[arg-type]
    assert evaluator.streams == [120, 240], "the last step was evaluated already"
    loop.step_to(260)
    callback.on_training_end(loop)  # type: ignore[arg-type]
    assert evaluator.streams == [120, 240, 260]
    resumed, other = evaluate_callback()
    resumed.load_state_dict(through_codec(callback.state_dict()))
    resumed.on_training_end(loop)  # type: ignore[arg-type]
    assert other.streams == []


def test_an_interrupted_run_is_not_evaluated_again() -> None:
    callback, evaluator = evaluate_callback()
    loop = Loop(callback)
    loop.step_to(60)
    loop.complete = False
    callback.on_training_end(loop)  # type: ignore[arg-type]
    assert evaluator.streams == []


def test_checkpoints_at_the_start_at_multiples_at_a_new_best_and_at_the_end() -> None:
    saves: list[tuple[int, bool]] = []
    callback = SaveCheckpoints(lambda step, best: saves.append((step, best)), every=100)
    loop = Loop(callback)
    callback.on_training_start(loop)  # type: ignore[arg-type]
    loop.step_to(60)
    loop.step_to(120)
    callback.on_evaluation(loop, result(5.0))  # type: ignore[arg-type]
    loop.step_to(150)
    callback.on_evaluation(loop, result(5.0))  # type: ignore[arg-type]
    loop.step_to(180)
    callback.on_training_end(loop)  # type: ignore[arg-type]
    callback.on_training_end(loop)  # type: ignore[arg-type]
    assert saves == [(0, False), (120, False), (150, True), (180, False)]
    resumed = SaveCheckpoints(lambda step, best: saves.append((step, best)), every=100)
    resumed.load_state_dict(through_codec(callback.state_dict()))
    resumed.on_training_start(loop)  # type: ignore[arg-type]
    resumed.on_evaluation(loop, result(4.0))  # type: ignore[arg-type]
    resumed.on_training_end(loop)  # type: ignore[arg-type]
    assert saves[4:] == [(180, False)], (
        "not at the start again, but after a last evaluation, which other callbacks heard"
    )


def test_the_saved_state_of_the_checkpoint_callback_includes_the_save_itself() -> None:
    states: list[Any] = []
    callback = SaveCheckpoints(lambda step, best: states.append(callback.state_dict()), every=100)
    Loop(callback).step_to(100)
    assert states == [{"best": float("-inf"), "best_step": None, "saved_step": 100}]


class Remembers(Callback):
    """A user's callback: counts iterations over all resumes and keeps the events it saw."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.count = 0
        self.events: list[str] = []

    def on_training_start(self, trainer: Any) -> None:
        self.events.append("start")

    def on_iteration_end(self, trainer: Any) -> None:
        self.count += 1
        self.events.append(f"iteration {trainer.global_step}")

    def on_metrics(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.events.append(f"metrics {metrics['global_step']}")

    def on_evaluation(self, trainer: Any, evaluation: EvaluationResult) -> None:
        self.events.append(f"evaluation {trainer.global_step}")

    def on_training_end(self, trainer: Any) -> None:
        self.events.append("end")

    def close(self) -> None:
        self.events.append("close")

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def make_agent(**settings: Any) -> Any:
    values: dict[str, Any] = {"num_envs": 2, "num_steps": 10, "total_timesteps": 60, "num_minibatches": 1, **settings}
    return PPO(ConstantRewardEnv, **values)


def test_a_users_callback_sees_every_event_in_order() -> None:
    callback = Remembers()
    agent = make_agent(evaluation={"every": 40, "episodes": 1}, logging={"every": 20, "console": "off"})
    agent.learn(callbacks=[callback])
    assert callback.events == [
        "start",
        "iteration 20",
        "metrics 20",
        "evaluation 40",
        "iteration 40",
        "metrics 40",
        "iteration 60",
        "metrics 60",
        "evaluation 60",
        "end",
        "close",
    ]


def test_a_users_callback_state_is_in_the_checkpoint(tmp_path: Any) -> None:
    first, second, other = Remembers(), Remembers(), Remembers("another name")
    agent = make_agent()
    agent.learn(callbacks=[first])
    agent.save(tmp_path / "agent")
    loaded = PPO.load(tmp_path / "agent", env=ConstantRewardEnv)
    loaded.learn(total_timesteps=100, callbacks=[second, other])
    assert (first.count, second.count, other.count) == (3, 5, 2), "callbacks that are new start fresh"


def test_close_comes_after_a_failure_too() -> None:
    class Fails(Remembers):
        def on_iteration_end(self, trainer: Any) -> None:
            raise ZeroDivisionError

    callback = Fails()
    with pytest.raises(ZeroDivisionError):
        make_agent().learn(callbacks=[callback])
    assert callback.events == ["start", "close"]


def test_two_callbacks_of_one_class_need_names() -> None:
    with pytest.raises(ConfigError, match="two callbacks share the name 'Remembers'"):
        make_agent().learn(callbacks=[Remembers(), Remembers()])
    one, two = Remembers(), Remembers("second")
    make_agent().learn(callbacks=[one, two])
    assert (one.count, two.count) == (3, 3)


@pytest.mark.parametrize(
    ("stopping", "reason", "steps"),
    [
        ({"reward": 5.0}, "evaluation return 5.0 reached 5", 40),
        ({"reward": 6.0}, None, 200),
        ({"patience": 2}, "no improvement in 2 evaluations (best 5.0)", 120),
        ({"max_seconds": 1e-6}, "time limit of 1e-06 s reached", 20),
    ],
)
def test_stopping_rules_of_the_config(stopping: dict[str, float], reason: str | None, steps: int) -> None:
    agent = make_agent(total_timesteps=200, stopping=stopping, evaluation={"every": 40, "episodes": 2})
    outcome = agent.learn()
    assert (outcome.stop_reason, agent.num_timesteps) == (reason, steps)


def test_a_callback_can_stop_the_training() -> None:
    class Stops(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            if trainer.global_step >= 40:
                trainer.stop("enough")
                trainer.stop("a later reason does not count")

    agent = PPO(CounterEnv, num_envs=2, num_steps=10, num_minibatches=1)
    outcome = agent.learn(total_timesteps=1000, callbacks=[Stops()])
    assert (outcome.stop_reason, outcome.metrics["global_step"]) == ("enough", 40)
