"""Better, same or worse: with many seeds, with few, and with one."""

from __future__ import annotations

import pytest

from rl_training.utils.errors import UserError
from rl_training.zoo.comparison import Difference, compare_to_baseline, difference_of
from rl_training.zoo.score_groups import ScoreGroup, SeedScore


def _group(*scores: float | None, algo: str = "ppo", task: str = "CartPole-v1", margin: float = 0.0, **method):
    runs = tuple(
        SeedScore(seed, "run", 1000, score, score, (margin, margin), "completed" if score is not None else "failed")
        for seed, score in enumerate(scores)
    )
    return ScoreGroup(algo, task, algo, method, runs)


def _verdict(group: ScoreGroup, baseline: ScoreGroup, tolerance: float = 0.0) -> str:
    (comparison,) = compare_to_baseline([group], [baseline], tolerance).comparisons
    return comparison.verdict


GOOD = (480.0, 500.0, 490.0, 495.0, 485.0)


def test_five_seeds_a_side_are_bootstrapped() -> None:
    worse, better = _group(300.0, 320.0, 310.0, 290.0, 305.0), _group(*GOOD)
    difference = difference_of(worse, better)
    assert difference.basis == "bootstrap" and difference.value == pytest.approx(305 - 490)
    assert -205 < difference.low < -185 < difference.high < -165
    assert _verdict(worse, better) == "worse" and _verdict(better, worse) == "better"
    assert _verdict(better, better) == "same"
    (comparison,) = compare_to_baseline([worse], [better]).comparisons
    assert comparison.probability == 0.0 and comparison.probability_interval == (0.0, 0.0)


def test_few_seeds_are_judged_by_students_t() -> None:
    # Pooled variance of (10, 20) and (100, 110, 120): (50 + 200) / 3; 3.182·√(83.33·(1/2 + 1/3)) = 26.52 around −95.
    difference = difference_of(_group(10.0, 20.0), _group(100.0, 110.0, 120.0))
    assert difference.basis == "student"
    assert (difference.value, difference.low, difference.high) == pytest.approx((-95, -121.52, -68.48), abs=0.01)


def test_a_collapsed_run_is_worse_even_with_one_seed() -> None:
    assert _verdict(_group(20.0), _group(*GOOD)) == "worse"
    assert _verdict(_group(20.0), _group(500.0, 500.0, 500.0)) == "worse"
    assert _verdict(_group(20.0), _group(500.0)) == "worse"


def test_one_seed_within_the_baselines_spread_is_the_same() -> None:
    # s = 7.9; Student's interval reaches 2.776·7.9·√1.2 = 24 to each side.
    assert _verdict(_group(470.0), _group(*GOOD)) == "same"
    assert _verdict(_group(440.0), _group(*GOOD)) == "worse"


def test_a_wide_baseline_of_three_seeds_does_not_hide_a_collapse() -> None:
    # The interval spans zero, but 15 is below 157 by more than the standard deviation, 76.5.
    baseline = _group(303.0, 157.0, 190.0)
    (comparison,) = compare_to_baseline([_group(15.0)], [baseline]).comparisons
    assert comparison.difference.high > 0 and comparison.verdict == "worse" and comparison.far_below
    assert _verdict(_group(100.0), baseline) == "same", "below all of them, but by less than 76.5"
    assert _verdict(_group(15.0), baseline, tolerance=100.0) == "same"
    assert _verdict(_group(500.0), baseline) == "same", "one seed is no proof of an improvement"


def test_one_unlucky_episode_is_no_regression() -> None:
    # All seeds of the baseline at 500 exactly: without the episodes' margin any 499.5 would be worse.
    perfect = _group(500.0, 500.0, 500.0, 500.0, 500.0)
    assert _verdict(_group(499.5, margin=0.5), perfect) == "same"
    assert _verdict(_group(499.5, margin=0.4), perfect) == "worse"


def test_one_seed_against_one_compares_their_episodes() -> None:
    difference = difference_of(_group(450.0, margin=20.0), _group(480.0, margin=5.0))
    assert (difference.basis, difference.low, difference.high) == ("episodes", -55.0, -5.0)
    assert _verdict(_group(450.0, margin=26.0), _group(480.0, margin=5.0)) == "same"


def test_the_tolerance_shifts_the_whole_interval() -> None:
    difference = Difference(-10.0, -15.0, -5.0, "bootstrap")
    assert [difference.verdict(tolerance) for tolerance in (0, 4.9, 5.0, 20)] == ["worse", "worse", "same", "same"]
    assert Difference(10.0, 5.0, 15.0, "bootstrap").verdict(4.9) == "better"
    assert Difference(1e-13, 1e-13, 1e-13, "student").verdict() == "same", "rounding is no difference"


def test_a_failed_run_counts_as_a_regression() -> None:
    report = compare_to_baseline([_group(None, None)], [_group(*GOOD)])
    assert report.comparisons[0].verdict == "no score" and report.regressed == report.comparisons
    assert _verdict(_group(*GOOD, None), _group(*GOOD)) == "no score"
    assert _verdict(_group(20.0, None), _group(*GOOD)) == "worse"


def test_groups_meet_by_algorithm_and_task_and_the_rest_is_named() -> None:
    ours = [_group(490.0), _group(-150.0, task="Pendulum-v1"), _group(1.0, algo="dqn")]
    theirs = [_group(*GOOD), _group(2.0, algo="sac", task="Pendulum-v1"), _group(None, algo="dqn")]
    report = compare_to_baseline(ours, theirs)
    assert [(one.group.task, one.verdict) for one in report.comparisons] == [("CartPole-v1", "same")]
    assert [(group.algo, group.task) for group in report.without_baseline] == [
        ("ppo", "Pendulum-v1"),
        ("dqn", "CartPole-v1"),
    ]
    assert [(group.algo, group.task) for group in report.only_in_baseline] == [("sac", "Pendulum-v1")]


def test_of_several_configs_the_same_one_is_the_counterpart_or_else_the_best() -> None:
    theirs = [_group(100.0, lr=0.1), _group(500.0, lr=0.2), _group(300.0, lr=0.3)]
    (same,) = compare_to_baseline([_group(100.0, lr=0.1)], theirs).comparisons
    assert same.baseline.method["lr"] == 0.1 and same.config_changes == {}
    (other,) = compare_to_baseline([_group(100.0, lr=9.0)], theirs).comparisons
    assert other.config_changes == {"lr": (0.2, 9.0)} and other.verdict == "worse"


def test_nothing_in_common_is_refused_with_both_sides_named() -> None:
    with pytest.raises(UserError, match="the runs have ppo on CartPole-v1; the baseline has sac on Hopper-v5"):
        compare_to_baseline([_group(1.0)], [_group(2.0, algo="sac", task="Hopper-v5")])
    with pytest.raises(UserError, match="the baseline has no score"):
        compare_to_baseline([_group(1.0)], [_group(None)])
