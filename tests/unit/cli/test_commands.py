"""train, eval, resume and verify-resume through the command line, with the mistakes a newcomer makes."""

import json
import sys
from pathlib import Path

import pytest

from rl_training.cli.main import main

QUICK = [
    "--total-timesteps=256",
    "--num-envs=2",
    "--set=hyperparams.num_steps=32",
    "--set=evaluation.every=128",
    "--set=evaluation.episodes=2",
    "--set=logging.tensorboard=false",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """One short run, as `train --json` reports it."""
    folder = tmp_path_factory.mktemp("runs")
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["train", *QUICK, "--json", f"--output-dir={folder}"]) == 0
    return json.loads(out.getvalue())


def test_train_reports_what_it_did_and_what_to_try_next(tmp_path, capsys):
    assert main(["train", *QUICK, "--seed=3", f"--output-dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "PPO on CartPole-v1, seed 3: 256 steps" in out
    assert "evaluation return" in out and "Try next:" in out
    (run_dir,) = tmp_path.iterdir()
    assert f"axiomrl eval {run_dir}" in out  # by its path if it is not on the PATH


def test_train_json(run):
    assert run["metrics"]["global_step"] == 256
    assert run["evaluation"]["episodes"] == 2
    assert run["stop_reason"] is None


def test_train_over_seeds(tmp_path, capsys):
    assert main(["train", *QUICK, "--seeds=1,2", f"--output-dir={tmp_path}"]) == 0
    out = capsys.readouterr().out
    assert "2 seeds: mean" in out
    assert len(list(tmp_path.iterdir())) == 2


def test_train_over_seeds_json(tmp_path, capsys):
    assert main(["train", *QUICK, "--seeds=1,2", "--json", f"--output-dir={tmp_path}"]) == 0
    assert [entry["seed"] for entry in json.loads(capsys.readouterr().out)] == [1, 2]


def test_dry_run_names_the_origin_of_each_value_and_writes_nothing(tmp_path, capsys):
    arguments = ["train", "ppo/cartpole", "--set=hyperparams.gamma=0.9", f"--output-dir={tmp_path}/runs", "--dry-run"]
    assert main(arguments) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["hyperparams.gamma"].split() == ["hyperparams.gamma", "0.9", "#", "command", "line"]
    assert lines["hyperparams.update_epochs"].endswith("# preset ppo/cartpole")
    assert lines["hyperparams.vf_coef"].endswith("# algorithm default")
    assert not (tmp_path / "runs").exists()


def test_dry_run_json(capsys):
    assert main(["train", "--dry-run", "--json", "--seed=9"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == {"value": 9, "origin": "command line"}


def test_resolved_config_of_a_run_runs_again_as_it_is(run, tmp_path, capsys):
    config = f"{run['run_dir']}/config.yaml"
    assert main(["train", f"--config={config}", "--json", f"--output-dir={tmp_path}"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["evaluation"]["returns"] == run["evaluation"]["returns"]
    assert again["metrics"]["train/loss"] == run["metrics"]["train/loss"]


def test_eval_of_a_run_a_checkpoint_and_the_best(run, capsys):
    assert main(["eval", run["run_dir"], "--episodes=3", "--json"]) == 0
    newest = json.loads(capsys.readouterr().out)
    assert newest["episodes"] == 3 and newest["checkpoint"].endswith("step_000000256")
    assert main(["eval", run["checkpoint"], "--episodes=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["returns"] == newest["returns"]
    assert main(["eval", run["run_dir"], "--best", "--episodes=3", "--stochastic"]) == 0
    assert "3 stochastic episodes" in capsys.readouterr().out


def test_eval_in_another_environment(run, capsys):
    """CartPole-v0 ends its episodes after 200 steps; a policy that never moves is not worse there than in its own."""
    assert main(["eval", run["run_dir"], "--episodes=3", "--json", "--env=CartPole-v0"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["env_id"] == "CartPole-v0" and max(other["lengths"]) <= 200
    assert main(["eval", run["run_dir"], "--episodes=3", "--env=CartPole-v0"]) == 0
    assert "PPO on CartPole-v0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env=Pendulum-v1"], "Pendulum-v1"),
        (["--env=CartPol-v1"], "did you mean CartPole"),
        (["--seed=-1"], "--seed must be from 0 to 4294967295, got -1"),
        (["--seed=4294967296"], "--seed must be from 0"),
        (["--episodes=0"], "at least 1"),
    ],
)
def test_eval_refuses_what_does_not_fit(arguments, message, run, capsys):
    assert main(["eval", run["run_dir"], *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err


def test_resume_continues_in_place(run, capsys):
    assert main(["resume", run["run_dir"], "--total-timesteps=512"]) == 0
    out = capsys.readouterr().out
    assert "resumed (grade exact); now at 512 steps" in out
    metadata = json.loads((Path(run["run_dir"]) / "metadata.json").read_text())
    assert [entry["grade"] for entry in metadata["resumes"]] == ["exact"]
    assert metadata["status"] == "completed"


def test_resume_of_a_finished_run_has_nothing_to_do(run, capsys):
    assert main(["resume", run["run_dir"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["global_step"] >= 256


def test_verify_resume(tmp_path, capsys):
    arguments = [*QUICK[1:], "--total-timesteps=2000", "--set=checkpoint.every=64", "--moments-seed=1"]
    assert main(["verify-resume", *arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["identical"] is True and report["differences"] == [] and report["arrays"] > 20


BAD_INPUT = {
    "unknown env": (["--set=env_id=CartPol-v1"], "unknown environment 'CartPol-v1': did you mean CartPole-v1"),
    "unknown key": (["--set=hyperparams.learnig_rate=1e-3"], "did you mean 'learning_rate'?"),
    "another algorithm": (["--set=algo=dqn"], "written for another algorithm. Start from a config for dqn"),
    "unknown section key": (["--set=evaluation.evry=5"], "did you mean 'every'?"),
    "wrong type": (["--set=total_timesteps=lots"], "total_timesteps"),
    "negative number": (["--set=hyperparams.learning_rate=-1"], "hyperparams.learning_rate"),
    "negative envs": (["--num-envs=-2"], "num_envs"),
    "unknown algorithm": (["--set=algo=ppp"], "unknown algorithm 'ppp'"),
    "unknown preset": (["ppo/cartpoel"], "did you mean 'ppo/cartpole'?"),
    "missing file": (["--config=nowhere.yaml"], "nowhere.yaml: no such file"),
    "preset and file": (["ppo/cartpole", "--config=x.yaml"], "not both"),
    "file as preset": (["x.yaml"], "--config x.yaml"),
    "bad override": (["--set=gamma"], "key=value"),
    "bad seeds": (["--seeds=1,a"], "--seeds takes numbers"),
    "seed twice": (["--seeds=1,1"], "names a seed twice"),
    "seed and seeds": (["--seeds=1", "--seed=1"], "not both"),
    "no such device": (["--device=cuda:77"], "cuda:77"),
    "module in env id": (["--set=env_id=os:CartPole-v1"], "--import os"),
    "module that is not there": (["--import=no_such_module_here"], "no_such_module_here"),
    "too many minibatches": (["--set=hyperparams.num_minibatches=100000"], "num_minibatches"),
    "replay smaller than a batch": (["dqn/cartpole", "--set=hyperparams.buffer_size=32"], "smaller than a batch"),
    "n-step longer than the buffer": (
        ["dqn/cartpole", "--set=hyperparams.n_step=500", "--set=hyperparams.buffer_size=300"],
        "hyperparams.n_step is 500",
    ),
    "continuous actions for DQN": (
        ["dqn/cartpole", "--set=env_id=Pendulum-v1"],
        "Use an algorithm for continuous actions: sac",
    ),
    "discrete actions for SAC": (
        ["sac/pendulum", "--set=env_id=CartPole-v1"],
        "Use an algorithm for discrete actions: discrete_sac",
    ),
    "a policy key that means nothing to the algorithm": (
        ["sac/pendulum", "--set=policy.squash=true"],
        "policy.squash means nothing to SAC",
    ),
    "more critics in the target than there are": (
        ["sac/pendulum", "--set=hyperparams.critic_subset=3"],
        "hyperparams.critic_subset is 3",
    ),
    "PER alpha out of range": (["dqn/cartpole", "--set=hyperparams.per_alpha=1.5"], "hyperparams.per_alpha"),
    "rewards in replay normalised": (["dqn/cartpole", "--set=env.normalize_rewards=true"], "env.normalize_rewards"),
    "hindsight without goals": (["dqn/cartpole", "--set=hyperparams.hindsight=0.8"], "or set hyperparams.hindsight=0"),
    "no native version": (["--set=env_id=FrozenLake-v1", "--set=env.backend=native"], "env.backend=sync"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_exit_2_and_one_helpful_message(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments, expected = BAD_INPUT[name]
    assert main(["train", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and expected in err
    assert "Traceback" not in err and len(err.splitlines()) <= 3
    assert list(tmp_path.iterdir()) == [], "a run that cannot start leaves nothing behind"


def test_bad_key_in_a_file_is_named_with_its_line(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("base: ppo/cartpole\nhyperparams:\n  num_step: 64\n")
    assert main(["train", f"--config={path}"]) == 2
    err = capsys.readouterr().err
    assert f"{path}:3" in err and "num_step" in err and "did you mean 'num_steps'?" in err


def test_checkpoint_of_another_algorithm(run):
    from rl_training import A2C
    from rl_training.utils.errors import UserError

    with pytest.raises(UserError, match="is of algorithm 'ppo', not 'a2c'"):
        A2C.load(run["run_dir"])


def test_dict_action_space(tmp_path, monkeypatch, capsys):
    (tmp_path / "dict_action_env.py").write_text(
        "import gymnasium as gym\nimport numpy as np\n"
        "class E(gym.Env):\n"
        "    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)\n"
        "    action_space = gym.spaces.Dict({'a': gym.spaces.Discrete(2)})\n"
        "gym.register('DictAction-v0', entry_point=E)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["train", "--import=dict_action_env", "--set=env_id=DictAction-v0"]) == 2
    err = capsys.readouterr().err
    assert "does not support Dict action spaces" in err and "Discrete" in err


def test_missing_extra_names_the_pip_command(monkeypatch, capsys):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mujoco" else real(name, *rest)
    )
    assert main(["train", "ppo/hopper"]) == 2
    assert 'pip install "axiomrl[mujoco]"' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["eval", "resume"])
def test_paths_that_are_no_run(command, tmp_path, capsys):
    assert main([command, str(tmp_path / "nothing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main([command, str(tmp_path)]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err


def test_python_m_and_script_entry_points():
    import subprocess

    root = Path(__file__).parents[3]
    for command in (
        [sys.executable, "-m", "rl_training.cli", "train"],
        [sys.executable, str(root / "scripts/train.py")],
    ):
        config = root / "configs" / "ppo" / "cartpole.yaml"
        result = subprocess.run([*command, f"--config={config}", "--dry-run"], capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert "hyperparams.learning_rate" in result.stdout
