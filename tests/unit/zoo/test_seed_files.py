"""What a benchmark keeps of its seeds, and what it refuses to mix."""

import json

import pytest

from rl_training.utils.errors import UserError
from rl_training.zoo import seed_files
from rl_training.zoo.seed_files import (
    SeedTask,
    claim_folder,
    code_fingerprint,
    config_fingerprint,
    data_file,
    differences,
    run_fingerprint,
)

CONFIG = {"total_timesteps": 100, "hyperparams": {"gamma": 0.9}}


def task(output, config=CONFIG, **fingerprint) -> SeedTask:
    parts = {"code": "0.1.0+aa", "episodes": 5, "device": "cpu", "versions": {"torch": "2.1"}, **fingerprint}
    return SeedTask("ppo/cartpole", 3, {}, 5, output, config, {"config": config_fingerprint(config), **parts})


def begun(output) -> SeedTask:
    one = task(output)
    one.folder.mkdir(parents=True)
    one.write(None)
    return one


def test_a_seed_is_begun_then_finished(tmp_path):
    one = begun(tmp_path)
    assert one.file == tmp_path / "ppo_cartpole" / "seed3.json"
    assert one.result() is None and one.mismatch() is None
    one.write({"seed": 3})
    assert one.result() == {"seed": 3} and task(tmp_path).mismatch() is None


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"code": "0.1.0+bb"}, "code: 0.1.0+aa then, 0.1.0+bb now"),
        ({"versions": {"torch": "2.2"}}, "versions.torch: 2.1 then, 2.2 now"),
        ({"versions": {"torch": "2.1", "mujoco": "4"}}, "versions.mujoco: none then, 4 now"),
        ({"device": "NVIDIA H200"}, "device: cpu then, NVIDIA H200 now"),
        (
            {"config": {"total_timesteps": 100, "hyperparams": {"gamma": 0.5}}, "episodes": 6},
            "hyperparams.gamma: 0.9 then, 0.5 now; episodes: 5 then, 6 now",
        ),
    ],
)
def test_another_origin_is_noticed_and_named(other, reason, tmp_path):
    begun(tmp_path)
    assert task(tmp_path, **other).mismatch() == reason


def test_runs_without_a_seed_file_and_damaged_seed_files_are_not_trusted(tmp_path):
    one = begun(tmp_path)
    one.file.write_text("{")
    assert one.mismatch() == "seed3.json is damaged"
    one.file.unlink()
    assert one.mismatch() is None
    (one.folder / "ppo__CartPole-v1__seed3__x").mkdir()
    assert one.mismatch() == "its seed file is missing"


def test_discard_removes_one_seed_and_the_data_file(tmp_path):
    one = begun(tmp_path)
    other = one.folder / "ppo__CartPole-v1__seed33__x"
    for folder in (other, one.folder / "ppo__CartPole-v1__seed3__x", tmp_path / "results"):
        folder.mkdir()
    data_file(tmp_path, "ppo/cartpole").write_text("{}")
    one.discard()
    assert list(one.folder.iterdir()) == [other] and list((tmp_path / "results").iterdir()) == []


def test_a_folder_belongs_to_one_benchmark(tmp_path):
    claim_folder(tmp_path / "a", "smoke")
    claim_folder(tmp_path / "a", "smoke")
    with pytest.raises(UserError, match="holds the runs of the benchmark 'smoke', not of 'goals'"):
        claim_folder(tmp_path / "a", "goals")
    (tmp_path / "b").mkdir()
    claim_folder(tmp_path / "b", "goals")
    with pytest.raises(UserError, match="is not empty and not the folder of a benchmark"):
        claim_folder(tmp_path, "goals")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Choose another"):
        claim_folder(tmp_path / "file" / "x", "goals")


def test_the_config_fingerprint_ignores_the_order_of_keys_only():
    assert config_fingerprint({"a": 1, "b": 2}) == config_fingerprint({"b": 2, "a": 1})
    assert config_fingerprint({"a": 1}) != config_fingerprint({"a": 1.5})


def test_the_code_fingerprint_follows_the_source(tmp_path, monkeypatch):
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "trainer.py").write_text("x = 1\n")
    (tmp_path / "cli").mkdir()
    monkeypatch.setattr(seed_files, "PACKAGE", tmp_path)
    first = code_fingerprint()
    (tmp_path / "cli" / "train.py").write_text("print()\n")
    assert code_fingerprint() == first, "how things are printed does not change a score"
    (tmp_path / "runtime" / "trainer.py").write_text("x = 2\n")
    second = code_fingerprint()
    (tmp_path / "runtime" / "more.py").write_text("")
    assert len({first, second, code_fingerprint()}) == 3


def test_a_run_fingerprint_is_json_and_has_every_part():
    parts = run_fingerprint(CONFIG, 5, "cpu")
    assert json.loads(json.dumps(parts)) == parts
    assert set(parts) == {"config", "code", "episodes", "device", "versions"} and "torch" in parts["versions"]
    assert parts["code"] == code_fingerprint()


def test_differences():
    assert differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 1}, "c": 2}) == []
    assert differences({"a": {"b": 1}}, {"a": 3}) == ["a: {'b': 1} then, 3 now"]
