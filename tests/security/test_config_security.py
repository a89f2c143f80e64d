"""Malicious configs: each refused with a clear error, quickly, and nothing executed."""

import time
from pathlib import Path

import pytest

from rl_training.experiment.config.loader import load_config, resolve
from rl_training.utils.errors import ConfigError

# SENTINEL is replaced by the path of a file that any of these would create if it ran.
CODE = {
    "python/object/apply": "seed: !!python/object/apply:os.system ['touch SENTINEL']\n",
    "apply in kwargs": "env:\n  kwargs:\n    x: !!python/object/apply:os.system ['touch SENTINEL']\n",
    "python/object/new": "seed: !!python/object/new:os.system ['touch SENTINEL']\n",
    "python/object": "seed: !!python/object:pathlib.Path {args: ['SENTINEL']}\n",
    "python/name": "algo: !!python/name:os.system\n",
    "python/module": "algo: !!python/module:antigravity\n",
    "python/tuple": "policy:\n  hidden_sizes: !!python/tuple [64, 64]\n",
    "as a key": "? !!python/object/apply:os.system ['touch SENTINEL']\n: 1\n",
    "scalar as a key": "!!python/name:os.system : 1\n",
    "whole document": "!!python/object/apply:subprocess.check_output [['touch', 'SENTINEL']]\n",
    "%TAG": "%TAG ! tag:yaml.org,2002:python/\n---\nseed: !object/apply:os.system ['touch SENTINEL']\n",
    "own tag": "seed: !exec 'touch SENTINEL'\n",
    "verbatim tag": "seed: !<tag:yaml.org,2002:python/object/apply:os.system> ['touch SENTINEL']\n",
    "in a list": "policy:\n  hidden_sizes: [!!python/object/apply:os.system ['touch SENTINEL']]\n",
    "behind an anchor": "seed: &a !!python/object/apply:os.system ['touch SENTINEL']\nnum_envs: *a\n",
    "binary": "output_dir: !!binary c2VudGluZWw=\n",
    "set": "env:\n  kwargs: !!set {a, b}\n",
    "timestamp": "output_dir: !!timestamp 2001-12-14\n",
    "mapping called a list": "env:\n  kwargs: !!seq {a: 1}\n",
    "environment that imports code": "env_id: 'antigravity:Env-v0'\n",
}
BOMBS = {
    "billion laughs": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi")),
    "billion laughs of mappings": "a: &a {x: 1, y: 1, z: 1}\n"
    + "".join(f"{b}: &{b} {{x: *{a}, y: *{a}, z: *{a}}}\n" for a, b in zip("abcdefghij", "bcdefghijk")),
    "anchor inside itself": "env:\n  kwargs: &a {x: *a}\n",
    "list inside itself": "env:\n  kwargs: {x: &a [*a]}\n",
    "deep lists": "seed: " + "[" * 500_000,
    "deep mappings": "seed: " + "{a: " * 200_000,
    "deep block": "- " * 400_000,
    "many keys": "".join(f"k{i}: 1\n" for i in range(90_000)),
    "many items": "seed: [" + "1," * 400_000 + "1]",
    "endless number": "seed: " + "9" * 500_000 + "\n",
    "huge exponent": "hyperparams: {gamma: 1}\nstopping: {reward: 1e999999999}\n",
    "one long line": "seed: " + "a " * 500_000,
    "oversized": "seed: 1\n" + "# padding\n" * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_nothing_in_a_config_is_executed(name: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    path = tmp_path / "evil.yaml"
    path.write_text(CODE[name].replace("SENTINEL", str(sentinel)), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"refused|must be text|not valid YAML") as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}:")
    assert not sentinel.exists()


@pytest.mark.parametrize("name", CODE)
def test_nothing_in_a_base_is_executed(name: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    (tmp_path / "evil.yaml").write_text(CODE[name].replace("SENTINEL", str(sentinel)), encoding="utf-8")
    path = tmp_path / "innocent.yaml"
    path.write_text("base: evil.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"evil\.yaml"):
        load_config(path)
    assert not sentinel.exists()


@pytest.mark.parametrize("key", ["seed", "env.kwargs", "env.kwargs.x", "hyperparams"])
def test_nothing_in_an_override_is_executed(key: str, tmp_path: Path) -> None:
    sentinel = tmp_path / "sentinel"
    with pytest.raises(ConfigError, match=rf"command line: key '{key}': the YAML tag .* is refused"):
        resolve(None, [f"{key}=!!python/object/apply:os.system ['touch {sentinel}']"])
    assert not sentinel.exists()


REASONS = {
    "billion laughs": "more than 10000 values",
    "billion laughs of mappings": "more than 10000 values",
    "anchor inside itself": "nested deeper than 50 levels",
    "list inside itself": "nested deeper than 50 levels",
    "deep lists": "nested deeper than 50 levels",
    "deep mappings": "nested deeper than 50 levels",
    "deep block": "nested deeper than 50 levels",
    "many keys": "more than 10000 values",
    "many items": "more than 10000 values",
    "endless number": "cannot read '999",
    "huge exponent": "must be a finite number, got inf",
    "one long line": "expected an integer, got 'a a",
    "oversized": "larger than 1 MiB",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_quickly_and_briefly(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.yaml"
    path.write_text(BOMBS[name], encoding="utf-8")
    start = time.process_time()
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert time.process_time() - start < 10
    assert str(caught.value).startswith(str(path))
    assert REASONS[name] in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 300


def test_aliases_within_the_limit_still_work(tmp_path: Path) -> None:
    path = tmp_path / "fine.yaml"
    path.write_text("env:\n  kwargs: {x: &a [1, 2], y: *a}\n", encoding="utf-8")
    kwargs = load_config(path).env.kwargs
    kwargs["x"].append(3)
    assert kwargs == {"x": [1, 2, 3], "y": [1, 2]}  # copies, not one list under two names


@pytest.mark.parametrize(
    "name",
    [
        "../ppo/cartpole", "ppo/../ppo/cartpole", "/ppo/cartpole", "ppo//cartpole", "ppo/cartpole/",
        "ppo/./cartpole", "ppo\\cartpole", "PPO/cartpole", "ppo/cartpole\0", "ppo/cartpole\n",
        "../../../../etc/passwd", "ppo", "", ".",
    ],
)  # fmt: skip
def test_preset_names_cannot_leave_their_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="no preset"):
        resolve(name)


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "/proc/self/environ"])
def test_a_base_reads_yaml_files_only(target: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(f"base: {target}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no preset"):
        load_config(path)


def test_a_base_that_links_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    (tmp_path / "x.yaml").write_text("base: zero.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not a regular file"):
        load_config(tmp_path / "x.yaml")


@pytest.mark.parametrize("key", ["env.wrappers", "evaluation.wrappers"])
@pytest.mark.parametrize(
    "name",
    [
        "evil_wrappers.Evil",
        "evil_wrappers:Evil",
        "evil_wrappers",
        "__builtins__",
        "vector",
        "os.system",
        "../evil_wrappers",
    ],
)
def test_a_wrapper_in_a_config_imports_nothing(
    key: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sentinel = tmp_path / "sentinel"
    (tmp_path / "evil_wrappers.py").write_text(f"open({str(sentinel)!r}, 'w')\nclass Evil: ...\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="a config imports nothing|unknown wrapper"):
        resolve(None, {key: [{"name": name}]})
    assert not sentinel.exists()
