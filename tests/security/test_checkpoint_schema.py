"""The schema walk: a state tree of another form than the run's own is refused before anything is restored."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.experiment.checkpoint.store import read_checkpoint, write_checkpoint
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.utils.errors import CheckpointError


def trained(folder: Path, algo: str, **hyperparams: Any) -> Path:
    config = TrainConfig(
        algo=algo,
        num_envs=2,
        total_timesteps=32,
        output_dir=folder,
        hyperparams=hyperparams,
        evaluation={"every": 0},
        logging={"console": "off", "tensorboard": False},
    )
    result = start_run(config)
    assert result.run_dir is not None
    return result.run_dir


@pytest.fixture(scope="module")
def on_policy(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("runs"), "ppo", num_steps=8)


@pytest.fixture(scope="module")
def off_policy(tmp_path_factory):
    small = {"learning_starts": 8, "batch_size": 4, "buffer_size": 64}
    return trained(tmp_path_factory.mktemp("runs"), "prioritized_dqn", **small)


def newest(run: Path) -> Path:
    return max((run / "checkpoints").glob("step_*"))


def changed(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for key in parents:
        tree = tree[int(key)] if isinstance(tree, list) else tree[key]
    tree[last] = value(tree[last]) if callable(value) else value  # a new key, where there is none


def refusal(folder: Path, group: str, path: str, value: Any) -> str:
    """What a resume says to the checkpoint with one value changed; the checkpoint is put back afterwards."""
    sound = read_checkpoint(folder)
    groups = copy.deepcopy(sound.groups)
    changed(groups[group], path, value)
    write_checkpoint(folder, groups, sound.info)
    try:
        with pytest.raises(CheckpointError, match="does not fit this run") as caught:
            resume_run(folder, total_timesteps=64)
    finally:
        write_checkpoint(folder, sound.groups, sound.info)
    return str(caught.value)


STATISTICS = "collector/statistics"
ON_POLICY = [
    ("global_step", "many"),
    ("global_step", -5),
    ("global_step", 2**200),
    ("previous_step", 10**6),
    ("timer/elapsed", float("nan")),
    ("callbacks/SaveCheckpoints/best", "high"),
    ("callbacks/SaveCheckpoints/saved_step", [1]),
    ("callbacks/RunLogger/written", {"../../../private": 0}),
    ("global_random/numpy/position", 10**9),
    ("global_random/numpy/name", "os.system"),
    ("collector/envs/obs", lambda obs: obs[:, :2]),
    ("collector/envs/obs", lambda obs: obs[:1]),
    ("collector/envs/obs", lambda obs: torch.from_numpy(obs)),
    ("collector/envs/awaiting_reset", lambda flags: flags.astype(np.int64)),
    ("collector/envs/awaiting_reset", lambda flags: np.zeros((3, 3), dtype=np.bool_)),
    ("collector/envs/envs/envs/0/return", "much"),
    ("collector/envs/envs/envs/0/done", 7),
    (f"{STATISTICS}/returns", ["a", "b"]),
    (f"{STATISTICS}/returns", {"a": 1}),
    (f"{STATISTICS}/lengths", [1.5]),
    (f"{STATISTICS}/episodes", 2**2000),
    (f"{STATISTICS}/running_returns", np.zeros(7)),
    (f"{STATISTICS}/running_lengths", np.zeros(2)),
]


@pytest.mark.parametrize(("path", "value"), ON_POLICY, ids=lambda value: value if isinstance(value, str) else "")
def test_a_hand_made_training_state_is_refused(path, value, on_policy):
    message = refusal(newest(on_policy), "runtime", path, value)
    assert len(message) < 1500
    assert path.split("/")[0] in message


OFF_POLICY = [
    ("runtime", "due", 10**15),
    ("algorithm", "targets/policy", {}),
    ("replay", "head/counts", lambda counts: counts + 10**15),
    ("replay", "head/counts", lambda counts: counts.astype(np.float64)),
    ("replay", "head/slots", 10**12),
    ("replay", "head/last_flags", lambda flags: flags + 9),
    ("replay", "head/pending_obs", lambda obs: obs[:, :1]),
    ("replay", "head/priorities/leaves", lambda leaves: leaves[:3]),
    ("replay", "head/priorities/leaves", lambda leaves: leaves * np.nan),
    ("replay", "head/priorities/max", "most"),
    ("replay", "rows", []),
]


@pytest.mark.parametrize(
    ("group", "path", "value"), OFF_POLICY, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_hand_made_replay_buffer_is_refused(group, path, value, off_policy):
    assert len(refusal(newest(off_policy), group, path, value)) < 1500


SEGMENT = [
    ("stop", lambda stop: stop + 10**12),
    ("stop", lambda stop: stop - 10**3),
    ("start", lambda start: start[:1]),
    ("obs", lambda obs: obs[:1]),
    ("obs", lambda obs: obs[:, :1]),
    ("actions", lambda actions: actions.double()),
    ("actions", lambda actions: actions + 10**6),
    ("actions", lambda actions: actions - 10),
    ("rewards", lambda rewards: rewards[:2]),
    ("flags", lambda flags: flags + 200),
    ("flags", lambda flags: flags * 0 + 1),
    ("final_obs", lambda obs: obs[:0].reshape(0, 4)[:0] if len(obs) else torch.zeros(3, 4)),
]


@pytest.mark.parametrize(("path", "value"), SEGMENT, ids=lambda value: value if isinstance(value, str) else "")
def test_hand_made_replayed_experience_is_refused(path, value, off_policy):
    segment = max((off_policy / "checkpoints" / "segments").glob("rows_*"))
    sound = read_checkpoint(segment)
    groups = copy.deepcopy(sound.groups)
    changed(groups["rows"], path, value)
    write_checkpoint(segment, groups, sound.info)
    try:
        with pytest.raises(CheckpointError, match="does not fit this run") as caught:
            resume_run(newest(off_policy), total_timesteps=64)
        assert len(str(caught.value)) < 1500
    finally:
        write_checkpoint(segment, sound.groups, sound.info)


SEGMENT_LISTS = [
    7,
    [{"name": "../../elsewhere", "start": [0], "stop": [1]}],
    [{"name": "rows_1_2/../../..", "start": [0], "stop": [1]}],
    [{"name": "rows_0_32", "start": [0], "stop": "all"}],
    [{"name": "rows_0_32", "start": [0, 2**80], "stop": [1, 1]}],
    [{"name": "rows_0_32", "start": [0, 0], "stop": [16, 16]}] * 100,
    ["x" * 10**6],
    lambda sound: [{**sound[0], "stop": [10**15, 16]}, *sound[1:]],
    lambda sound: [{**sound[0], "start": [0]}, *sound[1:]],
]


@pytest.mark.parametrize("listed", SEGMENT_LISTS, ids=range(len(SEGMENT_LISTS)))
def test_a_list_of_segments_names_segments_of_this_run_only(listed, off_policy):
    sound = read_checkpoint(newest(off_policy))
    listed = listed(sound.info["replay_segments"]) if callable(listed) else listed
    write_checkpoint(sound.path, sound.groups, {**sound.info, "replay_segments": listed})
    try:
        with pytest.raises(CheckpointError, match="replay segment") as caught:
            resume_run(sound.path, total_timesteps=64)
        assert len(str(caught.value)) < 1500
    finally:
        write_checkpoint(sound.path, sound.groups, sound.info)


def test_the_sound_checkpoints_resume(on_policy, off_policy):
    for run in (on_policy, off_policy):
        assert resume_run(run, total_timesteps=64).resume_grade == "exact"
