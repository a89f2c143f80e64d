"""`metadata.json`."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import rl_training
from rl_training.config import TrainConfig
from rl_training.experiment.run.metadata import RunMetadata, git_info
from rl_training.experiment.versions import versions
from rl_training.utils.errors import UserError


def stored(path: Path) -> dict[str, Any]:
    return json.loads((path / "metadata.json").read_text())


def test_what_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/axiomrl", "train", "--seed", "7"])
    before = datetime.now(UTC)
    RunMetadata.create(tmp_path, TrainConfig(algo="a2c", env_id="Acrobot-v1", seed=7), "cpu")
    values = stored(tmp_path)
    assert before <= datetime.fromisoformat(values["created_at_utc"]) <= datetime.now(UTC)
    assert values["command"] == ["axiomrl", "train", "--seed", "7"]
    assert (values["algo"], values["env_id"], values["seed"]) == ("a2c", "Acrobot-v1", 7)
    assert values["system"]["device"] == "cpu" and values["system"]["gpu"] is None and values["system"]["cpu"]
    assert values["versions"]["axiomrl"] == rl_training.__version__
    assert values["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert (values["status"], values["resumes"], values["best_checkpoint"]) == ("running", [], None)


def test_updates_and_the_lineage_are_on_disk_at_once(tmp_path: Path) -> None:
    metadata = RunMetadata.create(tmp_path, TrainConfig(), "cpu")
    metadata.update(status="failed", stop_reason="boom", latest_metrics={"loss": math.nan, "step": 3})
    assert stored(tmp_path)["latest_metrics"] == {"loss": None, "step": 3}, "strict JSON"
    again = RunMetadata.load(tmp_path)
    again.add_resume("step_000000100", 100, "exact", [])
    again.add_resume("step_000000200", 200, "episode-boundary", ["a note"])
    values = stored(tmp_path)
    assert (values["status"], values["stop_reason"]) == ("running", None)
    assert [(r["checkpoint"], r["step"], r["grade"], r["notes"]) for r in values["resumes"]] == [
        ("step_000000100", 100, "exact", []),
        ("step_000000200", 200, "episode-boundary", ["a note"]),
    ]
    assert values["created_at_utc"] == metadata.values["created_at_utc"]


@pytest.mark.parametrize("text", [None, "", "{", "[1]", '"text"'])
def test_a_folder_that_is_no_run_is_the_users_mistake(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "metadata.json").write_text(text)
    with pytest.raises(UserError, match="metadata"):
        RunMetadata.load(tmp_path)


def test_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_info() is None
    RunMetadata.create(tmp_path, TrainConfig(), "cpu")
    assert stored(tmp_path)["git"] is None


def test_git_commit_and_dirty_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*args: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(
            ["git", *identity, *args], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_info() is None, "not a repository"
    git("init")
    assert git_info() is None, "no commit yet"
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "first")
    (tmp_path / "untracked").write_text("does not count")
    assert git_info() == {"commit": git("rev-parse", "HEAD").strip(), "dirty": False}
    (tmp_path / "file").write_text("two")
    assert git_info()["dirty"] is True


def test_versions_name_what_is_installed_only() -> None:
    found = versions()
    assert found["python"] == platform.python_version()
    assert {"torch", "gymnasium", "numpy", "safetensors"} <= found.keys()
    assert all(isinstance(value, str) and value for value in found.values())
