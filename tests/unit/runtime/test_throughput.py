"""Where the time goes."""

from __future__ import annotations

import pytest

from rl_training.runtime import throughput
from rl_training.runtime.throughput import RateMeter, StageTimer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, to be set by the test."""
    now = [100.0]
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    return now


def test_elapsed_counts_from_the_start(clock: list[float]) -> None:
    timer = StageTimer()
    assert timer.elapsed == 0.0
    timer.start()
    clock[0] += 2.5
    assert timer.elapsed == 2.5


def test_elapsed_survives_a_resume_and_leaves_out_pauses(clock: list[float]) -> None:
    timer = StageTimer()
    timer.start()
    clock[0] += 3.0
    timer.stop()
    clock[0] += 1000.0
    assert timer.elapsed == 3.0
    timer.start()
    clock[0] += 1.0
    assert timer.elapsed == 4.0
    resumed = StageTimer()
    resumed.load_state_dict(timer.state_dict())
    resumed.start()
    clock[0] += 0.5
    assert resumed.elapsed == 4.5


def test_stages_add_up_also_when_they_fail(clock: list[float]) -> None:
    timer = StageTimer()
    timer.add("env", 1.0)
    with timer.stage("env"):
        clock[0] += 0.25
    with pytest.raises(ZeroDivisionError), timer.stage("learn"):
        clock[0] += 2.0
        raise ZeroDivisionError
    assert timer.seconds == {"env": 1.25, "learn": 2.0}


def test_rates_are_those_since_the_last_reading(clock: list[float]) -> None:
    timer = StageTimer()
    timer.add("env", 50.0)
    meter = RateMeter(timer, step=1000)
    timer.add("env", 1.0)
    timer.add("learn", 2.0)
    clock[0] += 4.0
    assert meter.read(step=1200) == {"steps_per_second": 50.0, "env_share": 0.25, "learn_share": 0.5}
    timer.add("learn", 1.0)
    clock[0] += 1.0
    assert meter.read(step=1300) == {"steps_per_second": 100.0, "env_share": 0.0, "learn_share": 1.0}


def test_evaluations_and_checkpoints_do_not_count_as_training(clock: list[float]) -> None:
    timer = StageTimer()
    meter = RateMeter(timer, step=0)
    timer.add("learn", 1.0)
    timer.add("evaluate", 7.0)
    timer.add("checkpoint", 1.0)
    clock[0] += 10.0
    assert meter.read(step=100) == {"steps_per_second": 50.0, "learn_share": 0.5}
