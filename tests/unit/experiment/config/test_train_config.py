"""TrainConfig built in Python."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.envs.env_config import EnvConfig
from rl_training.experiment.config.loader import load_config
from rl_training.experiment.config.train_config import EvaluationConfig, StoppingConfig, TrainConfig
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import field_docs
from rl_training.utils.schedules import Schedule


def test_four_arguments_are_enough(tmp_path: Path) -> None:
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", seed=7, output_dir=tmp_path)  # type: ignore[arg-type]
    assert (config.seed, config.output_dir) == (7, str(tmp_path))
    assert (config.num_envs, config.total_timesteps, config.policy.hidden_sizes) == (8, 100_000, (64, 64))


def test_mappings_become_sections() -> None:
    config = TrainConfig(
        policy={"hidden_sizes": [32]}, env={"kwargs": {"gravity": 9}}, stopping={"reward": 500}  # type: ignore[arg-type]
    )  # fmt: skip
    assert config.policy == PolicyConfig(hidden_sizes=(32,))
    assert config.env == EnvConfig(kwargs={"gravity": 9}, clip_rewards=False)
    assert repr(config.stopping.reward) == "500.0"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"algo": "PPO"}, "key 'algo': must be an algorithm id in snake case"),
        ({"algo": "../ppo"}, "key 'algo'"),
        ({"env_id": ""}, "key 'env_id': must be an environment id"),
        ({"env_id": 3}, "key 'env_id': expected text"),
        ({"env_id": "my_envs:Thing-v0"}, "pass `--import my_envs` on the command line"),
        ({"seed": -1}, "key 'seed': must be >= 0 and < 4294967296, got -1"),
        ({"seed": 2**32}, "key 'seed'"),
        ({"seed": True}, "key 'seed': expected an integer, got True"),
        ({"total_timesteps": 0}, "key 'total_timesteps': must be > 0, got 0"),
        ({"num_envs": 0}, "key 'num_envs': must be >= 1, got 0"),
        ({"num_envs": "8"}, "key 'num_envs': expected an integer, got '8'"),
        ({"device": "gpu"}, "key 'device': must be auto, cpu, cuda, cuda:N or mps, got 'gpu'"),
        ({"num_threads": 0}, "key 'num_threads'"),
        ({"output_dir": ""}, "key 'output_dir': must be a folder"),
        ({"hyperparams": {"f": len}}, "key 'hyperparams.f': must be a number, text, list or mapping"),
        ({"policy": {"hidden_sizes": [64, 0]}}, "key 'policy.hidden_sizes[1]': must be >= 1, got 0"),
        ({"policy": {"activation": "rlu"}}, "key 'policy.activation': must be one of"),
        ({"env": {"backend": "asinc"}}, "did you mean 'async'?"),
        ({"env": {"restart_workers": 1}}, "key 'env.restart_workers': only the async backend has workers"),
        ({"evaluation": {"evry": 1}}, "key 'evaluation.evry': unknown key; did you mean 'every'?"),
        ({"checkpoint": {"keep": 0}}, "key 'checkpoint.keep': must be >= 1, got 0"),
        ({"logging": {"console": "loud"}}, "key 'logging.console'"),
        ({"stopping": {"max_seconds": 0}}, "key 'stopping.max_seconds': must be > 0, got 0.0"),
        (
            {"stopping": {"patience": 3}, "evaluation": {"every": 0}},
            "key 'stopping.patience': needs evaluations",
        ),
    ],
)
def test_each_bad_value_is_refused_with_its_key(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(**values)
    assert message in str(caught.value)


@pytest.mark.parametrize("device", ["auto", "cpu", "mps", "cuda", "cuda:1"])
def test_devices(device: str) -> None:
    assert TrainConfig(device=device).device == device


def test_sections_check_themselves_and_are_not_shared() -> None:
    with pytest.raises(ConfigError, match="key 'backend'"):
        EnvConfig(backend="thread")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="key 'episodes'"):
        EvaluationConfig(episodes=0)
    policy = PolicyConfig()
    config = TrainConfig(policy=policy)
    other = dataclasses.replace(config, seed=1)
    other.policy.shared = True
    assert (config.policy.shared, policy.shared) == (False, False)


AWKWARD = {
    "text": ["1e-3", "yes", "on", "1_000", "0x10", "010", "1:30", "2020-01-01", "null", "~", "", "<<", "="],
    "spaced": [" a ", "a: b"],
    "more": "line\nbreak # and é \t'quotes\"",
    "numbers": [1e-05, 1e22, 0.1, -0.0, float("inf"), 2**63 - 1, 2**53 + 1, 1.0],
    "others": [None, True, False, {"deep": [[]]}, {}],
    "on": 1,
    "1e5": 2,
}  # fmt: skip


def test_yaml_round_trip_keeps_every_value_and_type(tmp_path: Path) -> None:
    config = TrainConfig(
        seed=3,
        hyperparams={"learning_rate": Schedule(2.5e-4, 0), "gamma": 0.99, "target_kl": None},
        env=EnvConfig(kwargs=AWKWARD),
        stopping=StoppingConfig(reward=-200),
    )
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml(), encoding="utf-8")
    again = load_config(path)
    assert again == config
    assert repr(again) == repr(config)  # 1.0 is not 1, True is not 1
    assert again.to_yaml() == config.to_yaml()
    standard = yaml.safe_load(config.to_yaml())  # another reader sees the same text as text
    assert standard["env"]["kwargs"]["text"] == AWKWARD["text"]


def test_to_dict_is_complete_json_in_field_order() -> None:
    config = TrainConfig(policy=PolicyConfig(hidden_sizes=(8,)))
    values = json.loads(json.dumps(config.to_dict()))
    assert TrainConfig(**values) == config
    assert list(values) == [field.name for field in dataclasses.fields(TrainConfig)]
    assert list(values["stopping"]) == ["reward", "patience", "max_seconds"]


def test_every_key_has_a_description() -> None:
    for cls in [TrainConfig, *(type(section) for section in vars(TrainConfig()).values())]:
        if dataclasses.is_dataclass(cls):
            assert set(field_docs(cls)) == {field.name for field in dataclasses.fields(cls)}


def test_configs_load_without_torch() -> None:
    code = (
        "import sys; from rl_training.experiment.config.loader import resolve; "
        "resolve('ppo/cartpole'); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_integer_that_no_file_could_be_read_with_is_refused():
    with pytest.raises(ConfigError, match=r"env\.kwargs\.n.*at most 63 bits"):
        TrainConfig(env={"kwargs": {"n": 2**63}})
