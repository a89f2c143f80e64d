"""Runs read back from their folders: the scores, and what is skipped or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.run_folders import write_run
from rl_training.config import TrainConfig
from rl_training.experiment.run.metadata import RunMetadata
from rl_training.utils.errors import UserError
from rl_training.zoo.run_records import MAX_LINES, NEWEST_SCHEMA, find_runs, read_run


def test_the_scores_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "run", seed=3, curve=[(1000, 20.0), (2000, 480.0), (3000, 310.5)], metrics_step=3072)
    (record,), skipped = find_runs([tmp_path / "run"])
    assert skipped == []
    assert (record.algo, record.env_id) == ("ppo", "CartPole-v1") and record.seed == 3 and record.status == "completed"
    assert record.curve == [(1000, 20.0), (2000, 480.0), (3000, 310.5)]
    assert record.last_score == 310.5, "the newest, not the best"
    assert record.best_score == 480.0
    assert record.steps == 3072
    assert record.config["hyperparams"] == {"learning_rate": 0.001}


def test_an_evaluation_that_was_not_finite_is_no_score(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", curve=[(1000, 20.0), (2000, 30.0)])
    with (run / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 3000, "mean": null}\n')
    record = read_run(run)
    assert record.last_score is None, "30 would be the score of an older policy"
    assert record.best_score == 30.0 and record.curve == [(1000, 20.0), (2000, 30.0)]


def test_a_run_that_has_just_begun_has_no_scores(tmp_path: Path) -> None:
    record = read_run(write_run(tmp_path / "run", curve=[], status="running"))
    assert (record.last_score, record.best_score, record.curve, record.steps) == (None, None, [], 0)


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", curve=[(1000, 20.0)])
    with (run / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 2000, "me')
    assert read_run(run).curve == [(1000, 20.0)]


@pytest.mark.parametrize("junk", [b"\xff\xfe\x00", b'{"step": "5"}', b'{"step": ' + b"9" * 400 + b"}", b"[" * 10**5])
def test_damaged_lines_are_passed_over_with_one_note(junk: bytes, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", curve=[(1000, 20.0), (2000, 30.0)])
    lines = (run / "evaluations.jsonl").read_bytes().splitlines()
    (run / "evaluations.jsonl").write_bytes(b"\n".join([lines[0], junk, junk, lines[1], b""]))
    record = read_run(run)
    assert record.curve == [(1000, 20.0), (2000, 30.0)]
    assert record.notes == (f"{run / 'evaluations.jsonl'}: 2 damaged lines passed over",)


def test_a_long_log_is_kept_in_part_with_its_ends_its_best_and_all_that_is_not_finite(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    count = 5 * MAX_LINES
    with (run / "metrics.jsonl").open("w") as file:
        for step in range(1, count + 1):
            loss = "null" if step in (4003, 4004) else "1.5"
            file.write(f'{{"step": {step}, "train/loss": {loss}}}\n')
    with (run / "evaluations.jsonl").open("w") as file:
        for step in range(1, count + 1):
            file.write(f'{{"step": {step}, "mean": {777.0 if step == 4003 else -1.0}, "returns": [1, 2, 3]}}\n')
    record = read_run(run)
    assert len(record.metrics) <= MAX_LINES + 2 and len(record.evaluations) <= MAX_LINES + 2
    assert record.metrics[0]["step"] == 1 and record.metrics[-1]["step"] == record.steps == count
    assert record.best_score == 777.0 and (4003, 777.0) in record.curve and record.last_score == -1.0
    assert record.not_finite is not None
    assert (record.not_finite.lines, record.not_finite.affected, record.not_finite.first_step) == (count, 2, 4003)
    assert "returns" not in record.evaluations[0]


def test_folders_of_runs_are_searched_and_a_run_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "b", seed=1)
    write_run(tmp_path / "runs" / "deep" / "er" / "a", seed=0)
    write_run(tmp_path / "runs" / ".trash" / "c", seed=9)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "runs" / "b")
    records, _ = find_runs([tmp_path / "runs", tmp_path / "runs" / "b"])
    assert sorted(record.seed for record in records) == [0, 1]


def _broken(folder: Path, how: str) -> None:
    run = write_run(folder)
    metadata = run / "metadata.json"
    if how == "no metadata":
        metadata.unlink()
    elif how == "only begun":
        for path in (metadata, run / "metrics.jsonl", run / "evaluations.jsonl"):
            path.unlink()
    elif how == "cut metadata":
        metadata.write_text(metadata.read_text()[:40])
    elif how == "other metadata":
        metadata.write_text("[1, 2]")
    elif how == "newer":
        metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "schema": NEWEST_SCHEMA + 1}))
    elif how == "odd status":
        metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "status": "exploded"}))
    elif how == "no config":
        (run / "config.yaml").unlink()
    elif how == "empty config":
        (run / "config.yaml").write_text("")
    elif how == "cut config":
        (run / "config.yaml").write_text("algo: ppo\nenv_id: CartPo")
    elif how == "bad config":
        (run / "config.yaml").write_text("algo: [ppo\n")
    elif how == "pipe":
        (run / "metrics.jsonl").unlink()
        os.mkfifo(run / "metrics.jsonl")
    elif how == "endless":
        (run / "evaluations.jsonl").unlink()
        (run / "evaluations.jsonl").symlink_to("/dev/zero")


BROKEN = {
    "no metadata": "half-written run (no metadata.json)",
    "only begun": "half-written run (no metadata.json)",
    "cut metadata": "metadata.json cannot be read (",
    "other metadata": "metadata.json is not the metadata of a run (no schema number)",
    "newer": "written by a newer AxiomRL (metadata schema 2, this version reads up to 1); update with: pip install -U axiomrl",
    "odd status": "metadata.json has no known status (got 'exploded')",
    "no config": "half-written run (no config.yaml)",
    "empty config": "half-written run (config.yaml is empty)",
    "cut config": "half-written run (config.yaml does not give algo, env_id and seed)",
    "bad config": "config.yaml cannot be read (",
    "pipe": "its metrics cannot be read (is a pipe, not a regular file",
    "endless": "its metrics cannot be read (is a link, not a regular file",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_run_is_named_and_skipped_beside_a_good_one_and_refused_alone(tmp_path: Path, how: str) -> None:
    write_run(tmp_path / "good", seed=5)
    _broken(tmp_path / "broken", how)
    records, skipped = find_runs([tmp_path])
    assert [record.seed for record in records] == [5]
    assert len(skipped) == 1 and skipped[0].startswith(f"{tmp_path / 'broken'}: {BROKEN[how]}")
    with pytest.raises(UserError) as error:
        find_runs([tmp_path / "broken"])
    assert BROKEN[how] in str(error.value) and "\n" not in str(error.value)


def test_a_path_without_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    write_run(tmp_path / "good")
    for name, message in {
        "missing": "missing does not exist",
        "file": "file is a file; name a run folder or a folder of runs",
        "empty": "empty: expected a run folder (with metadata.json) or a folder of runs",
    }.items():
        with pytest.raises(UserError) as error:
            find_runs([tmp_path / "good", tmp_path / name])
        assert message in str(error.value)


def test_what_is_written_now_can_be_read(tmp_path: Path) -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", seed=7, output_dir=str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(config.to_yaml())
    RunMetadata.create(run, config, "cpu")
    record = read_run(run)
    assert (record.algo, record.env_id, record.seed, record.status) == ("ppo", "CartPole-v1", 7, "running")
    assert record.config == config.to_dict()


def test_reading_runs_imports_neither_torch_nor_gymnasium() -> None:
    code = "import sys, rl_training.zoo.run_records\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & {"torch", "gymnasium", "tensorboard"}
