"""The run directory and its files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from rl_training.config import TrainConfig, load_config
from rl_training.experiment.run.run_dir import append_line, make_run_dir, read_lines, write_atomically
from rl_training.utils.errors import UserError
from rl_training.utils.json_lines import cut_after


def test_the_name_and_the_contents(tmp_path: Path) -> None:
    cfg = TrainConfig(algo="ppo", env_id="CartPole-v1", seed=7, output_dir=str(tmp_path / "deep" / "runs"))
    path = make_run_dir(cfg)
    assert path.parent == tmp_path / "deep" / "runs"
    name, stamp = path.name.rsplit("__", 1)
    assert name == "ppo__CartPole-v1__seed7"
    assert [len(part) for part in stamp.split("-")] == [8, 6, 6], "date, time, microseconds"
    assert sorted(entry.name for entry in path.iterdir()) == ["checkpoints", "config.yaml", "tensorboard", "videos"]
    assert load_config(path / "config.yaml") == cfg, "the config can be run again as it is"


@pytest.mark.parametrize(
    ("env_id", "safe"), [("ALE/Pong-v5", "ALE-Pong-v5"), ("../../etc", "etc"), ("a b\\c", "a-b-c"), ("..", "env")]
)
def test_the_environments_name_is_made_safe(tmp_path: Path, env_id: str, safe: str) -> None:
    path = make_run_dir(TrainConfig(env_id=env_id, output_dir=str(tmp_path)))
    assert path.parent == tmp_path and path.name.startswith(f"ppo__{safe}__seed0__")


def test_each_run_has_its_own(tmp_path: Path) -> None:
    cfg = TrainConfig(output_dir=str(tmp_path))
    assert len({make_run_dir(cfg) for _ in range(20)}) == 20


def test_a_file_in_the_way_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("not a folder")
    with pytest.raises(UserError, match=r"cannot write to the output folder .*runs: .*--output-dir") as caught:
        make_run_dir(TrainConfig(output_dir=str(tmp_path / "runs")))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(UserError, match="Permission denied"):
            make_run_dir(TrainConfig(output_dir=str(tmp_path)))
    finally:
        tmp_path.chmod(0o700)


def test_lines_are_strict_json_with_null_for_what_json_lacks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_line(path, {"step": 1, "loss": math.nan, "returns": (1.5, math.inf), "more": {"x": -math.inf}})
    append_line(path, {"step": 2, "loss": 0.25})

    def refuse(name: str) -> float:
        raise AssertionError(name)

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert lines == [{"step": 1, "loss": None, "returns": [1.5, None], "more": {"x": None}}, {"step": 2, "loss": 0.25}]


def test_a_line_cut_short_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n[3]\n{"step": 2}\n{"step": 3, "los')
    assert read_lines(path) == [{"step": 1}, {"step": 2}]
    assert read_lines(tmp_path / "nothing.jsonl") == []


def test_lines_after_a_step_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 100}\n{"step": 200}\n{"step": 300}\n{"step": 40')
    cut_after(path, 200)
    assert path.read_text() == '{"step": 100}\n{"step": 200}\n'
    cut_after(tmp_path / "nothing.jsonl", 5)
    assert not (tmp_path / "nothing.jsonl").exists()


def test_replacing_a_file_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "one")
    write_atomically(tmp_path / "a.txt", "zwölf")
    assert [(entry.name, entry.read_text(encoding="utf-8")) for entry in tmp_path.iterdir()] == [("a.txt", "zwölf")]
