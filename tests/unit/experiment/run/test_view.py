"""A run's view: bounded history, ETA, shares, and its place among the reference seeds."""

from __future__ import annotations

from typing import Any

import pytest

from rl_training.experiment.run.reference import Reference
from rl_training.experiment.run.view import History, RunView, number


def evaluation(mean: float | None, low: float = 0.0, high: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"mean": mean, "ci_low": low, "ci_high": high, "episodes": 20, "deterministic": True, **more}


def test_a_full_history_averages_neighbours_in_pairs() -> None:
    history = History(capacity=4)
    for step, value in [(1, 10.0), (2, 20.0), (3, 30.0)]:
        history.add(step, value)
    assert history.points == [(1, 10.0), (2, 20.0), (3, 30.0)]
    history.add(4, 50.0)
    assert history.points == [(1.5, 15.0), (3.5, 40.0)]
    history.add(5, 60.0)  # half of the next pair
    assert history.points == [(1.5, 15.0), (3.5, 40.0), (5.0, 60.0)]
    history.add(6, 70.0)
    assert history.points[-1] == (5.5, 65.0)


def test_a_history_of_a_million_values_stays_small_and_keeps_its_shape() -> None:
    history = History(capacity=8)
    for step in range(1_000_000):
        history.add(step, 2.0 * step)
    points = history.points
    assert len(points) <= 8
    assert all(value == pytest.approx(2 * step) for step, value in points)


def test_the_eta_follows_the_second_half_of_the_steps() -> None:
    view = RunView("x", total_timesteps=400)
    assert view.eta is None
    view.add_metrics(100, {"time/elapsed": 10.0})
    # Half of 100 steps took 5 of the 10 seconds: 0.1 s a step, 300 steps left.
    assert view.eta == pytest.approx(30.0)
    view.add_metrics(200, {"time/elapsed": 30.0})
    # The second 100 steps took 20 s: 0.2 s a step, 200 steps left. The average of all would say 30 s.
    assert view.eta == pytest.approx(40.0)
    view.add_metrics(416, {"time/elapsed": 70.0})
    assert view.eta == 0.0


def test_stages_come_in_order_and_the_rest_is_other() -> None:
    view = RunView("x", 100)
    assert view.stages == {}
    shares = {"time/learn_share": 0.2, "time/env_share": 0.5, "time/log_share": 0.1, "time/inference_share": None}
    view.add_metrics(10, {"time/steps_per_second": 1234.5, **shares})
    assert list(view.stages) == ["env", "learn", "log", "other"]
    assert view.stages["other"] == pytest.approx(0.2)
    assert view.steps_per_second == 1234.5


def test_last_and_best_evaluation_are_apart() -> None:
    view = RunView("x", 100)
    view.add_evaluation(10, evaluation(50.0))
    view.add_evaluation(20, evaluation(30.0))
    assert view.evaluation is not None and view.best is not None
    assert (view.evaluation.step, view.evaluation.mean) == (20, 30.0)
    assert (view.best.step, view.best.mean) == (10, 50.0)
    assert view.scores.points == [(10.0, 50.0), (20.0, 30.0)]


def test_what_was_not_finite_is_passed_over() -> None:
    view = RunView("x", 100)
    view.add_metrics(10, {"episode_return": None, "time/elapsed": None})  # null stands for NaN in the files
    assert view.add_evaluation(10, evaluation(None)) is None
    assert view.add_evaluation(10, evaluation(float("nan"))) is None
    assert (view.step, view.episode_return, view.evaluation, view.returns.points) == (10, None, None, [])


def test_the_newest_evaluation_is_compared_at_its_own_step() -> None:
    reference = Reference("p/q", 9.0, (8.0, 10.0), (8.0, 10.0), (((10, 0.0), (20, 10.0)), ((10, 2.0), (20, 12.0))))
    view = RunView("x", 100, reference)
    assert view.band is None and view.place is None
    view.add_metrics(15, {})
    assert view.band is not None and (view.band.low, view.band.high) == (5.0, 7.0)
    assert view.place is None, "there is nothing to compare yet"
    view.add_evaluation(10, evaluation(1.0, 0.0, 2.0))
    view.add_metrics(20, {})
    assert view.band is not None and (view.band.step, view.band.low, view.band.high) == (10, 0.0, 2.0)
    assert view.place == "within"
    state = view.to_dict()
    assert state["reference"]["place"] == "within" and state["evaluation"]["step"] == 10 and state["step"] == 20


def test_numbers_as_people_read_them() -> None:
    values = [None, 0.0, 0.054, 9.5, -12.34, 1234.56, 12_345_678.0]
    assert [number(value) for value in values] == ["-", "0.0", "0.05", "9.50", "-12.3", "1,234.6", "1.23e+07"]
