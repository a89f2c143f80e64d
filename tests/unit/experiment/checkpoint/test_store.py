"""Checkpoints: what is written comes back; rotation, pointers, replacement, and finding one by a path."""

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rl_training.experiment.checkpoint import folder as checkpoint_folder
from rl_training.experiment.checkpoint.store import (
    Checkpoint,
    CheckpointStore,
    FormatVersionError,
    read_checkpoint,
    resolve_checkpoint,
    write_checkpoint,
)
from rl_training.utils.errors import CheckpointError, UserError

FIXTURES = Path(__file__).parents[3] / "fixtures" / "checkpoints"


def groups(value: float) -> dict:
    return {
        "policy": {"weight": torch.full((2, 3), value), "bias": torch.tensor([value])},
        "algorithm": {"optimiser": {"state": {0: {"step": torch.tensor(value)}}, "lr": 0.5}},
        "runtime": {"rng": {"state": 2**100, "inc": 3}, "returns": [1.0, float("nan")], "obs": np.arange(3)},
        "counters": {"updates": 4},
    }


def weight_of(checkpoint: Checkpoint) -> float:
    return checkpoint.groups["policy"]["weight"][0, 0].item()


def write_manifest(folder: Path, **changes) -> None:
    """A manifest with ``changes`` and a checksum that fits them."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    manifest["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_round_trip(tmp_path):
    folder = tmp_path / "new" / "agent"
    write_checkpoint(folder, groups(1.5), {"algo": "ppo", "score": float("-inf")})
    checkpoint = read_checkpoint(folder)
    assert checkpoint.info == {"algo": "ppo", "score": float("-inf")}
    assert checkpoint.path == folder
    assert checkpoint.groups["policy"]["weight"].tolist() == [[1.5] * 3] * 2
    assert checkpoint.groups["algorithm"]["optimiser"]["state"][0]["step"] == 1.5
    assert checkpoint.groups["runtime"]["rng"] == {"state": 2**100, "inc": 3}
    assert checkpoint.groups["runtime"]["obs"].tolist() == [0, 1, 2]
    assert checkpoint.groups["counters"] == {"updates": 4}


def test_files_are_the_documented_ones(tmp_path):
    write_checkpoint(tmp_path / "c", groups(1.5), {})
    names = sorted(path.name for path in (tmp_path / "c").iterdir())
    assert names == [
        "algorithm.safetensors",
        "manifest.json",
        "policy.safetensors",
        "runtime.safetensors",
        "state.json",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]
    manifest = json.loads((tmp_path / "c" / "manifest.json").read_text())
    assert manifest["version"] == 1
    data = (tmp_path / "c" / "policy.safetensors").read_bytes()
    assert manifest["files"]["policy.safetensors"] == {
        "sha256": hashlib.sha256(data).hexdigest(),
        "size": len(data),
    }


def test_tensor_files_are_what_the_safetensors_library_writes(tmp_path):
    tensors = {"b": torch.arange(3, dtype=torch.uint8), "a": torch.rand(2, 2), "c": torch.tensor(1.0)}
    write_checkpoint(tmp_path / "c", {"policy": tensors}, {})
    ours = load_file(tmp_path / "c" / "policy.safetensors")
    assert {name: value.tolist() for name, value in ours.items()} == {
        name: value.tolist() for name, value in tensors.items()
    }
    save_file(tensors, tmp_path / "theirs")
    assert (tmp_path / "theirs").stat().st_size == (tmp_path / "c" / "policy.safetensors").stat().st_size


def test_reading_some_groups_leaves_the_other_files_alone(tmp_path):
    folder = tmp_path / "c"
    write_checkpoint(folder, groups(2.0), {"algo": "ppo"})
    damaged = folder / "runtime.safetensors"
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    assert list(read_checkpoint(folder, ["policy"]).groups) == ["policy"]
    assert read_checkpoint(folder, ()) == Checkpoint({"algo": "ppo"}, {}, folder)
    with pytest.raises(CheckpointError, match="runtime.safetensors"):
        read_checkpoint(folder)


def test_a_missing_group_is_named(tmp_path):
    write_checkpoint(tmp_path / "c", {"policy": {}}, {})
    with pytest.raises(UserError, match="no part 'runtime', only: policy"):
        read_checkpoint(tmp_path / "c", ["runtime"])


def test_loaded_tensors_outlive_the_folder(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(1, groups(1.0), {})
    checkpoint, _ = store.load_latest()
    with (store.path(1) / "policy.safetensors").open("r+b") as file:
        file.truncate(0)
    assert weight_of(checkpoint) == 1.0


def test_replacing_a_checkpoint(tmp_path):
    for value in (1.0, 2.0):
        write_checkpoint(tmp_path / "agent", groups(value), {})
    assert weight_of(read_checkpoint(tmp_path / "agent")) == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_replacing_drops_files_of_groups_that_are_gone(tmp_path):
    write_checkpoint(tmp_path / "agent", groups(1.0), {})
    write_checkpoint(tmp_path / "agent", {"policy": {"w": torch.zeros(1)}}, {})
    assert list(read_checkpoint(tmp_path / "agent").groups) == ["policy"]


@pytest.mark.parametrize("content", ["notes.txt", "policy.safetensors"])
def test_a_folder_that_is_no_checkpoint_is_never_replaced(content, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / content).write_text("important")
    with pytest.raises(UserError, match="choose another name"):
        write_checkpoint(tmp_path / "thesis", groups(1.0), {})
    assert (tmp_path / "thesis" / content).read_text() == "important"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "agent").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        write_checkpoint(tmp_path / "agent", groups(1.0), {})
    with pytest.raises(UserError, match="cannot write"):
        write_checkpoint(tmp_path / "agent" / "inside", groups(1.0), {})


def test_after_an_interrupted_replacement_the_old_one_is_read_and_the_next_writer_undoes_it(tmp_path):
    write_checkpoint(tmp_path / "agent", groups(1.0), {})
    (tmp_path / "agent").rename(tmp_path / ".old-agent")
    assert weight_of(read_checkpoint(tmp_path / "agent")) == 1.0
    assert resolve_checkpoint(tmp_path / "agent") == tmp_path / "agent"
    assert [path.name for path in tmp_path.iterdir()] == [".old-agent"], "a reader mends nothing"
    write_checkpoint(tmp_path / "agent", groups(2.0), {})
    assert weight_of(read_checkpoint(tmp_path / "agent")) == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["agent"]


def test_bad_state_is_refused_before_anything_is_written(tmp_path):
    for bad in ({"policy": {"f": print}}, {"../x": {}}, {"Policy": {}}):
        with pytest.raises(CheckpointError):
            write_checkpoint(tmp_path / "c", bad, {})
    with pytest.raises(CheckpointError, match="info.w"):
        write_checkpoint(tmp_path / "c", {}, {"w": torch.zeros(1)})
    assert list(tmp_path.iterdir()) == []


def test_newer_format_is_refused(tmp_path):
    write_checkpoint(tmp_path / "c", groups(1.0), {})
    write_manifest(tmp_path / "c", version=2)
    with pytest.raises(FormatVersionError, match=r"written by a newer AxiomRL \(format 2\); upgrade"):
        read_checkpoint(tmp_path / "c")


def test_older_format_needs_a_migration(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "c", {"net": {"w": torch.ones(2)}}, {"a": 1})
    write_manifest(tmp_path / "c", version=0)
    with pytest.raises(FormatVersionError, match="format 0 is not supported"):
        read_checkpoint(tmp_path / "c")

    def rename_group(old: Checkpoint) -> Checkpoint:
        return Checkpoint(old.info | {"migrated": True}, {"policy": old.groups["net"]}, old.path)

    monkeypatch.setitem(checkpoint_folder.MIGRATIONS, 0, rename_group)
    migrated = read_checkpoint(tmp_path / "c")
    assert migrated.info == {"a": 1, "migrated": True}
    assert migrated.groups["policy"]["w"].tolist() == [1, 1]


def test_the_released_format_1_still_loads_exactly():
    checkpoint = read_checkpoint(FIXTURES / "v1")
    assert checkpoint.info == {"algo": "ppo", "env_id": "CartPole-v1", "step": 50000, "seed": 2**64 - 1}
    policy = checkpoint.groups["policy"]
    assert policy["actor.0.weight"].dtype == torch.float32
    assert policy["actor.0.weight"].tolist() == [[0.5, -1.25], [3.0, 0.0], [-0.0, 65504.0]]
    assert policy["actor.0.bias"].dtype == torch.bfloat16
    assert policy["actor.0.bias"].tolist() == [1.0, -2.0, 0.5]
    assert policy["normaliser"]["count"].dtype == np.uint64
    assert policy["normaliser"]["count"] == 2**63 + 1
    assert policy["normaliser"]["mean"].tolist() == [0.1, 0.2]
    assert checkpoint.groups["algorithm"] == {
        "optimiser": {0: {"betas": (0.9, 0.999)}, "best": float("-inf")},
        "rng": 2**127 - 1,
    }


# The store


def test_rotation_keeps_the_newest_the_best_and_nothing_else(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (100, 200, 300, 400, 500):
        path = store.save(step, groups(float(step)), {}, best=step == 200)
        assert path == store.path(step)
    assert store.steps() == [200, 400, 500]
    assert (store.folder / "latest").read_text() == "step_000000500\n"
    assert (store.folder / "best").read_text() == "step_000000200\n"
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "best",
        "latest",
        "step_000000200",
        "step_000000400",
        "step_000000500",
    ]
    assert weight_of(store.load_best()) == 200.0
    checkpoint, messages = store.load_latest()
    assert (weight_of(checkpoint), messages) == (500.0, [])
    assert checkpoint.info == {"step": 500, "best": False}


def test_steps_are_ordered_as_numbers(tmp_path):
    store = CheckpointStore(tmp_path, keep=5)
    for step in (999_999_999, 1_000_000_000, 5):
        store.save(step, groups(1.0), {})
    assert store.steps() == [5, 999_999_999, 1_000_000_000]
    assert store.load_latest()[0].info["step"] == 1_000_000_000


def test_folders_with_other_names_are_not_steps(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(5, groups(1.0), {})
    for name in ("step_9", "step_0000000009", "step_abc", "damaged-step_000000009"):
        (tmp_path / name).mkdir()
    (tmp_path / "step_000000009").write_text("a file")
    assert store.steps() == [5]
    assert store.load_latest()[0].info["step"] == 5


def test_saving_a_step_again_replaces_it_and_keeps_it_best(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(100, groups(1.0), {}, best=True)
    store.save(100, groups(2.0), {})
    assert store.load_best().info["best"] is True
    assert weight_of(store.load_latest()[0]) == 2.0


def test_a_pointer_that_lags_behind_a_crash_is_not_trusted_and_repaired(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(100, groups(1.0), {}, best=True)
    store.save(200, groups(2.0), {}, best=True)
    for name in ("latest", "best"):
        (tmp_path / name).write_text("step_000000100\n")
    assert weight_of(store.load_best()) == 2.0
    assert weight_of(store.load_latest()[0]) == 2.0
    assert (tmp_path / "latest").read_text() == (tmp_path / "best").read_text() == "step_000000100\n"
    store.roll_back(200, 200)
    assert (tmp_path / "latest").read_text() == (tmp_path / "best").read_text() == "step_000000200\n"


def test_rolling_back_restores_what_a_save_leaves_behind(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(100, groups(1.0), {}, best=True)
    store.save(200, groups(2.0), {})
    write_checkpoint(store.path(300), groups(3.0), {"best": True})  # a crash came before pointers and rotation
    store.roll_back(300, 300)
    assert store.steps() == [300]
    assert (tmp_path / "latest").read_text() == (tmp_path / "best").read_text() == "step_000000300\n"
    store.roll_back(300, None)
    assert not (tmp_path / "best").exists()


def test_leftovers_are_removed_by_the_writer_and_left_alone_by_readers(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(50, groups(1.0), {}, best=True)
    leftovers = [".del-step_000000010", ".tmp-latest-17", ".tmp-step_000000060"]
    for name in leftovers:
        (tmp_path / name).mkdir()
    store.load_latest()
    store.load_best()
    assert sorted(path.name for path in tmp_path.glob(".*")) == leftovers
    store.save(100, groups(1.0), {})
    assert list(tmp_path.glob(".*")) == []


def test_an_empty_store_says_so(tmp_path):
    store = CheckpointStore(tmp_path / "none", keep=1)
    assert store.steps() == []
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        store.load_latest()
    with pytest.raises(CheckpointError, match="no evaluation"):
        store.load_best()
    with pytest.raises(UserError, match="at least 1"):
        CheckpointStore(tmp_path, keep=0)


def test_newer_format_is_not_set_aside(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(100, groups(1.0), {})
    write_manifest(store.save(200, groups(2.0), {}), version=9)
    with pytest.raises(FormatVersionError, match="format 9"):
        store.load_latest()
    assert store.steps() == [100, 200]


def test_asking_for_a_group_that_is_not_there_sets_nothing_aside(tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    store.save(100, {"policy": {}}, {})
    with pytest.raises(UserError, match="no part 'runtime'"):
        store.load_latest(["runtime"])
    assert store.steps() == [100]


def test_every_way_to_name_a_checkpoint(tmp_path):
    run = tmp_path / "run"
    store = CheckpointStore(run / "checkpoints", keep=3)
    store.save(100, groups(1.0), {}, best=True)
    store.save(200, groups(2.0), {})
    assert resolve_checkpoint(run) == store.path(200)
    assert resolve_checkpoint(run / "checkpoints") == store.path(200)
    assert resolve_checkpoint(run / "checkpoints" / "latest") == store.path(200)
    assert resolve_checkpoint(run / "checkpoints" / "best") == store.path(100)
    assert resolve_checkpoint(store.path(100)) == store.path(100)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere", "does not exist"),
        ("empty", "holds no checkpoint"),
        ("run", "holds no checkpoint"),
        ("run/checkpoints/best", "points to no checkpoint"),
        ("run/checkpoints/latest", "points to no checkpoint"),
        ("a_file", "is a file"),
    ],
)
def test_a_path_that_means_no_checkpoint(path, message, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "latest").write_text("../../../etc\n")
    (tmp_path / "a_file").write_text("x")
    with pytest.raises(UserError, match=message):
        resolve_checkpoint(tmp_path / path)


def test_a_reader_that_is_overtaken_by_the_writer_looks_again(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(100, groups(1.0), {})

    def slow(checkpoint: Checkpoint) -> None:
        """While its segments are read, the run saves anew and rotates this one out."""
        if checkpoint.info["step"] == 100:
            store.save(200, groups(2.0), {})
            raise CheckpointError("a file is missing")

    checkpoint, messages = store.load_latest(verify=slow)
    assert (checkpoint.info["step"], messages) == (200, [])


def test_a_pointer_that_cannot_be_read_does_not_cost_the_best_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(100, groups(1.0), {}, best=True)
    store.save(200, groups(2.0), {})

    def broken(path, flags, *args, **options):
        if str(path).endswith("best"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags, *args, **options)

    real = os.open
    monkeypatch.setattr(os, "open", broken)
    with pytest.raises(CheckpointError, match="best cannot be read"):
        store.save(300, groups(3.0), {})
    monkeypatch.undo()
    assert 100 in store.steps() and weight_of(store.load_best()) == 1.0
