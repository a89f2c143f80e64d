"""A benchmark stopped by Ctrl-C, killed, and started again ends with the numbers of one that was left alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_training.experiment.checkpoint.store import CheckpointStore
from rl_training.experiment.run.run_dir import METADATA
from rl_training.zoo.benchmark import run_benchmark
from rl_training.zoo.manifest import load_manifest

TOTAL = 8_000
MANIFEST = f"""
name: killed
presets: [ppo/cartpole]
seeds: [3]
episodes: 4
overrides:
  total_timesteps: {TOTAL}
  device: cpu
  evaluation: {{every: 4_000, episodes: 2}}
  checkpoint: {{every: 1_000}}
"""


def _start(manifest: Path, output: Path) -> subprocess.Popen[str]:
    command = ["zoo", "benchmark", str(manifest), "--jobs=1", f"--output={output}"]
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for_progress(process: subprocess.Popen[str], output: Path, beyond: int) -> None:
    """Until the run has a checkpoint beyond a step."""
    while process.poll() is None:
        for folder in output.glob("*/*__seed3__*/checkpoints"):
            if (steps := CheckpointStore(folder, keep=1).steps()) and steps[-1] > beyond:
                return
        time.sleep(0.02)
    raise AssertionError(process.communicate())


def _metadata(output: Path) -> dict:
    (path,) = output.glob(f"*/*__seed3__*/{METADATA}")
    return json.loads(path.read_text())


def _numbers(record: dict) -> list:
    """All that must be equal: everything measured but the time and how often it was resumed."""
    return [[run[key] for key in ("seed", "steps", "last", "best", "curve")] for run in record["runs"]]


@pytest.mark.slow
def test_ctrl_c_then_kill_then_the_same_numbers(tmp_path):
    manifest, output = tmp_path / "killed.yaml", tmp_path / "out"
    manifest.write_text(MANIFEST)

    process = _start(manifest, output)
    _wait_for_progress(process, output, beyond=0)
    os.killpg(process.pid, signal.SIGINT)  # a terminal's Ctrl-C reaches the training process too
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.endswith(f"axiomrl zoo benchmark {manifest} --output {output} --jobs 1\n") and "Go on with: " in out
    interrupted = _metadata(output)
    assert interrupted["status"] == "interrupted" and not (output / "results").exists()

    process = _start(manifest, output)
    _wait_for_progress(process, output, beyond=interrupted["latest_metrics"]["global_step"])
    process.kill()  # the training process is not told: it must notice by itself
    process.wait()

    process = _start(manifest, output)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err.startswith("ppo/cartpole seed 3: continued\nppo/cartpole seed 3: done, last ")
    record = json.loads((output / "results" / "ppo_cartpole.json").read_text())
    assert [(run["resume_grades"], run["seconds"]) for run in record["runs"]] == [(["exact", "exact"], None)]

    whole = run_benchmark(load_manifest(str(manifest)), tmp_path / "whole")
    assert whole.exit_code == 0 and "resume_grades" not in whole.records[0]["runs"][0]
    assert _numbers(record) == _numbers(whole.records[0])
