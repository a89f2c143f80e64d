"""Damage, a full disk and SIGKILL at every boundary of a save: the last good state always loads, whole."""

import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rl_training.experiment.checkpoint.store import Checkpoint, CheckpointStore, read_checkpoint, write_checkpoint
from rl_training.utils import failpoints
from rl_training.utils.errors import CheckpointError, WriteError

FILES = ["policy.safetensors", "algorithm.safetensors", "runtime.safetensors", "state.json", "manifest.json"]


def groups(value: int) -> dict:
    return {
        "policy": {"weight": torch.full((4, 3), float(value))},
        "algorithm": {"optimiser": {0: {"moment": torch.full((4,), float(value))}}, "updates": value},
        "runtime": {"obs": np.full(5, value), "step": value},
    }


def whole_value(checkpoint: Checkpoint) -> int:
    """The one value the whole checkpoint was made of; fails on a mixture."""
    policy, algorithm, runtime = (checkpoint.groups[name] for name in ("policy", "algorithm", "runtime"))
    values = {
        *policy["weight"].flatten().tolist(),
        *algorithm["optimiser"][0]["moment"].tolist(),
        algorithm["updates"],
        *runtime["obs"].tolist(),
        runtime["step"],
        checkpoint.info["value"],
    }
    assert len(values) == 1, f"a mixture of {values}"
    return int(values.pop())


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def save(store: CheckpointStore, step: int, value: int) -> None:
    store.save(step, groups(value), {"value": value}, best=True)


# Damaged files


def flip(position: float) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(len(data) * position), len(data) - 1)] ^= 0x10
        path.write_bytes(data)

    return damage


def cut(keep: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int((path.stat().st_size - 1) * keep))


DAMAGES = {
    "missing": Path.unlink,
    "emptied": cut(0),
    "halved": cut(0.5),
    "one byte short": cut(1),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "flipped first": flip(0),
    "flipped early": flip(0.1),
    "flipped middle": flip(0.5),
    "flipped last": flip(1),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_named_set_aside_and_the_previous_one_used(file, damage, tmp_path):
    store = CheckpointStore(tmp_path, keep=3)
    save(store, 100, 1)
    save(store, 200, 2)
    DAMAGES[damage](store.path(200) / file)
    before = contents(tmp_path)
    checkpoint, messages = store.load_latest()
    assert whole_value(checkpoint) == 1
    assert len(messages) == 1 and file in messages[0] and messages[0].endswith("passed over")
    assert contents(tmp_path) == before, "a reader mends nothing"
    checkpoint, messages = store.recover()  # the run's one writer does
    store.roll_back(100, 100)
    assert whole_value(checkpoint) == 1
    assert len(messages) == 1
    assert "step_000000200" in messages[0] and file in messages[0]
    assert messages[0].endswith("set aside as damaged-step_000000200")
    assert store.steps() == [100]
    assert (tmp_path / "damaged-step_000000200").is_dir()
    assert (tmp_path / "latest").read_text() == (tmp_path / "best").read_text() == "step_000000100\n"


@pytest.mark.parametrize("file", FILES)
def test_no_single_byte_can_change_unnoticed(file, tmp_path):
    write_checkpoint(tmp_path / "c", groups(1), {"value": 1})
    path = tmp_path / "c" / file
    data = bytearray(path.read_bytes())
    for position in range(len(data)):
        bit = 1 << (position % 8)
        data[position] ^= bit
        path.write_bytes(data)
        data[position] ^= bit
        with pytest.raises(CheckpointError, match=file):
            read_checkpoint(tmp_path / "c")
    path.write_bytes(data)
    assert whole_value(read_checkpoint(tmp_path / "c")) == 1


def test_several_damaged_ones_and_a_name_that_is_taken(tmp_path):
    store = CheckpointStore(tmp_path, keep=5)
    for step in (100, 200, 300):
        save(store, step, step)
    (store.path(200) / "state.json").unlink()
    (store.path(300) / "manifest.json").unlink()
    (tmp_path / "damaged-step_000000300").mkdir()
    checkpoint, messages = store.recover()
    assert whole_value(checkpoint) == 100
    assert ["damaged-step_000000300-1" in messages[0], "damaged-step_000000200" in messages[1]] == [
        True,
        True,
    ]
    (store.path(100) / "state.json").unlink()
    with pytest.raises(CheckpointError, match="no usable checkpoint.*000100: state.json is missing"):
        store.load_latest()


def test_a_damaged_best_checkpoint_is_named(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    save(store, 100, 1)
    flip(0.5)(store.path(100) / "policy.safetensors")
    with pytest.raises(CheckpointError, match="step_000000100: policy.safetensors is damaged"):
        store.load_best()


# A full disk, and SIGKILL, at every boundary: what the store holds before, and the step that is being saved.

SCENARIOS = {
    "new step, old one rotated out": ([(100, 1)], 200),
    "same step replaced": ([(50, 0), (100, 1)], 100),
    "first save": ([], 100),
}


def prepared_stores(tmp_path: Path, before: list[tuple[int, int]]) -> Iterator[tuple[int, CheckpointStore]]:
    """1, 2, 3, … each with a fresh copy of the same store."""
    original = CheckpointStore(tmp_path / "original", keep=1)
    original.folder.mkdir()
    for step, value in before:
        save(original, step, value)
    for count in itertools.count(1):
        folder = tmp_path / f"copy{count}"
        shutil.copytree(original.folder, folder)
        yield count, CheckpointStore(folder, keep=1)


def load_or_none(store: CheckpointStore) -> int | None:
    """What a resume finds; nothing may have been set aside, since nothing is damaged."""
    if not store.steps() and not list(store.folder.glob(".old-*")):
        with pytest.raises(CheckpointError, match="no usable checkpoint"):
            store.load_latest()
        return None
    checkpoint, messages = store.load_latest()
    assert messages == []
    return whole_value(checkpoint)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_disk_full_at_every_boundary(scenario, tmp_path, monkeypatch):
    before, step = SCENARIOS[scenario]
    old = before[-1][1] if before else None
    outcomes = []
    for count, store in prepared_stores(tmp_path, before):
        pointers = {path.name: path.read_text() for path in store.folder.iterdir() if path.is_file()}
        steps = store.steps()
        monkeypatch.setenv(failpoints.ENV_VAR, f"checkpoint.write@{count}=enospc")
        try:
            save(store, step, 2)
        except WriteError as error:
            assert "disk full" in str(error) and str(store.path(step)) in str(error)
        else:
            break
        finally:
            monkeypatch.delenv(failpoints.ENV_VAR)
        assert list(store.folder.glob(".tmp-*")) == []
        now = {path.name: path.read_text() for path in store.folder.iterdir() if path.is_file()}
        steps_now = store.steps()
        found = load_or_none(store)
        assert found in (old, 2)
        if found == old:
            assert (now, steps_now) == (pointers, steps)
        outcomes.append(found)
        save(store, step + 1, 3)  # once there is space again
        assert load_or_none(store) == 3
        assert list(store.folder.glob(".*")) == []
    assert outcomes == sorted(outcomes, key=lambda value: value == 2), "once new, it stays new"
    assert outcomes[0] == old and outcomes[-1] == 2
    assert len(outcomes) >= 11  # fewest for a step that is saved again: its pointers need not change


def save_in_killed_child(store: CheckpointStore, step: int, count: int) -> bool:
    """Fork, save with SIGKILL at boundary ``count``; whether the child was killed (else it finished)."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ[failpoints.ENV_VAR] = f"checkpoint.write@{count}=kill"
            save(store, step, 2)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_sigkill_at_every_boundary(scenario, tmp_path):
    before, step = SCENARIOS[scenario]
    old = before[-1][1] if before else None
    outcomes = []
    for count, store in prepared_stores(tmp_path, before):
        if not save_in_killed_child(store, step, count):
            break
        best = whole_value(store.load_best()) if before or store.steps() else None
        found = load_or_none(store)
        assert found in (old, 2)
        assert best == found  # each save in this test is the best so far
        outcomes.append(found)
        save(store, step + 1, 3)
        assert load_or_none(store) == 3
        assert list(store.folder.glob(".*")) == []
        assert store.steps() == [step + 1]
    assert outcomes[0] == old and outcomes[-1] == 2
    assert len(outcomes) >= 11  # fewest for a step that is saved again: its pointers need not change


def test_a_misspelt_failpoint_is_an_error(monkeypatch):
    for spec in ("checkpoint.write@0=kill", "checkpoint.write=kill", "checkpoint.write@1=explode"):
        monkeypatch.setenv(failpoints.ENV_VAR, spec)
        with pytest.raises(ValueError, match="cannot read"):
            failpoints.hit("checkpoint.write")


def test_failpoints_count_by_name_and_anew_for_each_setting(monkeypatch):
    def hits_until_full(name: str) -> int:
        for count in itertools.count(1):
            try:
                failpoints.hit(name)
            except OSError:
                return count
        raise AssertionError

    monkeypatch.setenv(failpoints.ENV_VAR, "a.b@2=enospc, c@3=enospc")
    failpoints.hit("c")
    assert hits_until_full("a.b") == 2
    assert hits_until_full("c") == 2  # and the one above
    monkeypatch.delenv(failpoints.ENV_VAR)
    failpoints.hit("a.b")
    monkeypatch.setenv(failpoints.ENV_VAR, "a.b@2=enospc, c@3=enospc")
    assert hits_until_full("c") == 3
