"""Following a run by its files: as they grow, when they are half-written, and when a resume replaces them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from helpers.run_folders import write_run
from rl_training.experiment.run.reference import Reference, save_reference
from rl_training.experiment.run.run_dir import append_line
from rl_training.utils.errors import UserError
from rl_training.utils.json_lines import cut_after
from rl_training.zoo.run_follower import RunFollower, newest_run


def running(path: Path, **settings: Any) -> Path:
    """A run that has just begun: no metrics, no evaluations."""
    return write_run(path, status="running", curve=(), **{"total_timesteps": 400, **settings})


def metrics(step: int, value: float, elapsed: float) -> dict[str, Any]:
    return {"step": step, "episode_return": value, "time/elapsed": elapsed, "time/steps_per_second": 50.0}


def change_metadata(run: Path, **values: Any) -> None:
    path = run / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_it_reads_what_is_added(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    follower = RunFollower(run)
    assert (follower.view.step, follower.view.total_timesteps, follower.ended) == (0, 400, False)
    assert follower.poll() is False
    append_line(run / "metrics.jsonl", metrics(100, 7.0, 10.0))
    append_line(run / "evaluations.jsonl", {"step": 100, "mean": 9.0, "ci_low": 8.0, "ci_high": 10.0, "episodes": 5})
    assert follower.poll() is True
    append_line(run / "metrics.jsonl", metrics(200, 8.0, 30.0))
    assert follower.poll() is True
    assert follower.view.returns.points == [(100.0, 7.0), (200.0, 8.0)]
    assert follower.view.eta == pytest.approx(40.0)  # the second 100 steps took 20 s; 200 are left
    state = follower.to_dict()
    assert (state["algo"], state["status"], state["step"], state["eta_seconds"]) == ("ppo", "running", 200, 40.0)
    assert state["evaluation"]["mean"] == 9.0 and state["reference"] is None


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    line = json.dumps(metrics(100, 7.0, 10.0)) + "\n"
    (run / "metrics.jsonl").write_text(line + line[:25])
    follower = RunFollower(run)
    assert follower.view.returns.points == [(100.0, 7.0)]
    with (run / "metrics.jsonl").open("a") as file:
        file.write(line[25:])
    assert follower.poll() is True
    assert follower.view.returns.points == [(100.0, 7.0), (100.0, 7.0)]


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    good = json.dumps(metrics(100, 7.0, 10.0))
    (run / "metrics.jsonl").write_bytes(b'{"step": \xff\n[1, 2]\n\n' + good.encode() + b'\n{"step"\n')
    assert RunFollower(run).view.returns.points == [(100.0, 7.0)]


def test_a_resume_that_drops_lines_is_followed(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    for step, value in [(100, 1.0), (200, 2.0), (300, 3.0)]:
        append_line(run / "metrics.jsonl", metrics(step, value, step / 10))
    follower = RunFollower(run)
    cut_after(run / "metrics.jsonl", 100)
    append_line(run / "metrics.jsonl", metrics(200, 2.5, 20.0))
    follower.poll()
    assert follower.view.returns.points == [(100.0, 1.0), (200.0, 2.5)]
    assert follower.view.step == 200


def test_status_length_and_reference_are_kept_current(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    follower = RunFollower(run)
    reference = Reference("p/q", 9.0, (8.0, 10.0), (9.0,), (((100, 9.0),),))
    save_reference(run, reference)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("total_timesteps: 400", "total_timesteps: 800"))
    change_metadata(run, status="interrupted", stop_reason="stopped by SIGINT")
    assert follower.poll() is True
    assert (follower.view.total_timesteps, follower.view.reference, follower.ended) == (800, reference, True)
    assert follower.to_dict()["stop_reason"] == "stopped by SIGINT" and follower.to_dict()["eta_seconds"] is None


def test_silence_is_counted_from_the_last_write(tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    follower = RunFollower(run)
    assert follower.silence < 60
    for name in ("metrics.jsonl", "evaluations.jsonl", "metadata.json", "config.yaml"):
        os.utime(run / name, (1_000_000, 1_000_000))
    assert follower.silence > 1e9


def test_the_newest_run_is_the_one_started_or_resumed_last(tmp_path: Path) -> None:
    old = write_run(tmp_path / "b", created="2026-01-01T00:00:00+00:00")
    new = write_run(tmp_path / "a", created="2026-01-02T00:00:00+00:00")
    assert newest_run(tmp_path) == (new, [])
    assert newest_run(old) == (old, [])
    change_metadata(old, resumes=[{"at_utc": "2026-01-03T00:00:00+00:00"}])
    assert newest_run(tmp_path)[0] == old


def test_what_cannot_be_read_is_named_and_skipped(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    change_metadata(write_run(tmp_path / "newer"), schema=2)
    (write_run(tmp_path / "torn") / "metadata.json").write_text("{")
    found, skipped = newest_run(tmp_path)
    assert found == good
    assert len(skipped) == 2 and "newer: written by a newer AxiomRL (metadata schema 2" in skipped[0]


def test_folders_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"no run found in {tmp_path}"):
        newest_run(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        newest_run(tmp_path / "nothing")
    change_metadata(write_run(tmp_path / "newer"), schema=2)
    for path in (tmp_path, tmp_path / "newer"):
        with pytest.raises(UserError, match="newer AxiomRL"):
            newest_run(path)


@pytest.mark.parametrize(("file", "text"), [("metadata.json", '{"schema": 1}'), ("config.yaml", "algo: ppo")])
def test_a_half_written_run_is_refused(file: str, text: str, tmp_path: Path) -> None:
    run = running(tmp_path / "run")
    (run / file).write_text(text)
    with pytest.raises(UserError, match="no known status|half-written run"):
        RunFollower(run)
