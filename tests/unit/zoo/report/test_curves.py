"""Curves over seeds."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.zoo.report.curves import Series, band, series, thin


def curve(steps: list[float], values: list[float]) -> Series:
    return Series(np.array(steps, dtype=float), np.array(values, dtype=float))


def test_the_mean_on_a_common_grid() -> None:
    """The second curve is 5 half-way between 0 and 10."""
    made = band([curve([100, 200, 300], [0, 2, 4]), curve([100, 300], [0, 10])])
    assert made is not None
    assert made.steps.tolist() == [100, 200, 300]
    assert made.mean.tolist() == [0, 3.5, 7]
    assert made.low is None, "two seeds have no interval"


def test_the_interval_lies_within_the_seeds_and_around_the_mean() -> None:
    made = band([curve([1, 2], [0, 0]), curve([1, 2], [3, 6]), curve([1, 2], [6, 6])])
    assert made is not None and made.low is not None and made.high is not None
    assert (made.low >= 0).all() and (made.high <= 6).all()
    assert (made.low < made.mean).all() and (made.mean < made.high).all()
    assert made.mean.tolist() == [3, 4]


def test_a_seed_that_ended_early_does_not_cut_the_others() -> None:
    made = band([curve([1, 2, 3], [1, 1, 1]), curve([1, 2, 3], [3, 3, 3]), curve([1], [2])])
    assert made is not None and made.steps.tolist() == [1, 2, 3]
    assert made.mean.tolist() == [2, 2, 2]


def test_where_less_than_half_of_the_seeds_are_there_is_no_mean() -> None:
    made = band([curve([1, 2, 9], [1, 1, 1]), curve([1, 2], [3, 3]), curve([1, 2], [2, 2])])
    assert made is not None and made.steps.tolist() == [1, 2]


def test_nothing_to_draw() -> None:
    assert band([]) is None and band([curve([], [])]) is None


def test_a_long_curve_is_thinned_to_means_and_keeps_its_last_point() -> None:
    made = thin(curve(list(range(1001)), [float(value) for value in range(1001)]), limit=11)
    assert len(made) == 11
    assert made.values[0] == pytest.approx(49.5), "the mean of the first hundred"
    assert (made.steps[-1], made.values[-1]) == (1000, 1000)


def test_a_series_leaves_out_what_is_no_number_and_steps_that_do_not_rise() -> None:
    rows = [{"step": 1, "x": 1.0}, {"step": 2, "x": None}, {"step": 3, "x": float("nan")}, {"step": 3, "x": True}]
    rows += [{"step": 4, "x": 10**400}, {"x": 5.0}, {"step": 5, "x": 6}, {"step": 5, "x": 7.0}, {"step": 2, "x": 8.0}]
    made = series(rows, "x")
    assert made.steps.tolist() == [1, 5] and made.values.tolist() == [1.0, 6.0]


def test_parts_of_a_series() -> None:
    whole = curve([1, 2, 3, 4], [1, 2, 3, 4])
    assert whole.part(0.5, 1).values.tolist() == [3, 4]
    assert whole.part(0.9, 1).values.tolist() == [4]
    assert whole.part(0, 0.1).values.tolist() == [1], "at least one point"
