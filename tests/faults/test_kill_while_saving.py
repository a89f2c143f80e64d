"""SIGKILL in the middle of writing a checkpoint, at every file boundary: the resumed run still ends bit for bit the same.

A driver process with one thread forks a trainer for each boundary, which is much faster than starting Python for each.
"""

import json
import os
import subprocess
import sys

import pytest

DRIVER = """
import json, os, sys, tempfile
from pathlib import Path
from rl_training.experiment.checkpoint.store import CheckpointStore
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.runner import resume_run, start_run
from rl_training.experiment.checkpoint.snapshot import RESUME_IGNORES
from rl_training.utils import failpoints
from rl_training.utils.trees import differing_paths


def config(folder):
    return TrainConfig(
        env_id="CartPole-v1",
        total_timesteps=256,
        num_envs=2,
        output_dir=folder,
        hyperparams={"num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
        env={"normalize_observations": True, "normalize_rewards": True},
        evaluation={"every": 64, "episodes": 2},
        checkpoint={"every": 32, "keep": 2},
        logging={"console": "off", "tensorboard": False},
    )


def in_child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def final(run_dir):
    checkpoint, messages = CheckpointStore(run_dir / "checkpoints", keep=2).load_latest()
    assert messages == [], messages
    return checkpoint.groups


def run_of(folder):
    (run_dir,) = folder.iterdir()
    return run_dir


root = Path(sys.argv[1])
in_child(lambda: start_run(config(root / "whole")))
whole = final(run_of(root / "whole"))
outcomes = []
for boundary in range(1, int(sys.argv[2]) + 1):
    folder = root / f"boundary{boundary}"

    def killed():
        os.environ[failpoints.ENV_VAR] = f"checkpoint.write@{boundary}=kill"
        start_run(config(folder))

    status = in_child(killed)
    run_dir = run_of(folder)
    steps = CheckpointStore(run_dir / "checkpoints", keep=2).steps()
    differences = None
    if steps:
        assert in_child(lambda: resume_run(run_dir)) == 0
        differences = differing_paths(whole, final(run_dir), RESUME_IGNORES)
    outcomes.append({"boundary": boundary, "signal": os.WTERMSIG(status), "steps": steps, "differences": differences})
print(json.dumps(outcomes))
"""


# A save passes some fifteen boundaries; by the fourth one the run rotates old checkpoints away and replaces the best.
@pytest.mark.parametrize("boundaries", [32, pytest.param(80, marks=pytest.mark.torture)])
def test_kill_at_every_boundary(boundaries, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), str(boundaries)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout.splitlines()[-1])
    assert len(outcomes) == boundaries
    assert all(outcome["signal"] == 9 for outcome in outcomes)
    resumed = [outcome for outcome in outcomes if outcome["steps"]]
    # Only kills during the very first save leave nothing to resume from.
    assert len(resumed) >= boundaries - 10
    assert [outcome for outcome in resumed if outcome["differences"]] == []
    assert len({tuple(outcome["steps"]) for outcome in resumed}) >= 2, "the kills fell into several saves"
