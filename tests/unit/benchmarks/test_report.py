"""From measurements to a record: threads chosen, peers compared, stages averaged."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.cases import Case, Metric
from benchmarks.report import lines_of, record_of, summary
from benchmarks.runner import Entry, Outcome

CASE = Case("race", "race", (Metric("speed", "steps/s"),), threads=(1, 2))


def rounds(*values: float, **more: Any) -> list[dict[str, Any]]:
    return [{"values": {"speed": value}, **more} for value in values]


@pytest.fixture
def outcome() -> Outcome:
    return Outcome(
        results={
            Entry("ours", 1): rounds(100, 120, seconds=10.0, stages={"env": 2.0, "learn": 7.0}),
            Entry("ours", 2): rounds(90, 80),
            Entry("sb3", 1): rounds(20, 30),
            Entry("sb3", 2): rounds(50, 60),
            Entry("torchrl", 1): rounds(10, 10),
        },
        failed={Entry("torchrl", 2): "out of memory"},
    )


def test_each_library_counts_with_its_best_number_of_threads(outcome: Outcome) -> None:
    speed = record_of(CASE, outcome, {})["metrics"]["speed"]
    assert speed["threads"] == {"ours": 1, "sb3": 2, "torchrl": 1}
    assert speed["fastest_peer"] == "sb3"
    assert speed["ratios"]["ours"]["sb3"] == {"median": 2.0, "min": 2.0, "max": 2.0, "rounds": [2.0, 2.0]}
    assert speed["ratios"]["ours"]["torchrl"]["median"] == 11.0


def test_raw_numbers_stages_and_failures_are_kept(outcome: Outcome) -> None:
    record = record_of(CASE, outcome, {"batch": 4})
    assert record["work"] == {"batch": 4}
    assert record["raw"]["sb3, 2 threads"] == [{"speed": 50}, {"speed": 60}]
    assert record["stages"]["ours, 1 thread"] == {"env": 0.2, "learn": 0.7, "rest": 0.1}
    assert record["failed"] == {"torchrl, 2 threads": "out of memory"}


def test_the_table_marks_the_fastest_peer(outcome: Outcome) -> None:
    lines = lines_of(CASE, outcome)
    (marked,) = (line for line in lines if line.strip().startswith("*"))
    assert marked.split() == ["*", "sb3", "2", "thr", "55", "2.00", "(2.00..2.00)"]
    assert "    torchrl, 2 threads: failed: out of memory" in lines


def test_the_summary_compares_ours_with_the_fastest_peer(outcome: Outcome) -> None:
    lines = summary([(CASE, record_of(CASE, outcome, {}))])
    assert [line.split() for line in lines[1:]] == [["race", "sb3", "2.00", "(2.00..2.00)"]]


def test_a_peer_that_took_part_in_the_first_round_only_is_compared_there() -> None:
    outcome = Outcome(
        {Entry("ours", 1): rounds(100, 400), Entry("sb3", 1): rounds(50), Entry("rllib", 1): rounds(1, 2)}, {}
    )
    speed = record_of(CASE, outcome, {})["metrics"]["speed"]
    assert speed["ratios"]["ours"]["sb3"]["rounds"] == [2.0]
    assert speed["ratios"]["ours"]["rllib"]["rounds"] == [100.0, 200.0]
    assert speed["fastest_peer"] == "sb3"


def test_without_peers_there_is_nothing_to_compare() -> None:
    alone = Outcome({Entry("ours", 1): rounds(5.0)}, {})
    record = record_of(CASE, alone, {})
    assert record["metrics"]["speed"]["ratios"] == {"ours": {}}
    assert summary([(CASE, record)])[1:] == []
