"""One run, one writer, and readers that change nothing."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training import PPO, load_agent
from rl_training.cli.main import main
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.proof.folders import differing_files
from rl_training.experiment.run.lock import LOCK, RunLock
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.utils.errors import UserError


def config(folder: Path, **changes) -> TrainConfig:
    settings = {
        "env_id": "CartPole-v1",
        "total_timesteps": 128,
        "num_envs": 2,
        "output_dir": str(folder),
        "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
        "evaluation": {"every": 64, "episodes": 2},
        "checkpoint": {"every": 32, "keep": 2},
        "logging": {"console": "off", "tensorboard": False},
    }
    return TrainConfig(**{**settings, **changes})


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    result = start_run(config(tmp_path_factory.mktemp("runs")))
    assert result.run_dir is not None
    return result.run_dir


def everything(folder: Path) -> dict[str, tuple[bytes | None, int]]:
    """Name, content and time of every file and folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
    }


HOLD = """
import sys
from pathlib import Path
from rl_training.experiment.proof.folders import differing_files
from rl_training.experiment.run.lock import RunLock

with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(run_dir):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_writer_gets_one_line_that_names_host_and_process_and_readers_do_not_wait(run_dir, holder, capsys):
    before = everything(run_dir)
    assert main(["resume", str(run_dir)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"is being trained by process {holder.pid} on {socket.gethostname()}" in error
    assert main(["eval", str(run_dir), "--episodes", "1"]) == 0
    assert main(["report", str(run_dir)]) == 0
    assert everything(run_dir) == before


def test_a_killed_writer_blocks_nobody(run_dir, holder):
    holder.kill()
    holder.wait()
    assert (run_dir / LOCK).read_text() != "", "what it wrote is still there"
    with RunLock(run_dir):
        assert json.loads((run_dir / LOCK).read_text())["process"] == os.getpid()
    assert (run_dir / LOCK).read_bytes() == b""


def test_a_worker_that_outlives_a_killed_run_does_not_hold_its_lock(run_dir):
    lock = RunLock(run_dir)
    lock.acquire()
    (end, hold), (started, start) = os.pipe(), os.pipe()
    worker = os.fork()
    if worker == 0:
        os.close(hold)
        os.write(start, b"x")
        os.read(end, 1)  # until the test is done
        os._exit(0)
    os.read(started, 1)
    lock._forget()  # as the death of this process would, without a word in the file
    with RunLock(run_dir):
        pass
    os.close(hold)
    os.waitpid(worker, 0)


def test_one_process_cannot_train_a_run_twice_either(run_dir):
    with RunLock(run_dir), pytest.raises(UserError, match=f"process {os.getpid()}"):
        resume_run(run_dir)


@pytest.mark.parametrize("text", ["", "nonsense", '{"host": "\\u001b[31mx", "process": 3}', '{"host": 1}', "\0" * 2000])
def test_what_stands_in_the_lock_file_cannot_do_harm(text, tmp_path):
    with RunLock(tmp_path):
        (tmp_path / LOCK).write_text(text)
        with pytest.raises(UserError, match="is being trained by") as caught:
            RunLock(tmp_path).acquire()
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 500


def test_an_agent_does_not_go_on_where_another_process_has_continued_its_run(tmp_path):
    agent = PPO(config(tmp_path))
    result = agent.learn(64)
    agent.learn(96)
    resume_run(result.run_dir, total_timesteps=128)  # between two calls nobody holds the lock
    with pytest.raises(UserError, match="another process has continued"):
        agent.learn(256)


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(run_dir, tmp_path, capsys):
    copy = tmp_path / run_dir.name
    (copy / "checkpoints" / ".tmp-step_000000000").mkdir(parents=True)
    shutil.copy(run_dir / "config.yaml", copy)
    assert main(["resume", str(copy)]) == 0
    printed = capsys.readouterr()
    assert "began again; now at 128 steps" in printed.out and "no checkpoint yet" in printed.err
    (copy / "tensorboard").mkdir()
    (copy / "videos").mkdir()
    assert differing_files(run_dir, copy) == []


def make_unwritable(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def test_readers_change_nothing_whatever_lies_in_the_folder(run_dir, tmp_path, capsys):
    copy = tmp_path / run_dir.name
    shutil.copytree(run_dir, copy)
    checkpoints = copy / "checkpoints"
    # What a writer in another container, whose processes cannot be seen from here, may have open.
    for name in (".tmp-step_000000999", ".del-step_000000001", ".tmp-step_000000999-4194305", ".old-step_000000002-7"):
        shutil.copytree(checkpoints / "step_000000128", checkpoints / name)
    (checkpoints / ".tmp-latest-4194305").write_text("step_000000999\n")
    (copy / ".tmp-metadata.json-4194305").write_text("{")
    (checkpoints / "best").write_text("step_000000128\n")  # a newer best than the reader knows
    newest = checkpoints / "step_000000128" / "state.json"
    newest.write_bytes(newest.read_bytes()[:-1])  # damaged, or still being copied
    make_unwritable(copy)
    before = everything(copy)
    assert main(["eval", str(copy), "--episodes", "1"]) == 0
    assert "state.json" in capsys.readouterr().err
    assert main(["eval", str(checkpoints / "latest"), "--episodes", "1"]) in (0, 1)
    assert main(["eval", str(copy), "--best", "--episodes", "1"]) in (0, 1)
    assert main(["report", str(copy)]) == 0
    assert main(["watch", str(copy), "--once"]) == 0
    assert main(["leaderboard", str(copy.parent)]) in (0, 1, 2)
    with pytest.warns(UserWarning, match="passed over"):
        load_agent(copy)
    assert everything(copy) == before
