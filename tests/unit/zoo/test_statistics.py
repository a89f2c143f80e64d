"""Aggregates and intervals: worked out by hand, and recorded from rliable 1.2.0 (NumPy 2.4, 50,000 resamples)."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.utils.bootstrap import stratified_interval
from rl_training.zoo import statistics as stats

# 5 seeds × 3 tasks and 4 seeds × 3 tasks, given to rliable as these matrices.
A = np.array([[0.91, 0.40, 1.20], [0.85, 0.10, 0.95], [1.00, 0.35, 1.10], [0.97, 0.22, 0.30], [0.60, 0.45, 1.05]])
B = np.array([[0.80, 0.42, 1.00], [0.85, 0.30, 0.70], [0.70, 0.38, 0.90], [0.75, 0.41, 1.10]])
TASKS_A, TASKS_B = list(A.T), list(B.T)
RAGGED = [np.array([1.0, 3.0]), np.array([4.0, 5.0, 6.0, 9.0]), np.array([10.0])]


def test_mean_and_median_weigh_every_task_the_same() -> None:
    assert stats.mean(RAGGED) == pytest.approx((2 + 6 + 10) / 3)
    assert stats.median(RAGGED) == 6.0
    assert stats.median(RAGGED[:2]) == 4.0


def test_the_interquartile_mean_cuts_whole_runs() -> None:
    # 7 runs: int(7 / 4) = 1 at each end. A cut of 1.75 runs would leave a quarter of the 3 and of the 9: 18 / 3.5.
    assert stats.interquartile_mean(RAGGED) == pytest.approx((3 + 4 + 5 + 6 + 9) / 5)
    assert stats.interquartile_mean([np.array([0.0, 1.0, 5.0, 6.0, 100.0])]) == pytest.approx(4.0)
    assert stats.interquartile_mean([np.array([0.0, 1.0, 100.0])]) == pytest.approx(101 / 3), "3 runs lose none"
    assert stats.interquartile_mean([np.array([8.0])]) == 8.0


def test_the_optimality_gap_counts_what_is_missing_only() -> None:
    # Task gaps: (0.5 + 0) / 2 = 0.25 and 0.2.
    assert stats.optimality_gap([np.array([0.5, 7.0]), np.array([0.8])]) == pytest.approx(0.225)
    assert stats.optimality_gap([np.array([50.0, 200.0])], target=100.0) == pytest.approx(25.0)


def test_probability_of_improvement_counts_pairs_and_halves_ties() -> None:
    # Pairs of (2, 3) with (1, 2, 5): 2>1, 2=2, 3>1, 3>2 → 3.5 of 6. The second task: never.
    ours, theirs = [np.array([2.0, 3.0]), np.array([0.0])], [np.array([1.0, 2.0, 5.0]), np.array([1.0])]
    assert stats.probability_of_improvement(ours, theirs) == pytest.approx((3.5 / 6 + 0) / 2)
    assert stats.probability_of_improvement(theirs, ours) == pytest.approx((2.5 / 6 + 1) / 2)
    assert stats.probability_of_improvement([np.full(5, 500.0)], [np.full(5, 500.0)]) == 0.5
    with pytest.raises(ValueError, match="shorter|longer"):
        stats.probability_of_improvement(ours, theirs[:1])


def test_a_performance_profile_is_the_share_of_runs_above() -> None:
    # Strictly above: at 3 the run of 3 no longer counts. Per task: (1/2, 1, 1) at 2, and so on.
    profile = stats.performance_profile(RAGGED, np.array([0.0, 2.0, 3.0, 5.0, 10.0]))
    assert profile == pytest.approx([1, (0.5 + 1 + 1) / 3, (0 + 1 + 1) / 3, (0 + 0.5 + 1) / 3, 0])


@pytest.mark.parametrize(
    ("statistic", "of_a", "interval_a", "of_b", "interval_b"),
    [
        (stats.mean, 0.69666667, (0.57866667, 0.79266667), 0.6925, (0.63666667, 0.74333333)),
        (stats.median, 0.866, (0.6, 0.958), 0.775, (0.725, 0.825)),
        (stats.interquartile_mean, 0.72, (0.55222222, 0.84666667), 0.70333333, (0.65333333, 0.77)),
        (stats.optimality_gap, 0.32666667, (0.24066667, 0.43333333), 0.31583333, (0.27333333, 0.365)),
    ],
)
def test_aggregates_agree_with_rliable(statistic, of_a, interval_a, of_b, interval_b) -> None:
    assert statistic(TASKS_A) == pytest.approx(of_a)
    assert statistic(TASKS_B) == pytest.approx(of_b)
    # The resamples differ, so the ends do in the third place.
    assert stratified_interval(statistic, TASKS_A, resamples=50_000) == pytest.approx(interval_a, abs=0.006)
    assert stratified_interval(statistic, TASKS_B, resamples=50_000) == pytest.approx(interval_b, abs=0.006)


def test_probability_of_improvement_agrees_with_rliable() -> None:
    assert stats.probability_of_improvement(TASKS_A, TASKS_B) == pytest.approx(0.58333333)
    interval = stratified_interval(stats.probability_of_improvement, TASKS_A, TASKS_B)
    assert interval == pytest.approx((0.36666667, 0.791875), abs=0.01)


def test_a_profile_with_its_band_agrees_with_rliable() -> None:
    thresholds = np.array([0.0, 0.4, 0.9, 1.0, 1.1])
    assert stats.performance_profile(TASKS_A, thresholds) == pytest.approx([1, 10 / 15, 7 / 15, 3 / 15, 1 / 15])
    low, high = stratified_interval(lambda scores: stats.performance_profile(scores, thresholds), TASKS_A)
    # Shares come in steps of 1/15, and a quantile may fall on either side of one.
    assert low == pytest.approx([1, 0.53333333, 0.26666667, 0.06666667, 0], abs=0.067)
    assert high == pytest.approx([1, 0.8, 0.66666667, 0.33333333, 0.2], abs=0.067)


def test_a_task_is_resampled_from_its_own_runs() -> None:
    # Were runs drawn across tasks, the mean over tasks would vary; within constant tasks it cannot.
    assert stratified_interval(stats.mean, [np.full(4, 1.0), np.full(2, 5.0)]) == (3.0, 3.0)


def test_two_seeds_have_the_interval_that_can_be_counted() -> None:
    # Resampled means of (0, 1): 0, ½, ½, 1. A quarter of the mass is at each end, far more than 2.5 %.
    assert stratified_interval(stats.mean, [np.array([0.0, 1.0])]) == (0.0, 1.0)


def test_an_interval_repeats_and_follows_its_seed() -> None:
    data = [np.random.default_rng(3).normal(size=6)]
    assert stratified_interval(stats.mean, data) == stratified_interval(stats.mean, data)
    assert stratified_interval(stats.mean, data, seed=1) != stratified_interval(stats.mean, data)


def test_groups_of_a_difference_are_resampled_independently() -> None:
    data = [np.array([0.0, 1.0, 2.0, 3.0, 4.0])]
    low, high = stratified_interval(stats.mean_difference, data, data)
    # Drawn together, the difference of a group with itself would be 0 always. Variance of each mean: 2 / 5.
    assert (low, high) == pytest.approx((-1.96 * 0.8**0.5, 1.96 * 0.8**0.5), abs=0.1)


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        low, high = stratified_interval(stats.mean, [generator.normal(size=30)], resamples=1000)
        covered += low <= 0 <= high
    assert 270 <= covered <= 297, "95 % of 300 is 285"


def test_students_interval_by_hand() -> None:
    # Pooled variance of (4) and (1, 2, 3): 2 / 2 = 1, two degrees of freedom; 4.303·√(1 + 1/3) = 4.969 around 2.
    low, high = stats.student_interval(np.array([4.0]), np.array([1.0, 2.0, 3.0]))
    assert (low, high) == pytest.approx((2 - 4.9687, 2 + 4.9687), abs=1e-3)
    # (0, 2) and (10, 14): (2 + 8) / 2 = 5; 4.303·√5 around −11.
    assert stats.student_interval(np.array([0.0, 2.0]), np.array([10.0, 14.0])) == pytest.approx(
        (-11 - 9.6218, -11 + 9.6218), abs=1e-3
    )
    assert stats.student_interval(np.array([20.0]), np.full(5, 500.0)) == (-480.0, -480.0)
    assert stats.student_interval(np.array([20.0]), np.array([500.0])) is None
    wide = stats.student_interval(np.array([0.0]), np.arange(60.0))
    assert wide[1] - wide[0] == pytest.approx(2 * 2.042 * (np.var(np.arange(60.0), ddof=1) * (1 + 1 / 60)) ** 0.5)
