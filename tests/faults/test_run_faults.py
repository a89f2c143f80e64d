"""What a run does when the world misbehaves: signals, a full disk, NaN, folders that cannot be written."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_training import PPO
from rl_training.experiment.checkpoint.store import CheckpointStore
from rl_training.runtime.callbacks import Callback
from rl_training.utils import failpoints
from rl_training.utils.errors import WriteError

SMALL = [
    "--total-timesteps=10000000",
    "--num-envs=2",
    "--set=hyperparams.num_steps=32",
    "--set=checkpoint.every=64",
    "--set=evaluation.every=0",
    "--set=logging.tensorboard=false",
]


def _start(folder, *arguments, **environment):
    given = {argument.rpartition("=")[0] for argument in arguments}
    small = [argument for argument in SMALL if argument.rpartition("=")[0] not in given]
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training.cli", "train", *small, f"--output-dir={folder}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    )


def _wait_for_checkpoints(process, folder: Path, count: int = 3) -> Path:
    while process.poll() is None:
        for run_dir in folder.glob("*"):
            steps = CheckpointStore(run_dir / "checkpoints", keep=1).steps()
            if steps and steps[-1] >= 64 * count:
                return run_dir
        time.sleep(0.02)
    raise AssertionError(process.communicate())


@pytest.mark.parametrize(
    ("number", "code", "group"),
    [
        (signal.SIGTERM, 143, False),
        (signal.SIGINT, 130, False),
        (signal.SIGINT, 130, True),
        (signal.SIGHUP, 129, True),
    ],
    ids=["sigterm", "ctrl-c", "ctrl-c-with-workers", "sighup-with-workers"],
)
def test_signal_saves_and_names_the_resume_command(number, code, group, tmp_path):
    process = _start(tmp_path, *(["--set=env.backend=async"] if group else []))
    run_dir = _wait_for_checkpoints(process, tmp_path)
    if group:
        os.killpg(process.pid, number)  # a terminal's Ctrl-C reaches the environment workers too
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert f"axiomrl resume {run_dir}" in out
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["status"] == "interrupted"
    step = metadata["latest_metrics"]["global_step"]
    assert CheckpointStore(run_dir / "checkpoints", keep=1).steps()[-1] == step
    assert "Traceback" not in err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"])
def test_a_signal_to_the_group_while_the_learning_process_starts(number, code, tmp_path):
    process = _start(tmp_path, "--set=overlap=true")
    run_dir = _wait_for_checkpoints(process, tmp_path, 0)  # the process that learns is importing torch now
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["status"] == "interrupted"
    assert CheckpointStore(run_dir / "checkpoints", keep=1).steps()[-1] == metadata["latest_metrics"]["global_step"]
    assert f"axiomrl resume {run_dir}" in out and "Traceback" not in err


def test_under_nohup_a_lost_terminal_does_not_end_the_run(tmp_path):
    # Started with SIGHUP ignored, as by nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = _start(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    run_dir = _wait_for_checkpoints(process, tmp_path)
    process.send_signal(signal.SIGHUP)
    reached = CheckpointStore(run_dir / "checkpoints", keep=1).steps()[-1]
    _wait_for_checkpoints(process, tmp_path, reached // 64 + 10)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143


def test_a_console_whose_reader_has_left_does_not_end_the_run(tmp_path):
    process = _start(tmp_path, "--set=logging.every=0")
    assert process.stdout is not None and process.stderr is not None
    process.stderr.close()
    process.stdout.close()
    process.stderr = process.stdout = None
    run_dir = _wait_for_checkpoints(process, tmp_path, 50)
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=60)
    assert json.loads((run_dir / "metadata.json").read_text())["status"] == "interrupted"


SLOW_ENV = """
import os
import pathlib
import gymnasium as gym


def make():
    env = gym.make("CartPole-v1")
    step = env.step

    def marked(action):
        pathlib.Path(os.environ["MARKER"]).touch()
        return step(action)

    env.step = marked
    return env


gym.register("Marked-v0", entry_point=make)
"""


def test_second_ctrl_c_leaves_at_once(tmp_path):
    (tmp_path / "slow_env.py").write_text(SLOW_ENV)
    marker = tmp_path / "stepping"
    process = _start(
        tmp_path / "runs",
        "--set=hyperparams.num_steps=1000000",  # one iteration lasts minutes, and the first signal waits for its end
        "--import=slow_env",
        "--set=env_id=Marked-v0",
        PYTHONPATH=os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
        MARKER=str(marker),
    )

    def wait_for_steps(count):
        for _ in range(count):
            marker.unlink(missing_ok=True)
            while not marker.exists():
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)

    wait_for_steps(1)
    process.send_signal(signal.SIGINT)
    wait_for_steps(2)  # a whole step later it has been answered; two signals that wait for an answer would be one
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped at once" in err


def test_disk_full_is_reported_and_the_last_good_checkpoint_stays(tmp_path):
    process = _start(tmp_path, **{failpoints.ENV_VAR: "checkpoint.write@40=enospc"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "disk full" in err and "Traceback" not in err
    (run_dir,) = tmp_path.iterdir()
    checkpoint, messages = CheckpointStore(run_dir / "checkpoints", keep=1).load_latest()
    assert messages == []
    assert checkpoint.info["step"] >= 64
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["status"] == "failed" and "disk full" in metadata["stop_reason"]


def test_a_disk_without_room_for_a_new_file_still_takes_the_last_word(tmp_path, monkeypatch):
    def full(path, flags, *args, **options):
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, flags, *args, **options)

    class FillTheDisk(Callback):
        def on_iteration_end(self, trainer) -> None:
            monkeypatch.setattr(os, "open", full)

    real = os.open
    settings = {"num_steps": 32, "checkpoint": {"every": 64}, "evaluation": {"every": 0}, "num_envs": 2}
    agent = PPO("CartPole-v1", output_dir=str(tmp_path), logging={"console": "off"}, **settings)
    with pytest.raises(WriteError, match="disk full"):
        agent.learn(1_000, callbacks=[FillTheDisk()])
    (run_dir,) = tmp_path.iterdir()
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["status"] == "failed" and "disk full" in metadata["stop_reason"]


NAN_ENV = """
import gymnasium as gym
import numpy as np


class NanAfter(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        reward = 1e38 if self.steps > 100 else 1.0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), reward, False, False, {}


gym.register("NanAfter-v0", entry_point=NanAfter)
"""


def test_nan_loss_stops_before_the_step_with_the_metric_named_and_state_saved(tmp_path):
    (tmp_path / "nan_env.py").write_text(NAN_ENV)
    process = _start(
        tmp_path / "runs",
        "--import=nan_env",
        "--set=env_id=NanAfter-v0",
        PYTHONPATH=os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "value_loss" in err and "NaN" in err and "Traceback" not in err
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert json.loads((run_dir / "metadata.json").read_text())["status"] == "failed"
    from rl_training.experiment.checkpoint.store import read_checkpoint

    crash = read_checkpoint(run_dir / "crash")
    assert "value_loss" in crash.info["error"]
    assert all(bool(weight.isfinite().all()) for weight in crash.groups["policy"]["weights"].values())


@pytest.mark.parametrize("place", ["a-file/runs", "/proc/nowhere"])
def test_folder_that_cannot_be_written_is_one_line_and_exit_2(place, tmp_path):
    (tmp_path / "a-file").write_text("")
    process = _start(tmp_path / place)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.count("\n") == 1 and err.startswith("error: cannot write to the output folder")
    assert out == ""
