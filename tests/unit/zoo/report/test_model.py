"""How runs become groups, scores and flags."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.report_runs import change_metadata, learning_run
from helpers.run_folders import write_run
from rl_training.utils.bootstrap import stratified_interval
from rl_training.zoo.report.model import Report, build_report, score
from rl_training.zoo.run_records import find_runs
from rl_training.zoo.score_groups import collect
from rl_training.zoo.statistics import mean

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def report_on(folder: Path) -> Report:
    records, skipped = find_runs([folder])
    return build_report(records, skipped, [folder], NOW)


def test_last_and_best_scores_stay_apart(tmp_path: Path) -> None:
    for seed, curve in enumerate(
        [[(1000, 10.0), (2000, 90.0), (3000, 30.0)], [(1000, 20.0), (2000, 40.0), (3000, 50.0)]]
    ):
        write_run(tmp_path / str(seed), seed=seed, curve=curve)
    (environment,) = report_on(tmp_path).environments
    (group,) = environment.groups
    assert group.label == "PPO" and group.seeds == 2
    assert group.last is not None and group.best is not None
    assert group.last.values == [30.0, 50.0] and group.last.mean == 40.0
    assert group.best.values == [90.0, 50.0] and group.best.mean == 70.0
    assert group.last.low is None and group.flags == ["only 2 seeds"]


def test_the_interval_is_that_of_the_statistics_module() -> None:
    values = [1.0, 2.0, 4.0, 8.0, 16.0]
    made = score(values)
    assert made is not None
    assert (made.low, made.high) == stratified_interval(mean, [np.array(values)])
    assert made.mean == pytest.approx(6.2) and made.iqm == pytest.approx(14 / 3), "without 1 and 16"
    assert score([]) is None


def test_environments_are_never_put_together_nor_the_same_one_with_other_arguments(tmp_path: Path) -> None:
    write_run(tmp_path / "a", env_id="CartPole-v1")
    write_run(tmp_path / "b", env_id="Pendulum-v1", curve=[(1000, -900.0)])
    write_run(tmp_path / "c", env_id="Pendulum-v1", env={"kwargs": {"g": 5.0}}, curve=[(1000, -100.0)])
    assert [(one.name, one.groups[0].seeds) for one in report_on(tmp_path).environments] == [
        ("CartPole-v1", 1),
        ("Pendulum-v1", 1),
        ("Pendulum-v1(g=5.0)", 1),
    ]


def test_other_hyperparameters_are_another_group_but_logging_is_not(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, logging={"every": 100})
    write_run(tmp_path / "b", seed=1, logging={"every": 200}, evaluation={"every": 50})
    write_run(tmp_path / "c", seed=0, hyperparams={"learning_rate": 0.5}, curve=[(1000, 5.0)])
    (environment,) = report_on(tmp_path).environments
    assert [(group.label, group.seeds) for group in environment.groups] == [
        ("PPO, learning_rate 0.001", 2),
        ("PPO, learning_rate 0.5", 1),
    ]
    assert environment.differing == ["hyperparams.learning_rate", "logging.every"]
    assert [one.values["logging.every"] for one in environment.settings if "logging.every" in one.values] == [100, 200]


def test_a_repeated_seed_counts_once_the_completed_run_before_a_newer_one(tmp_path: Path) -> None:
    old, new = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
    write_run(tmp_path / "a", seed=0, curve=[(1000, 10.0)], created=old)
    write_run(tmp_path / "b", seed=0, curve=[(1000, 20.0)], created=new, status="interrupted")
    write_run(tmp_path / "c", seed=1, curve=[(1000, 30.0)], created=old)
    write_run(tmp_path / "d", seed=1, curve=[(1000, 40.0)], created=new)
    (group,) = report_on(tmp_path).environments[0].groups
    assert group.last is not None and group.last.values == [10.0, 40.0]
    assert [row.name for row in group.rows if not row.counted] == ["b", "c"]
    assert "2 repeated seeds left out" in group.flags


def test_failed_and_unfinished_runs_are_flagged_and_a_failed_one_has_no_score(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, curve=[(1000, 10.0)])
    write_run(tmp_path / "b", seed=1, curve=[(1000, 99.0)], status="failed")
    write_run(tmp_path / "c", seed=2, curve=[(1000, 20.0)], status="interrupted")
    write_run(tmp_path / "d", seed=3, curve=[], metrics_step=1000)
    (group,) = report_on(tmp_path).environments[0].groups
    assert group.last is not None and group.last.values == [10.0, 20.0]
    assert group.flags == ["only 2 seeds", "1 failed", "1 never evaluated", "1 unfinished"]


def test_groups_are_compared_within_an_environment_when_both_have_enough_seeds(tmp_path: Path) -> None:
    def runs(algo: str, scores: list[float], **config: Any) -> None:
        for seed, value in enumerate(scores):
            write_run(tmp_path / f"{algo}{seed}", algo=algo, seed=seed, curve=[(1000, value)], **config)

    runs("ppo", [5.0, 6.0, 7.0])
    runs("dqn", [1.0, 2.0, 6.0])
    runs("a2c", [9.0, 9.0])
    (environment,) = report_on(tmp_path).environments
    assert [group.label for group in environment.groups] == ["A2C", "PPO", "DQN"], "by last score"
    (pair,) = environment.comparisons
    assert (pair.better.label, pair.other.label) == ("PPO", "DQN")
    assert pair.probability == pytest.approx((2 + 2.5 + 3) / 9), (
        "5 beats two, 6 beats two and ties with 6, 7 beats three"
    )


def test_versions_that_differ_name_the_runs(tmp_path: Path) -> None:
    for name, torch in (("a", "2.6.0"), ("b", "2.7.0")):
        change_metadata(learning_run(tmp_path / name, seed=ord(name)), versions={"axiomrl": "0.1.0", "torch": torch})
    facts = {fact.name: fact for fact in report_on(tmp_path).facts}
    assert not facts["axiomrl"].differs and not facts["CPU"].differs
    assert facts["torch"].differs
    assert {value: [run.path.name for run in runs] for value, runs in facts["torch"].values.items()} == {
        "2.6.0": ["a"],
        "2.7.0": ["b"],
    }


def test_runs_with_the_same_folder_name_keep_their_paths(tmp_path: Path) -> None:
    write_run(tmp_path / "x" / "run", seed=0)
    write_run(tmp_path / "y" / "run", seed=1)
    write_run(tmp_path / "y" / "other", seed=2)
    assert [row.name for row in report_on(tmp_path).rows] == [str(tmp_path / "x/run"), str(tmp_path / "y/run"), "other"]


def test_metadata_and_config_of_the_wrong_shape_do_no_harm(tmp_path: Path) -> None:
    run = learning_run(tmp_path / "a", env={"kwargs": None}, hyperparams=None)
    change_metadata(run, versions="new", system=["fast"], git=7, resumes={"a": 1}, created_at_utc=5, stop_reason=["x"])
    (environment,) = report_on(tmp_path).environments
    assert environment.groups[0].seeds == 1


def test_the_report_and_the_leaderboard_count_the_same_runs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0, curve=[(1000, 10.0)], logging={"every": 7}, stopping={"reward": 9.0})
    write_run(tmp_path / "b", seed=0, curve=[(1000, 20.0)], created="2026-02-01T00:00:00+00:00", device="cpu")
    write_run(tmp_path / "c", seed=1, curve=[(1000, 30.0)], status="interrupted", env={"backend": "async"})
    write_run(tmp_path / "d", seed=2, curve=[(1000, 99.0)], status="failed")
    write_run(tmp_path / "e", seed=3, curve=[(1000, 40.0)], hyperparams={"learning_rate": 0.1})
    write_run(tmp_path / "f", seed=4, curve=[(1000, 50.0)], env={"kwargs": {"g": 1}})
    write_run(tmp_path / "g", seed=5, curve=[(1000, 60.0)], policy={"hidden_sizes": [8]})
    write_run(
        tmp_path / "h", seed=6, curve=[(1000, 70.0)], hyperparams={"learning_rate": 0.1, "new_in_this_version": 1}
    )
    groups, _ = collect([tmp_path])
    ranked = {(group.task, tuple(group.last)) for group in groups}
    reported = {
        (environment.name, tuple(group.last.values))
        for environment in report_on(tmp_path).environments
        for group in environment.groups
        if group.last is not None
    }
    assert reported == ranked
    assert reported == {
        ("CartPole-v1", (20.0, 30.0)),
        ("CartPole-v1", (40.0, 70.0)),
        ("CartPole-v1", (60.0,)),
        ("CartPole-v1(g=1)", (50.0,)),
    }
