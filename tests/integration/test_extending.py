"""docs/extending.md, word for word, in a folder of its own and in processes of their own."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.doc_pages import blocks
from helpers.registered import install

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page tells its reader to save."""
    for block in blocks(PAGE):
        if block.save_as is not None:
            (tmp_path / block.save_as).write_text(block.text, encoding="utf-8")
    return tmp_path


def run(folder: Path, *words: str, module: bool = True) -> subprocess.CompletedProcess[str]:
    start = ["-m", "rl_training.cli"] if module else []
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *start, *words], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )


SHORT = ("--total-timesteps", "4096", "--set", "evaluation.episodes=2")


def test_an_algorithm_in_one_file_is_trained_evaluated_resumed_and_checked(folder: Path) -> None:
    config, own = ("--config", "reward_weighted.yaml"), ("--import", "reward_weighted.py")
    unknown = run(folder, "train", *config)
    assert unknown.returncode == 2 and "reward_weighted.yaml:1: key 'algo': unknown algorithm" in unknown.stderr
    assert "--import MODULE_OR_FILE" in unknown.stderr and not (folder / "runs").exists()

    trained = run(folder, "train", *config, *own, *SHORT)
    assert trained.returncode == 0, trained.stderr
    (run_dir,) = (folder / "runs").iterdir()
    assert f"resume runs/{run_dir.name} --total-timesteps 8192 --import reward_weighted.py" in trained.stdout

    for command in ("eval", "resume"):
        refused = run(folder, command, str(run_dir))
        assert refused.returncode == 2 and "unknown algorithm 'reward_weighted'" in refused.stderr, refused.stderr
    evaluated = run(folder, "eval", str(run_dir), "--episodes", "2", "--json", "--import", "reward_weighted")
    assert json.loads(evaluated.stdout)["episodes"] == 2, evaluated.stderr
    resumed = run(folder, "resume", str(run_dir), "--total-timesteps", "6144", *own)
    assert resumed.returncode == 0 and "resumed (grade exact); now at 6,144 steps" in resumed.stdout, resumed.stderr

    checked = run(folder, "check-algorithm", "reward_weighted", "--json", *own)
    report = json.loads(checked.stdout)
    assert checked.returncode == 0 and report["passed"] and report["checks"]["split_run"] is None


def test_the_python_of_the_page_runs_as_a_script(folder: Path) -> None:
    (code,) = [block.text for block in blocks(PAGE, "python") if "from reward_weighted import" in block.text]
    done = run(folder, "-c", code, module=False)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.startswith("<RewardWeighted on CartPole-v1, 8,192 steps trained,")
        and "temperature=0.3" in done.stdout
    )


def test_the_wrapper_of_the_page(folder: Path) -> None:
    command = ("train", "--config", "acrobot.yaml", *SHORT)
    refused = run(folder, *command)
    assert refused.returncode == 2
    assert "acrobot.yaml:7: key 'env.wrappers[1].name': unknown wrapper 'LivingCost'" in refused.stderr
    trained = run(folder, *command, "--import", str(folder / "living_cost.py"), "--json")
    assert trained.returncode == 0, trained.stderr
    summary = json.loads(trained.stdout)
    # Acrobot gives -1 per step until the goal; with the cost an episode that reaches none of its 500 steps' end gives -750.
    assert summary["evaluation"]["mean"] >= -500.0
    assert summary["metrics"]["episode_return"] < -500.0


def test_installed_packages_need_no_import(folder: Path) -> None:
    (text,) = [block.text for block in blocks(PAGE, "toml")]
    install(folder, tomllib.loads(text)["project"]["entry-points"])
    trained = run(folder, "train", "--config", "reward_weighted.yaml", *SHORT)
    assert trained.returncode == 0, trained.stderr
    assert run(folder, "train", "--config", "acrobot.yaml", *SHORT).returncode == 0


def test_the_page_touches_no_private_name_of_ours() -> None:
    for block in blocks(PAGE, "python"):
        tree = ast.parse(block.text)
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.FunctionDef):
                names = [node.name]
            private = [name for name in names if name.startswith("_") and name != "__init__"]
            assert private == [], f"{PAGE.name}:{block.line}"
