"""`resume`: what may change on the way and is recorded, what may not, and which run a path means."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rl_training import A2C
from rl_training.cli.main import main
from rl_training.experiment.run import runner

SHORT = [
    "--num-envs=2",
    "--set=hyperparams.num_steps=16",
    "--set=hyperparams.num_minibatches=2",
    "--total-timesteps=128",
]
QUIET = ["--set=evaluation.every=0", "--set=checkpoint.every=64", "--set=logging.tensorboard=false"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["train", "ppo", "--env=CartPole-v1", *SHORT, *QUIET, f"--output-dir={folder}"]) == 0
    (run_dir,) = folder.iterdir()
    return run_dir


@pytest.fixture
def run_dir(trained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(trained, tmp_path / trained.name)


def metadata(run_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text(encoding="utf-8"))
    return values


def final(run_dir: Path) -> Any:
    checkpoint, _ = runner.open_checkpoint(run_dir)
    return checkpoint


def test_changed_hyperparameters_take_effect_and_stand_in_the_lineage(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = shutil.copytree(run_dir, tmp_path / "unchanged" / run_dir.name)
    change = "hyperparams.learning_rate=0.01"
    assert main(["resume", str(run_dir), "--total-timesteps=192", "--set", change, "--set=evaluation.every=64"]) == 0
    output = capsys.readouterr()
    assert "not the same run from here on" in output.err and "hyperparams.learning_rate" in output.err
    assert main(["resume", str(other), "--total-timesteps=192"]) == 0
    assert "not the same run" not in capsys.readouterr().err
    (entry,) = metadata(run_dir)["resumes"]
    changes = {change["key"]: (change["old"], change["new"]) for change in entry["changes"]}
    assert changes == {
        "total_timesteps": (128, 192),
        "hyperparams.learning_rate": (pytest.approx(changes["hyperparams.learning_rate"][0]), 0.01),
        "evaluation.every": (0, 64),
    }
    assert any("not the same run" in note for note in entry["notes"])
    saved = final(run_dir)
    assert saved.info["config"]["hyperparams"]["learning_rate"] == 0.01
    assert saved.groups["algorithm"]["optimizers"] != final(other).groups["algorithm"]["optimizers"]
    rates = [
        rate for optimizer in saved.groups["algorithm"]["optimizers"].values() for rate in optimizer["learning_rates"]
    ]
    assert rates and all(rate == pytest.approx(0.01) for rate in rates)
    assert (run_dir / "evaluations.jsonl").exists() and not (other / "evaluations.jsonl").exists()


def test_a_kill_right_after_the_change_loses_neither_the_change_nor_the_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run_dir / "config.yaml").read_text(encoding="utf-8")
    assert main(["resume", str(run_dir), "--total-timesteps=160", "--set=hyperparams.gamma=0.9"]) == 0
    shutil.rmtree(run_dir / "checkpoints" / "step_000000160")  # as if killed before its next checkpoint …
    assert main(["resume", str(run_dir)]) == 0
    assert final(run_dir).info["config"]["hyperparams"]["gamma"] == 0.9
    (run_dir / "config.yaml").write_text(before, encoding="utf-8")  # … and before its config was written
    assert main(["resume", str(run_dir), "--total-timesteps=192"]) == 0
    assert final(run_dir).info["config"]["hyperparams"]["gamma"] == 0.9


REFUSED = {
    "the algorithm": (["--set=algo=a2c"], "algo cannot change on resume"),
    "the environment": (["--set=env_id=Acrobot-v1"], "env_id cannot change on resume"),
    "its settings": (["--set=env.max_episode_steps=5"], "env.max_episode_steps cannot change on resume"),
    "the number of environments": (["--set=num_envs=4"], "num_envs cannot change on resume"),
    "the seed": (["--set=seed=4"], "seed cannot change on resume"),
    "the networks": (["--set=policy.hidden_sizes=[8]"], "policy.hidden_sizes cannot change on resume"),
    "the optimiser": (["--set=hyperparams.optimizer=rmsprop"], "hyperparams.optimizer cannot change on resume"),
    "the folder": (["--set=output_dir=elsewhere"], "output_dir cannot change on resume"),
    "groups of weights": (["--set=hyperparams.critic_learning_rate=0.1"], "the saved state does not go with"),
    "an unknown key": (["--set=hyperparams.gama=0.9"], "did you mean 'gamma'?"),
    "an unknown section": (["--set=evaluations.every=5"], "evaluations.every cannot change on resume"),
    "fewer steps than taken": (["--total-timesteps=10"], "has taken 128 steps already, and total_timesteps=10 counts"),
    "as many steps": (["--set=total_timesteps=128"], "has taken 128 steps already"),
    "the total twice": (["--total-timesteps=300", "--set=total_timesteps=400"], "total_timesteps is given twice"),
    "an environment of other spaces": (["--env=Pendulum-v1"], "Pendulum-v1 has other spaces than the run"),
    "an unknown environment": (["--env=CartPol-v1"], "did you mean CartPole"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_not_fit_is_refused_and_changes_nothing(
    name: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_dir.parent)
    before = {file: (run_dir / file).read_bytes() for file in ("config.yaml", "metadata.json")}
    arguments, message = REFUSED[name]
    assert main(["resume", str(run_dir), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err
    assert before == {file: (run_dir / file).read_bytes() for file in before}
    assert [path.name for path in run_dir.parent.iterdir()] == [run_dir.name]


def test_another_environment_is_another_task_in_a_new_folder(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = (run_dir / "metadata.json").read_bytes()
    arguments = ["--total-timesteps=160", "--set=output_dir=new", "--json"]
    assert main(["resume", str(run_dir), "--env=CartPole-v0", *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["resume_grade"] == "episode-boundary" and Path(result["run_dir"]).parent == Path("new")
    assert metadata(tmp_path / result["run_dir"])["env_id"] == "CartPole-v0"
    assert (run_dir / "metadata.json").read_bytes() == before


@pytest.mark.parametrize(
    ("folder", "path"),
    [
        (".", "."),
        (".", "checkpoints"),
        (".", "checkpoints/latest"),
        ("checkpoints", "latest"),
        ("checkpoints", "."),
        ("checkpoints", "step_000000128"),
        ("checkpoints", ".."),
        ("checkpoints/step_000000128", "."),
    ],
)
def test_a_path_seen_from_inside_the_run_means_the_run(
    folder: str, path: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_dir / folder)
    assert main(["resume", path, "--total-timesteps=160", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (Path.cwd() / result["run_dir"]).resolve() == run_dir.resolve()
    assert metadata(run_dir)["latest_metrics"]["global_step"] == 160
    assert not (run_dir / folder / "runs").exists()


def test_a_run_that_got_its_environment_in_python_goes_on_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def make_pole() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")

    settings = {"num_steps": 8, "num_envs": 2, "evaluation": {"every": 0}, "logging": {"tensorboard": False}}
    agent = A2C(make_pole, seed=0, output_dir=str(tmp_path), **settings)
    agent.learn(32)
    agent.close()
    (run_dir,) = tmp_path.iterdir()
    for command in ("eval", "resume"):
        assert main([command, str(run_dir)]) == 2
        assert "unknown environment 'make_pole'" in (err := capsys.readouterr().err) and "--env ENV_ID names it" in err
    assert main(["eval", str(run_dir), "--env=CartPole-v1", "--episodes=1"]) == 0
    assert main(["resume", str(run_dir), "--env=CartPole-v1", "--total-timesteps=64", "--json"]) == 0
    assert list(tmp_path.iterdir()) == [run_dir], "it is the same run, and goes on in its folder"
    (entry,) = metadata(run_dir)["resumes"]
    assert entry["changes"][0] == {"key": "env_id", "old": "make_pole", "new": "CartPole-v1"}
    shutil.rmtree(sorted((run_dir / "checkpoints").glob("step_*"))[-1])  # as if killed before the next checkpoint
    assert main(["resume", str(run_dir)]) == 0
