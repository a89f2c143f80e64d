"""Health rules on how a run went: its end, its resumes, its speed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helpers.report_runs import evaluations, lines, record
from rl_training.zoo.report import run_rules as rules
from rl_training.zoo.report.throughput import slow_stage, speed_advice, throughput

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_a_failed_run_names_its_reason_and_what_it_left(tmp_path: Path) -> None:
    metadata = {"stop_reason": "loss became NaN\nUsual causes: many"}
    run = record(status="failed", metadata=metadata, metrics=lines(x=[1.0, 2.0]), path=tmp_path)
    (finding,) = rules.failed(run)
    assert finding.seen == "at step 2k: loss became NaN", "one line is enough"
    assert f"axiomrl resume {tmp_path}" in finding.advice
    (tmp_path / "crash").mkdir()
    (finding,) = rules.failed(run)
    assert "crash/" in finding.advice and "resume" not in finding.advice


def test_an_interrupted_run_gets_its_resume_command_quoted() -> None:
    run = record(status="interrupted", metadata={"stop_reason": "stopped by SIGINT"}, path=Path("my runs/one"))
    (finding,) = rules.interrupted(run)
    assert finding.advice == "continue with `axiomrl resume 'my runs/one'`"
    assert list(rules.interrupted(record())) == []


@pytest.mark.parametrize(("minutes", "found"), [(5, 0), (120, 1)])
def test_a_run_that_has_been_silent_for_long_was_killed(minutes: int, found: int) -> None:
    line = {"step": 4000, "at_utc": (NOW - timedelta(minutes=minutes)).isoformat()}
    findings = list(rules.stalled(record(status="running", metrics=[line]), NOW))
    assert len(findings) == found
    if findings:
        assert "at step 4k, is 2 h 00 min old" in findings[0].seen
    assert list(rules.stalled(record(status="completed", metrics=[line]), NOW)) == []


def test_a_resume_that_was_not_exact() -> None:
    exact = {"checkpoint": "step_000001000", "step": 1000, "grade": "exact", "notes": []}
    boundary = {"checkpoint": "step_000002000", "step": 2000, "grade": "episode-boundary", "notes": ["env 0 differs"]}
    run = record(metadata={"resumes": [exact, boundary, "nonsense"]})
    (finding,) = rules.inexact_resumes(run)
    assert finding.seen == "resumed from step_000002000 with grade 'episode-boundary' (env 0 differs)"
    assert [resume["step"] for resume in rules.resumes(run)] == ["1000", "2000"]


def test_a_completed_run_without_evaluation() -> None:
    (finding,) = rules.no_evaluation(record(metrics=lines(x=[1.0])))
    assert "0 evaluations" in finding.seen
    assert list(rules.no_evaluation(record(evaluations=evaluations(1.0)))) == []
    assert list(rules.no_evaluation(record(status="running"))) == []


def test_evaluations_with_cut_episodes_are_named() -> None:
    lines = [
        {"step": 1000 * n, "mean": 1.0, "episodes": 10, "cut_episodes": cut} for n, cut in ((1, 10), (2, 3), (3, 0))
    ]
    (finding,) = rules.cut_evaluations(record(evaluations=lines))
    assert finding.seen == ("2 of 3 evaluations; the newest at step 2k: 3 of 10 episodes, whose returns are not whole")
    assert "env.max_episode_steps" in finding.advice and finding.step == 2000
    assert list(rules.cut_evaluations(record(evaluations=evaluations(1.0)))) == []
    assert list(rules.cut_evaluations(record(evaluations=[{"step": 1, "mean": 1.0, "cut_episodes": "many"}]))) == []


def test_shares_are_weighted_with_the_seconds_each_line_covers() -> None:
    """1000 steps at 1000/s are 1 s, 1000 at 100/s are 10 s: env (0.5 · 1 + 0.1 · 10) / 11, learn (0.2 · 1 + 0.8 · 10) / 11."""
    speed = throughput(
        record(
            metrics=lines(
                time__steps_per_second=[1000.0, 100.0],
                time__env_share=[0.5, 0.1],
                time__learn_share=[0.2, 0.8],
                time__elapsed=[2.0, 22.0],
            )
        )
    )
    assert speed is not None
    assert speed.steps_per_second == pytest.approx(2000 / 11)
    assert speed.shares["env"] == pytest.approx(1.5 / 11)
    assert speed.shares["learn"] == pytest.approx(8.2 / 11)
    assert speed.shares["other"] == pytest.approx(1.3 / 11)
    assert speed.aside_share == pytest.approx(0.5), "22 s in all, of which 11 s were training"
    assert slow_stage(speed) == "learn"


def test_what_to_try_is_never_what_the_run_already_does() -> None:
    assert "execution=auto" in speed_advice("learn", {"execution": "eager"}, {})
    recorded = {"execution": "auto", "num_threads": 1}
    assert "num_threads=2" in speed_advice("learn", recorded, {"device": "cpu", "cpu_count": 4})
    assert "smaller network" in speed_advice("learn", recorded, {"device": "cuda"})
    assert "async" in speed_advice("env", {"env": {"backend": "sync"}}, {})
    assert "--num-envs 16" in speed_advice("env", {"env": {"backend": "async"}, "num_envs": 8}, {})
    assert "--device cpu" in speed_advice("inference", {}, {"device": "cuda"})


def test_slow_stages_are_found_with_their_numbers() -> None:
    metrics = lines(time__steps_per_second=[50.0], time__learn_share=[0.82], time__elapsed=[100.0])
    stage, aside = rules.slow(record(metrics=metrics))
    assert stage.kind == "slow_learn" and stage.seen == "learn takes 82 % of the training time at 50 steps/s"
    assert aside.kind == "slow_aside" and aside.seen.startswith("80 % of 1 min 40 s")
    short = lines(time__steps_per_second=[1000.0], time__learn_share=[0.82], time__elapsed=[5.0])
    assert list(rules.slow(record(metrics=short))) == [], "a run of seconds says nothing about speed"
