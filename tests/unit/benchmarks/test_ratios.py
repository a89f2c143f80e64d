"""The arithmetic of the benchmark harness, with numbers worked out by hand."""

from __future__ import annotations

import pytest
from benchmarks.ratios import best, compare, shares


def test_rates_are_compared_round_by_round() -> None:
    ratio = compare([300, 100, 240], [100, 50, 60], "rate")
    assert ratio.rounds == (3.0, 2.0, 4.0)
    assert ratio.to_json() == {"median": 3.0, "min": 2.0, "max": 4.0, "rounds": [3.0, 2.0, 4.0]}
    assert str(ratio) == "3.00 (2.00..4.00)"


def test_seconds_say_how_many_times_as_fast() -> None:
    assert compare([2.0, 4.0], [6.0, 2.0], "seconds").rounds == (3.0, 0.5)


def test_bytes_say_which_share_ours_takes() -> None:
    assert compare([50.0], [100.0], "bytes").rounds == (0.5,)


def test_unequal_numbers_of_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="2 rounds of ours and 1"):
        compare([1.0, 2.0], [1.0], "rate")
    with pytest.raises(ValueError, match="0 rounds"):
        compare([], [], "rate")


def test_the_best_has_the_best_median_not_the_best_round() -> None:
    series = {1: [10.0, 10.0, 10.0], 2: [99.0, 1.0, 2.0]}
    assert best(series, "rate") == 1
    assert best(series, "seconds") == 2
    assert best(series, "bytes") == 2


def test_what_no_stage_claims_is_the_rest() -> None:
    found = shares({"env": 1.0, "learn": 2.0, "checkpoint": 0.0}, seconds=4.0)
    assert found == {"env": 0.25, "learn": 0.5, "rest": 0.25}
    assert shares({"learn": 4.1}, seconds=4.0)["rest"] == 0.0
