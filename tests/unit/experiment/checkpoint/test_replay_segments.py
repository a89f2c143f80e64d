"""Replayed experience is written once, survives damage of newer parts, and comes back bit for bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.experiment.checkpoint.replay_segments import (
    INFO,
    MAX_SEGMENTS,
    ReplaySegments,
    saved_replay,
)
from rl_training.experiment.checkpoint.store import CheckpointStore, read_checkpoint
from rl_training.utils.errors import CheckpointError
from rl_training.utils.trees import differing_paths


def _buffer(capacity: int = 40) -> ReplayBuffer:
    return ReplayBuffer(capacity, 2, (3,), (), action_dtype=torch.int64, seed=7)


def _fill(buffer: ReplayBuffer, steps: int, rng: np.random.Generator) -> None:
    for _ in range(steps):
        ended = torch.from_numpy(rng.random(2) < 0.2)
        buffer.add(
            obs=torch.from_numpy(rng.normal(size=(2, 3)).astype(np.float32)),
            actions=torch.from_numpy(rng.integers(4, size=2)),
            rewards=torch.from_numpy(rng.normal(size=2)),
            next_obs=torch.from_numpy(rng.normal(size=(2, 3)).astype(np.float32)),
            terminated=ended,
            truncated=~ended & torch.from_numpy(rng.random(2) < 0.1),
            valid=torch.from_numpy(rng.random(2) < 0.9),
        )


def _save(store: CheckpointStore, segments: ReplaySegments, buffer: ReplayBuffer, step: int) -> Path:
    listed = segments.save(buffer)
    path = store.save(step, {"replay": {"head": buffer.head_state()}}, {INFO: listed})
    segments.collect_garbage(store.path(saved) for saved in store.steps())
    return path


def _names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "segments").iterdir()}


def test_each_save_writes_only_what_is_new_and_old_segments_go_away(tmp_path):
    rng, buffer = np.random.default_rng(0), _buffer()
    store, segments = CheckpointStore(tmp_path, keep=2), ReplaySegments(tmp_path)
    seen: dict[str, int] = {}
    for step in range(12):
        _fill(buffer, 5, rng)
        before = _names(tmp_path) if (tmp_path / "segments").exists() else set()
        path = _save(store, segments, buffer, step)
        assert len(_names(tmp_path) - before) == 1
        for name in _names(tmp_path):
            changed = (tmp_path / "segments" / name / "rows.safetensors").stat().st_mtime_ns
            assert seen.setdefault(name, changed) == changed, "a segment was written again"
        again = _buffer()
        again.load_state_dict(saved_replay(read_checkpoint(path)))
        assert differing_paths(buffer.state_dict(), again.state_dict()) == []
        assert differing_paths(vars_of(buffer.sample(16)), vars_of(again.sample(16))) == []
        (fresh := _buffer()).load_state_dict(saved_replay(read_checkpoint(path)))
        buffer = fresh  # go on with the restored one
    # Forty transitions are about four segments; what is older than the two checkpoints need is gone.
    assert len(_names(tmp_path)) <= 8


def vars_of(batch):
    return {name: getattr(batch, name) for name in batch.__slots__}


def test_many_small_segments_are_merged(tmp_path):
    rng, buffer = np.random.default_rng(1), _buffer(400)
    store, segments = CheckpointStore(tmp_path, keep=1), ReplaySegments(tmp_path)
    for step in range(MAX_SEGMENTS + 10):
        _fill(buffer, 1, rng)
        path = _save(store, segments, buffer, step)
    assert len(_names(tmp_path)) <= MAX_SEGMENTS
    again = _buffer(400)
    again.load_state_dict(saved_replay(read_checkpoint(path)))
    assert differing_paths(buffer.state_dict(), again.state_dict()) == []


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_segment_makes_its_checkpoint_unusable_but_not_the_one_before(damage, tmp_path):
    rng, buffer = np.random.default_rng(2), _buffer()
    store, segments = CheckpointStore(tmp_path, keep=3), ReplaySegments(tmp_path)
    _fill(buffer, 5, rng)
    _save(store, segments, buffer, 1)
    _fill(buffer, 5, rng)
    _save(store, segments, buffer, 2)
    newest = max((tmp_path / "segments").iterdir())
    if damage == "missing":
        (newest / "manifest.json").unlink()
    else:
        file = newest / "rows.safetensors"
        file.write_bytes(file.read_bytes()[:-3])
    checkpoint, messages = store.recover(ReplaySegments(tmp_path).verify)
    assert checkpoint.info["step"] == 1
    assert len(messages) == 1 and "set aside" in messages[0]


@pytest.mark.parametrize("name", ["../../etc", "rows_/../x", "/rows_1", 7])
def test_a_segment_name_cannot_leave_the_folder(name, tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    path = store.save(1, {"replay": {"head": {}}}, {INFO: [{"name": name, "start": [0], "stop": [1]}]})
    with pytest.raises(CheckpointError, match="segment"):
        ReplaySegments(tmp_path).verify(read_checkpoint(path))
