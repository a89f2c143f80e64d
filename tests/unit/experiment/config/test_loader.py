"""Presets, files, `base:` and overrides."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_training.experiment.config.loader import (
    build_dataclass,
    load_config,
    parse_override,
    preset_names,
    resolve,
)
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.errors import ConfigError
from rl_training.utils.schedules import Schedule

REPOSITORY = Path(__file__).parents[4]
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into an empty working folder, so that messages name it briefly."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str | bytes, name: str = "x.yaml") -> Path:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def error_of(path: Path | str | None, overrides: Any = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(path, overrides)
    return str(caught.value)


def test_the_example_of_the_design_loads(write: Write) -> None:
    path = write("""\
algo: ppo
env_id: CartPole-v1
seed: 1
total_timesteps: 100000
num_envs: 8
device: auto
output_dir: runs
hyperparams: {learning_rate: 2.5e-4, num_steps: 128}   # the algorithm's own dataclass
policy: {hidden_sizes: [64, 64], activation: tanh}
env: {backend: sync, kwargs: {}, normalize_observations: false}
evaluation: {every: 10000, episodes: 10}               # environment steps
checkpoint: {every: 20000, keep: 3}
logging: {tensorboard: true}
""")
    assert load_config(path) == TrainConfig(seed=1, hyperparams={"learning_rate": 2.5e-4, "num_steps": 128})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("2.5e-4", 0.00025), ("1E3", 1000.0), ("1e+3", 1000.0), ("-1.5e-2", -0.015),
        (".5", 0.5), ("1.", 1.0), ("1_000.5", 1000.5), ("1_000_000", 1_000_000), ("-3", -3), ("0x1F", 31),
        ("0", 0),
        ("010", "010"), ("1:30", "1:30"), ("1__0", "1__0"), ("2020-01-01", "2020-01-01"),
        ("1e", "1e"),
        ("e5", "e5"), ("true", True), ("False", False),
        ("yes", "yes"), ("no", "no"), ("on", "on"), ("off", "off"),
        ("null", None), ("~", None), ("", None), ("'1'", "1"), ("[1, 1e2]", [1, 100.0]), ("{a: 1}", {"a": 1}),
        (".inf", float("inf")), ("-.inf", float("-inf")), ("!!str 5", "5"), ("!!float 5", 5.0),
    ],
)  # fmt: skip
def test_values_read_as_people_write_them(write: Write, text: str, value: object) -> None:
    assert repr(parse_override(f"env.kwargs.v={text}")) == repr(("env.kwargs.v", value))
    path = write(f"env:\n  kwargs:\n    v: {text}\n")
    assert repr(load_config(path).env.kwargs) == repr({"v": value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nsed: 2\n", "x.yaml:2: key 'sed': unknown key; did you mean 'seed'?"),
        (
            "policy:\n  hiden_sizes: [1]\n",
            "x.yaml:2: key 'policy.hiden_sizes': unknown key; did you mean 'hidden_sizes'?",
        ),
        (
            "\nnormalize_rewards: true\n",
            "x.yaml:2: key 'normalize_rewards': unknown key; did you mean 'env.normalize_rewards'?",
        ),
        ("learning_rate: 1e-3\n", "x.yaml:1: key 'learning_rate': unknown key; known keys: algo"),
        ("seed: 1\nalgo: ppo\nseed: 2\n", "x.yaml:3: key 'seed': given twice, first at x.yaml:1"),
        ("env:\n  kwargs: {a: 1, a: 2}\n", "x.yaml:2: key 'env.kwargs.a': given twice"),
        ("# c\n\nnum_envs: many\n", "x.yaml:3: key 'num_envs': expected an integer, got 'many'"),
        ("num_envs: -4\n", "x.yaml:1: key 'num_envs': must be >= 1, got -4"),
        (
            "total_timesteps: 1e5\n",
            "x.yaml:1: key 'total_timesteps': expected an integer, got 100000.0 (write 100_000)",
        ),
        (
            "evaluation:\n  deterministic: yes\n",
            "x.yaml:2: key 'evaluation.deterministic': expected true or false, got 'yes'",
        ),
        (
            "policy:\n  hidden_sizes:\n    - 64\n    - x\n",
            "x.yaml:4: key 'policy.hidden_sizes[1]': expected an integer",
        ),
        (
            "evaluation: {every: 0}\nstopping:\n  reward: 3\n",
            "x.yaml:3: key 'stopping.reward': needs evaluations",
        ),
        ("env_id: mods:Env-v0\n", "x.yaml:1: key 'env_id': a config may not import code"),
        ("policy: 3\n", "x.yaml:1: key 'policy': expected a mapping"),
        ("hyperparams: [1]\n", "x.yaml:1: key 'hyperparams': expected a mapping"),
        (
            "env:\n  kwargs:\n    1: 2\n",
            "x.yaml:3: key 'env.kwargs': a key must be text, got 1; put it in quotes",
        ),
        ("[a]: 1\n", "x.yaml:1: a key must be text, not a list or a mapping"),
        ("a: &x {seed: 1}\n<<: *x\n", "x.yaml:2: key '<<': merge keys are not supported"),
        ("", "x.yaml: is empty"),
        ("# only words\n", "x.yaml: is empty"),
        ("null\n", "x.yaml: is empty"),
        ("- a\n- b\n", "x.yaml:1: expected lines of `key: value`, got ['a', 'b']"),
        ("seed 3\n", "x.yaml:1: expected lines of `key: value`, got 'seed 3'"),
        ("seed: 1\n---\nseed: 2\n", "x.yaml:2: not valid YAML"),
        ("seed: [1, 2\n", "x.yaml:2: not valid YAML"),
        ("seed: 1\n\talgo: ppo\n", "x.yaml:2: not valid YAML"),
        ("seed: *missing\n", "x.yaml:1: not valid YAML: found undefined alias 'missing'"),
        ("seed: 1\nalgo: p\x07\n", "x.yaml:2: the character '\\x07' is not allowed in YAML"),
        (b"\xff\xfe\x00\x01junk", "x.yaml: is not UTF-8 text (byte 0)"),
        (b"\x00\x01\x02\x03", "x.yaml:1: the character '\\x00' is not allowed in YAML"),
        ("#" * (1 << 20) + "\n", "x.yaml: is larger than 1 MiB"),
        ("base: 3\n", "x.yaml:1: key 'base': expected a preset name or a .yaml file, got 3"),
        (
            "base: ppo/cartpol\n",
            "x.yaml:1: key 'base': no preset 'ppo/cartpol'; did you mean 'ppo/cartpole'?",
        ),
        ("base: nothing\n", "x.yaml:1: key 'base': no preset 'nothing'; `axiomrl zoo list` shows them all"),
        ("seed: 1\nbase: none.yaml\n", "x.yaml:2: key 'base': none.yaml: no such file"),
        ("base: x.yaml\n", "x.yaml:1: key 'base': a config cannot build on itself: x.yaml -> x.yaml"),
    ],
)
def test_a_bad_file_is_refused_with_file_line_and_key(write: Write, text: str | bytes, message: str) -> None:
    error = error_of(write(text))
    assert error.startswith(message)
    assert "\n" not in error


def test_paths_that_are_not_config_files(write: Write, tmp_path: Path) -> None:
    write("seed: 1")
    Path("folder.yaml").mkdir()
    os.mkfifo("pipe.yaml")
    assert error_of("missing.yaml") == "missing.yaml: no such file"
    assert error_of("folder.yaml") == "folder.yaml: is a folder; give the YAML file in it"
    assert error_of("pipe.yaml") == "pipe.yaml: is not a regular file"
    assert error_of("x.yaml/y.yaml") == "'x.yaml/y.yaml': cannot be read: Not a directory"
    assert "cannot be read: File name too long" in error_of("n" * 5000 + ".yaml")
    assert "cannot be read: embedded null" in error_of("a\0b.yaml")
    assert error_of(Path("ppo/cartpole")).endswith(
        "no such file; the preset of that name: `axiomrl train ppo/cartpole`"
    )
    assert error_of("ppo/pendulm").startswith("no preset 'ppo/pendulm'; did you mean 'ppo/pendulum'?")


def test_base_chain_merges_mappings_and_replaces_the_rest(write: Write) -> None:
    write("seed: 1\nnum_envs: 2\nhyperparams: {gamma: 0.5, betas: [1, 2]}\npolicy: {shared: true}\n", "a.yaml")
    write("base: ../a.yaml\nseed: 2\nhyperparams:\n  betas: [3]\n  lr: {start: 1, end: 0}\n", "sub/b.yaml")
    path = write("base: sub/b.yaml\nhyperparams: {lr: {end: 0.5}}\npolicy: {activation: relu}\n", "c.yaml")
    resolved = resolve(path, ["hyperparams.lr.start=2", "env.kwargs={g: 9}", "env.kwargs.h=1e-3"])
    config = resolved.config
    assert (config.seed, config.num_envs) == (2, 2)
    assert config.hyperparams == {"gamma": 0.5, "betas": [3], "lr": {"start": 2, "end": 0.5}}
    assert (config.policy.shared, config.policy.activation) == (True, "relu")
    assert config.env.kwargs == {"g": 9, "h": 0.001}
    expected = {
        "seed": "sub/b.yaml:2",
        "num_envs": "sub/../a.yaml:2",
        "hyperparams.gamma": "sub/../a.yaml:3",
        "hyperparams.betas": "sub/b.yaml:4",
        "hyperparams.lr.end": "c.yaml:2",
        "hyperparams.lr.start": "command line",
        "policy.activation": "c.yaml:3",
        "policy.squash": "default",
        "env.kwargs.h": "command line",
        "evaluation.every": "default",
    }
    assert {key: resolved.origins[key] for key in expected} == expected
    assert "hyperparams.lr" not in resolved.origins


def test_a_scalar_replaces_a_schedule_and_the_other_way_round(write: Write) -> None:
    write("hyperparams: {a: {start: 1, end: 0}, b: 2}\n", "base.yaml")
    path = write("base: base.yaml\nhyperparams: {a: 3, b: {start: 4, end: 5}}\n")
    resolved = resolve(path)
    assert resolved.config.hyperparams == {"a": 3, "b": {"start": 4, "end": 5}}
    assert {key for key in resolved.origins if key.startswith("hyperparams")} == {
        "hyperparams.a", "hyperparams.b.start", "hyperparams.b.end",
    }  # fmt: skip


def test_longer_cycles_are_found(write: Write) -> None:
    write("base: sub/b.yaml\n", "a.yaml")
    write("base: ../a.yaml\n", "sub/b.yaml")
    assert error_of("a.yaml").endswith("a config cannot build on itself: a.yaml -> sub/b.yaml -> sub/../a.yaml")


def test_sections_with_only_comments_change_nothing(write: Write) -> None:
    write("policy: {shared: true}\nhyperparams: {gamma: 0.5, target_kl: 0.1}\n", "base.yaml")
    path = write("base: base.yaml\npolicy:\n  #shared: false\nenv:\n  kwargs:\nhyperparams:\n")
    config = load_config(path, ["hyperparams.target_kl=null", "stopping="])
    assert config == TrainConfig(policy={"shared": True}, hyperparams={"gamma": 0.5, "target_kl": None})  # type: ignore[arg-type]


def test_errors_name_the_source_that_gave_the_value(write: Write) -> None:
    write("seed: 1\nnum_envs: 0\n", "base.yaml")
    path = write("base: base.yaml\nseed: 3\n")
    assert error_of(path).startswith("base.yaml:2: key 'num_envs'")
    assert error_of(path, ["num_envs=-1"]) == "command line: key 'num_envs': must be >= 1, got -1"
    assert error_of("ppo/cartpole", {"sede": 1}) == "command line: key 'sede': unknown key; did you mean 'seed'?"
    with pytest.raises(ConfigError, match="^arguments: key 'seed'"):
        resolve(None, {"seed": "a"}, overrides_origin="arguments")


@pytest.mark.parametrize("text", ["seed", "=3", "a b=3", "seed..x=3", ".seed=3", ""])
def test_overrides_that_are_not_assignments(text: str) -> None:
    assert "write key=value, such as hyperparams.learning_rate=1e-3" in error_of(None, [text])


def test_overrides_that_do_not_fit() -> None:
    assert error_of(None, ["seed.x=1"]) == "command line: key 'seed': expected an integer, got {'x': 1}"
    assert error_of(None, ["env_id=@x"]).startswith("command line: key 'env_id': not valid YAML")
    assert error_of(None, ["output_dir=[1"]).startswith("command line: key 'output_dir': not valid YAML")
    assert error_of(None, ["base=ppo/cartpole"]).startswith("command line: key 'base': unknown key")
    with pytest.raises(TypeError, match="list of texts"):
        resolve(None, "seed=3")


def test_later_overrides_win_and_mappings_may_nest(tmp_path: Path) -> None:
    assert resolve(None, ["seed=1", "seed=2"]).config.seed == 2
    rate = Schedule(1e-3, 0.0)
    config = resolve(
        "ppo/pendulum",
        {"output_dir": tmp_path, "hyperparams.learning_rate": rate, "policy": {"shared": True}},
    ).config
    assert (config.output_dir, config.policy.shared, config.env_id) == (str(tmp_path), True, "Pendulum-v1")
    assert config.hyperparams["learning_rate"] == {"start": 0.001, "end": 0.0, "fraction": 1.0}


def test_origins_cover_every_key() -> None:
    resolved = resolve("ppo/cartpole", ["policy.hidden_sizes=[8]"])

    def leaves(values: dict[str, Any], prefix: str = "") -> set[str]:
        return {
            leaf
            for name, value in values.items()
            for leaf in (leaves(value, f"{prefix}{name}.") if value and isinstance(value, dict) else {prefix + name})
        }

    assert set(resolved.origins) == leaves(resolved.config.to_dict())
    assert resolved.origins["env_id"] == "preset ppo/cartpole"
    assert resolved.origins["policy.hidden_sizes"] == "command line"
    assert resolved.origins["device"] == "default"


def test_hyperparams_errors_lead_to_their_line(write: Write) -> None:
    from rl_training.algorithms.ppo import PPOConfig

    resolved = resolve(write("hyperparams:\n  gamma: 0.9\n  learning_rate:\n    start: 1e-3\n    end: -1\n"))
    with pytest.raises(
        ConfigError, match=r"^x\.yaml:5: key 'hyperparams\.learning_rate\.end': must be >= 0, got -1\.0$"
    ):
        build_dataclass(PPOConfig, resolved.config.hyperparams, "hyperparams", resolved.locate)


def test_the_presets_are_found_by_name_and_fit_their_algorithm() -> None:
    from rl_training.experiment import registry

    assert {"ppo/cartpole", "ppo/pendulum", "ppo/acrobot", "ppo/lunarlander", "ppo/hopper"} <= set(preset_names())
    assert {"a2c/cartpole", "a2c/acrobot"} <= set(preset_names())
    for name in preset_names():
        resolved = resolve(name)
        assert name.startswith(f"{resolved.config.algo}/")
        config_class = registry.load(resolved.config.algo).config_class
        build_dataclass(config_class, resolved.config.hyperparams, "hyperparams", resolved.locate)


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs").glob("*/*.yaml")), ids=lambda path: path.stem)
def test_the_shipped_configs_repeat_no_number_and_their_commented_lines_work(path: Path, write: Write) -> None:
    from rl_training.experiment import registry

    text = path.read_text(encoding="utf-8")
    preset = resolve(f"{path.parent.name}/{path.stem}")
    copy = write(re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE), "copy.yaml")
    edited = resolve(copy)
    given = {key for key, origin in edited.origins.items() if origin.startswith("copy.yaml")}
    assert len(given) >= 6
    before, after = flat(preset.config.to_dict()), flat(edited.config.to_dict())
    assert not [key for key in given if before.get(key) == after[key] and key != "hyperparams.learning_rate.end"]
    config_class = registry.load(edited.config.algo).config_class
    build_dataclass(config_class, edited.config.hyperparams, "hyperparams", edited.locate)


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in values.items():
        result.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value})
    return result
