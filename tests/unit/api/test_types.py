"""What editors, type checkers and `inspect` see of the agents."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rl_training
from rl_training import PPO, SAC, Agent, TrainConfig
from rl_training.experiment.registry import BUILT_IN

ROOT = Path(__file__).parents[3]

USE = """\
import rl_training
from rl_training import PPO, SAC, TrainConfig, agent_class
from rl_training.config import EvaluationConfig
from rl_training.core import DQN

agent = PPO("CartPole-v1", learning_rate={"start": 1e-3, "end": 0.0}, num_envs=4, policy={"hidden_sizes": [8]})
agent.learn(total_timesteps=10)
PPO(TrainConfig(), evaluation=EvaluationConfig(every=0), env={"kwargs": {}}, output_dir=None, hyperparams={"gamma": 0.9})
SAC("Pendulum-v1", batch_size=64, tau=0.01, policy={"hidden_sizes": (64,)}, device="cpu")
PPO.load("x", "CartPole-v1", num_envs=3).predict([0.0])
DQN.from_preset("dqn/cartpole", double=True, seed=3).close()
agent_class("mine")("CartPole-v1", anything=1)
PPO("CartPole-v1", learning_rat=1)  # wrong: learning_rat
SAC("Pendulum-v1", batch_size="big")  # wrong: batch_size
SAC("Pendulum-v1", clip_coef=0.1)  # wrong: clip_coef
DQN(TrainConfig(), sede=1)  # wrong: sede
PPO.load("x", learning_rat=1)  # wrong: learning_rat
PPO.from_preset("ppo/cartpole", clip_koef=1)  # wrong: clip_koef
rl_training.PPPO  # wrong: PPPO
"""


def test_mypy_knows_the_keywords(tmp_path: Path) -> None:
    path = tmp_path / "use.py"
    path.write_text(USE, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--hide-error-context", str(path)]
    # The cache of `make check`, where there is one, saves reading torch's types anew.
    cache = ["--cache-dir", str(ROOT / ".mypy_cache")]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run([*command, *cache], capture_output=True, text=True, env=environment, cwd=tmp_path)
    found = {
        int(line): text for line, text in re.findall(r"^[^\n]*use.py:(\d+): error: (.*)$", done.stdout, re.MULTILINE)
    }
    wrong = {
        number: line.rpartition("# wrong: ")[2] for number, line in enumerate(USE.splitlines(), 1) if "# wrong" in line
    }
    assert found.keys() == wrong.keys(), done.stdout + done.stderr
    assert [line for line in wrong if f'"{wrong[line]}"' not in found[line]] == [], done.stdout


def test_the_stubs_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_agent_stubs", ROOT / "scripts" / "make_agent_stubs.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, text in script.stubs().items():
        path = ROOT / "src" / "rl_training" / name
        assert path.read_text(encoding="utf-8") == text, f"{name} is out of date: run `make pages`"
    assert (ROOT / "src" / "rl_training" / "py.typed").exists()


def test_the_signature_has_every_keyword_with_its_default() -> None:
    parameters = inspect.signature(PPO).parameters
    assert parameters["clip_coef"].default == 0.2 and parameters["num_steps"].default == 256
    assert parameters["seed"].default == 0 and parameters["num_envs"].default == TrainConfig().num_envs
    assert parameters["output_dir"].default is None
    assert "clip_coef" not in inspect.signature(SAC).parameters
    assert inspect.signature(SAC).parameters["batch_size"].default == 256


@pytest.mark.parametrize("algo", BUILT_IN)
def test_every_keyword_of_the_signature_is_accepted_as_it_stands(algo: str) -> None:
    from rl_training.api.settings import with_settings

    parameters = inspect.signature(rl_training.agent_class(algo)).parameters
    given = {
        name: parameter.default for name, parameter in parameters.items() if name not in ("environment", "output_dir")
    }
    config = TrainConfig(algo=algo)
    changed = with_settings(config, algo, given)
    assert changed.policy == config.policy and changed.evaluation == config.evaluation
    assert set(changed.hyperparams) | set(given) == set(given)


def test_no_output_dir_means_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = PPO("CartPole-v1", num_envs=2, num_steps=8, output_dir=None).learn(total_timesteps=16)
    assert result.run_dir is None and list(tmp_path.iterdir()) == []


def test_dir_lists_what_is_public_without_loading_it() -> None:
    code = (
        "import sys, rl_training; print(*dir(rl_training)); print('torch' in sys.modules, 'gymnasium' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names, loaded = done.stdout.splitlines()
    assert loaded == "False False"
    public = {"Agent", "Callback", "TrainConfig", "agent_class", "check_algorithm", "check_env", "load_agent"}
    public |= {"register_algorithm", "register_encoder", "register_wrapper", "__version__", "__doc__"}
    assert set(names.split()) == public | {info.name for info in BUILT_IN.values()}
    assert all(getattr(rl_training, name) is not None for name in names.split())
    assert issubclass(rl_training.TRPO, Agent)


def test_an_agent_says_what_it_is() -> None:
    agent = PPO("CartPole-v1", num_envs=2, num_steps=16, seed=3, gamma=0.5, device="cpu")
    shown = "device='cpu', num_envs=2, seed=3, num_steps=16, gamma=0.5, num_minibatches=1>"
    assert repr(agent) == f"<PPO on CartPole-v1, 0 steps trained, {shown}"
    agent.learn(total_timesteps=32)
    assert repr(agent) == f"<PPO on CartPole-v1, 32 steps trained, {shown}"


def test_the_version_has_a_module() -> None:
    from rl_training.version import __version__

    assert __version__ == rl_training.__version__ and re.fullmatch(r"\d+\.\d+\.\d+", __version__)
