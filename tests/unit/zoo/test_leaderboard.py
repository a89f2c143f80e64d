"""Ranks with ties, aggregates over tasks, and what is printed."""

from __future__ import annotations

import csv
import io
import json

import pytest

from rl_training.zoo.comparison import compare_to_baseline
from rl_training.zoo.leaderboard import Leaderboard, aggregate_boards, task_boards
from rl_training.zoo.leaderboard_data import as_csv, as_json
from rl_training.zoo.leaderboard_text import as_text
from rl_training.zoo.score_groups import ScoreGroup, SeedScore


def _group(algo: str, *scores: float, task: str = "CartPole-v1", name: str | None = None, **other) -> ScoreGroup:
    runs = tuple(SeedScore(seed, f"{algo}{seed}", 100_352, score, score + 5) for seed, score in enumerate(scores))
    return ScoreGroup(algo, task, name or algo, other.pop("method", {}), runs, **other)


def _leaderboard(groups: list[ScoreGroup], **other) -> Leaderboard:
    scored = [group for group in groups if group.scored]
    return Leaderboard(
        "runs", 5, task_boards(groups), aggregate_boards(groups), [g for g in groups if g not in scored], [], **other
    )


SPREAD = (-4.0, -2.0, 0.0, 2.0, 4.0)


def _around(center: float) -> tuple[float, ...]:
    return tuple(center + offset for offset in SPREAD)


def test_an_entry_has_all_the_numbers() -> None:
    (board,) = task_boards([_group("ppo", 0.0, 1.0, 5.0, 6.0, 100.0)])
    (entry,) = board.entries
    assert (entry.mean, entry.iqm, entry.median, entry.best) == (22.4, 4.0, 5.0, 27.4)
    assert entry.interval[0] < 5 and entry.interval[1] > 55


def test_methods_that_cannot_be_told_apart_share_a_rank() -> None:
    groups = [
        _group("d", *_around(300.0)),
        _group("b", *_around(399.0)),
        _group("a", *_around(400.0)),
        _group("c", *_around(398.0)),
        _group("e", *_around(301.0)),
    ]
    (board,) = task_boards(groups)
    assert [(entry.group.name, entry.rank, entry.tied) for entry in board.entries] == [
        ("a", 1, True),
        ("b", 1, True),
        ("c", 1, True),
        ("e", 4, True),
        ("d", 4, True),
    ]


def test_a_chain_of_small_steps_does_not_tie_its_ends() -> None:
    # Neighbours overlap, but the third is clearly below the first and opens a rank of its own.
    (board,) = task_boards([_group(name, *_around(mean)) for name, mean in (("a", 400), ("b", 397), ("c", 394))])
    assert [(entry.group.name, entry.rank) for entry in board.entries] == [("a", 1), ("b", 1), ("c", 3)]


def test_equal_constant_scores_are_tied() -> None:
    (board,) = task_boards([_group("a", *[500.0] * 5), _group("b", *[500.0] * 5)])
    assert [(entry.rank, entry.tied) for entry in board.entries] == [(1, True), (1, True)]


def test_single_seeds_cannot_be_ranked_against_each_other() -> None:
    (board,) = task_boards([_group("a", 500.0), _group("b", 20.0)])
    assert [(entry.rank, entry.interval) for entry in board.entries] == [(1, None), (1, None)]


def test_environments_are_never_mixed() -> None:
    boards = task_boards([_group("ppo", 500.0), _group("ppo", -150.0, task="Pendulum-v1")])
    assert [(board.task, [entry.mean for entry in board.entries]) for board in boards] == [
        ("CartPole-v1", [500.0]),
        ("Pendulum-v1", [-150.0]),
    ]


def test_an_aggregate_is_normalised_between_random_and_target() -> None:
    # CartPole: random 22.6, target 475. LunarLander: random −184.7, target 200.
    groups = [
        _group("ppo", *[475.0] * 5),
        _group("ppo", *[200.0] * 5, task="LunarLander-v3"),
        _group("dqn", *[22.6] * 5),
        _group("dqn", *[200.0] * 5, task="LunarLander-v3"),
        _group("sac", *[-150.0] * 5, task="Pendulum-v1"),
    ]
    (board,) = aggregate_boards(groups)
    assert board.tasks == ("CartPole-v1", "LunarLander-v3")
    best, second = board.entries
    assert (best.algo, best.rank, best.iqm, best.optimality_gap) == pytest.approx(("ppo", 1, 1.0, 0.0))
    # Ten runs, five at 0 and five at 1: two are cut at each end, leaving three of each.
    assert (second.algo, second.iqm, second.mean, second.median) == pytest.approx(("dqn", 0.5, 0.5, 0.5))
    assert second.optimality_gap == pytest.approx(0.5)
    assert second.rank == 2 and second.seeds == 5
    assert second.profile[:5] == pytest.approx([0.5] * 5), "at 0 the runs that score 0 are not above"


def test_an_aggregate_compares_only_the_same_known_tasks() -> None:
    one, two, three = "CartPole-v1", "Acrobot-v1", "LunarLander-v3"
    groups = [_group("ppo", 1.0, task=task) for task in (one, two, three)]
    groups += [_group("dqn", 1.0, task=task) for task in (one, two, "MyEnv-v0")]
    groups += [_group("a2c", 1.0, task=one), _group("a2c", 2.0, task="MyEnv-v0")]
    assert [(board.tasks, [entry.algo for entry in board.entries]) for board in aggregate_boards(groups)] == [
        ((two, one), ["dqn", "ppo"]),
    ]
    several_configs = [*groups, _group("dqn", 9.0, task=one, name="dqn (2)")]
    assert aggregate_boards(several_configs) == [], "which config would count?"


def test_the_text_fits_80_columns_and_names_what_to_know() -> None:
    unfinished = SeedScore(1, "x", 50_000, 480.0, 490.0, status="interrupted")
    failed = SeedScore(2, "y", 10_000, None, None, status="failed")
    one = _group("prioritized_dqn", 500.0)
    groups = [
        _group(
            "ppo", *_around(300.0), name="ppo (1)", differences={"hyperparams.learning_rate": {"start": 1, "end": 0}}
        ),
        ScoreGroup(
            "prioritized_dqn", "CartPole-v1", "prioritized_dqn", {}, (*one.runs, unfinished, failed), seeds_asked=5
        ),
        ScoreGroup("dqn", "Acrobot-v1", "dqn", {}, (failed,)),
    ]
    text = as_text(_leaderboard(groups))
    assert max(len(line) for line in text.splitlines()) <= 80
    lines = text.splitlines()
    assert lines[0] == "CartPole-v1"
    assert lines[2].split() == [
        *("1", "prioritized_dqn", "2!", "490.0", "[480.0,", "500.0]", "490.0", "490.0", "497.5", "50k-100k"),
    ]
    assert "ppo (1): learning_rate=1→0" in text
    assert "prioritized_dqn: 2 of the 5 seeds that were asked for" in text
    assert "not all runs are finished (1 interrupted)" in text
    assert "prioritized_dqn: 1 of 3 runs have no score (1 failed)" in text
    assert "no score: dqn on Acrobot-v1: 1 of 1 runs have no score (1 failed)" in text
    assert "!: fewer than 5 seeds" in text


def test_enough_seeds_are_not_flagged() -> None:
    text = as_text(_leaderboard([_group("ppo", *_around(300.0))]))
    assert "!" not in text and "Student" not in text


def test_the_comparison_as_text() -> None:
    baseline = [
        _group("ppo", *[500.0] * 5, method={"lr": 0.1}),
        _group("dqn", 1.0),
        _group("sac", 1.0, task="Hopper-v5"),
    ]
    report = compare_to_baseline([_group("ppo", 20.0, method={"lr": 1.0}), _group("a2c", 3.0)], baseline)
    text = as_text(_leaderboard([], baseline_source="shipped", baseline=report))
    lines = text.splitlines()
    assert lines[0] == "Compared to shipped: mean score of the last checkpoints (seeds)"
    assert lines[4].split() == [
        *("ppo", "20.0", "(1)", "500.0", "(5)", "-480.0", "[-480.0,", "-480.0]", "0.00", "worse")
    ]
    assert "  ppo: lr is 1.0, in the baseline 0.1" in lines
    assert "not in the baseline: a2c on CartPole-v1" in lines
    assert "only in the baseline: dqn on CartPole-v1, all of Hopper-v5" in lines
    assert lines[-1] == "1 worse"


def test_json_has_every_seed_and_csv_every_row() -> None:
    groups = [_group("ppo", *_around(300.0)), _group("dqn", 10.0, preset="dqn/cartpole")]
    values = json.loads(as_json(_leaderboard(groups)))
    first, second = values["tasks"][0]["entries"]
    assert [run["last"] for run in first["runs"]] == list(_around(300.0))
    assert (first["few_seeds"], second["few_seeds"], second["last_interval_95"]) == (False, True, None)
    rows = list(csv.DictReader(io.StringIO(as_csv(_leaderboard(groups)))))
    assert [(row["algo"], row["seeds"], row["last_mean"], row["preset"]) for row in rows] == [
        ("ppo", "5", "300.0", ""),
        ("dqn", "1", "10.0", "dqn/cartpole"),
    ]
    assert (rows[0]["steps_low"], rows[1]["last_interval_95_low"]) == ("100352", "")


def test_a_comparison_as_json_and_csv() -> None:
    report = compare_to_baseline([_group("ppo", 20.0)], [_group("ppo", *[500.0] * 5)])
    board = _leaderboard([], baseline_source="shipped", baseline=report)
    comparison = json.loads(as_json(board))["comparison"]
    assert (comparison["baseline"], comparison["regressed"]) == ("shipped", 1)
    (row,) = csv.DictReader(io.StringIO(as_csv(board)))
    assert (row["verdict"], row["difference"], row["basis"]) == ("worse", "-480.0", "student")
    assert (row["difference_interval_95_low"], row["probability_interval_95_low"]) == ("-480.0", "")


def test_an_aggregate_as_text_and_json() -> None:
    groups = [
        _group(algo, *_around(100.0), task=task) for algo in ("a", "b") for task in ("CartPole-v1", "LunarLander-v3")
    ]
    text = as_text(_leaderboard(groups))
    assert "Over CartPole-v1, LunarLander-v3; 0 is a random policy, 1 the target" in text
    (aggregate,) = json.loads(as_json(_leaderboard(groups)))["aggregates"]
    assert aggregate["tasks"] == ["CartPole-v1", "LunarLander-v3"]
    assert len(aggregate["entries"][0]["profile"]) == len(aggregate["profile_thresholds"]) == 25
    low, high = aggregate["entries"][0]["profile_band_95"]
    assert all(a <= b for a, b in zip(low, high))
