"""Proof of the resume promise: one run left alone, one killed with SIGKILL and resumed in new processes, compared bit by bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.experiment.checkpoint.replay_segments import saved_replay
from rl_training.experiment.checkpoint.snapshot import RESUME_IGNORES
from rl_training.experiment.checkpoint.store import Checkpoint, CheckpointStore
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.run.run_dir import CHECKPOINTS, EVALUATIONS, METADATA, read_lines
from rl_training.utils.errors import AxiomError
from rl_training.utils.trees import count_arrays, differing_paths

POLL_SECONDS = 0.01


@dataclass(frozen=True)
class VerifyReport:
    """The outcome of one proof."""

    identical: bool
    kills: int
    """How often the run was really killed before it ended."""
    kill_steps: tuple[int, ...]
    """The newest checkpoint's step at each kill."""
    grades: tuple[str, ...]
    """The resume grade of each resume."""
    arrays: int
    """How many tensors and arrays were compared."""
    differences: tuple[str, ...]
    """Paths in the state tree that differ."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}


def verify_resume(
    config: TrainConfig,
    folder: Path,
    *,
    kills: int = 1,
    rng: random.Random | None = None,
    modules: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda text: None,
) -> VerifyReport:
    """Trains `config` twice under `folder`, the second time killed `kills` times, and compares the final states."""
    begin, rng = time.monotonic(), rng or random.Random()
    config = replace(config, logging=replace(config.logging, console="off"))
    say("training once without interruption")
    whole, seconds = _train_whole(config, folder / "whole", modules)
    say(f"training again, killed {kills} time{'s' if kills != 1 else ''} at random moments")
    killed, kill_steps = _train_killed(config, folder / "killed", kills, seconds, rng, modules, say)

    expected, actual = _final_state(whole), _final_state(killed)
    differences = differing_paths(expected.groups, actual.groups, RESUME_IGNORES)
    differences += _differing_evaluations(whole, killed)
    resumes = _metadata(killed).get("resumes", [])
    return VerifyReport(
        identical=not differences,
        kills=len(kill_steps),
        kill_steps=tuple(kill_steps),
        grades=tuple(str(entry["grade"]) for entry in resumes),
        arrays=count_arrays(expected.groups),
        differences=tuple(differences),
        seconds=time.monotonic() - begin,
    )


def _train_whole(config: TrainConfig, folder: Path, modules: tuple[str, ...]) -> tuple[Path, float]:
    """(run directory, seconds between its first checkpoint and its end)."""
    process = _spawn_train(config, folder, modules)
    run_dir = _wait_for_first_checkpoint(process, folder)
    begin = time.monotonic()
    _finish(process)
    assert run_dir is not None, "a run that ends well has a checkpoint"
    return run_dir, time.monotonic() - begin


def _train_killed(
    config: TrainConfig,
    folder: Path,
    kills: int,
    seconds: float,
    rng: random.Random,
    modules: tuple[str, ...],
    say: Callable[[str], None],
) -> tuple[Path, list[int]]:
    process = _spawn_train(config, folder, modules)
    run_dir = _wait_for_first_checkpoint(process, folder)
    assert run_dir is not None
    kill_steps: list[int] = []
    resumes = 0
    while len(kill_steps) < kills:
        # Short enough that the run does not end before its last kill, on average.
        delay = rng.uniform(0.0, 1.5 * seconds / (kills + 1))
        try:
            process.wait(delay)
            break  # finished before the kill
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        step = CheckpointStore(run_dir / CHECKPOINTS, keep=1).steps()[-1]
        kill_steps.append(step)
        say(f"kill {len(kill_steps)} after {delay:.2f} s; newest checkpoint at step {step:,}")
        process = _spawn(["resume", str(run_dir), *_import_flags(modules)])
        resumes += 1
        _wait_for_resume(process, run_dir, resumes)
    _finish(process)
    return run_dir, kill_steps


def _spawn_train(config: TrainConfig, folder: Path, modules: tuple[str, ...]) -> subprocess.Popen[str]:
    folder.mkdir(parents=True)
    path = folder / "verify.yaml"
    path.write_text(replace(config, output_dir=str(folder / "runs")).to_yaml(), encoding="utf-8")
    return _spawn(["train", "--config", str(path), *_import_flags(modules)])


def _import_flags(modules: tuple[str, ...]) -> list[str]:
    return [flag for module in modules for flag in ("--import", module)]


def _spawn(arguments: list[str]) -> subprocess.Popen[str]:
    # A process group of its own, so that environment workers die with the run, as on a real power cut.
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for_first_checkpoint(process: subprocess.Popen[str], folder: Path) -> Path | None:
    """The run directory, as soon as there is something in it to resume from."""
    while True:
        ended = process.poll() is not None
        for pointer in (folder / "runs").glob(f"*/{CHECKPOINTS}/latest"):
            return pointer.parent.parent
        if ended:
            _finish(process)
            return None
        time.sleep(POLL_SECONDS)


def _wait_for_resume(process: subprocess.Popen[str], run_dir: Path, resumes: int) -> None:
    """Until the new process has restored the state, or has ended."""
    while process.poll() is None and len(_metadata(run_dir).get("resumes", [])) < resumes:
        time.sleep(POLL_SECONDS)


def _finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode != 0:
        raise AxiomError(f"a training process ended with exit code {process.returncode}:\n{errors.strip()}")


def _metadata(run_dir: Path) -> dict[str, Any]:
    from rl_training.experiment.run.metadata import RunMetadata

    return RunMetadata.load(run_dir).values if (run_dir / METADATA).exists() else {}


def _final_state(run_dir: Path) -> Checkpoint:
    checkpoint, _ = CheckpointStore(run_dir / CHECKPOINTS, keep=1).load_latest()
    if "replay" in checkpoint.groups:
        checkpoint.groups["replay"] = saved_replay(checkpoint)
    return checkpoint


def _differing_evaluations(whole: Path, killed: Path) -> list[str]:
    """The evaluations on the way must be the same ones, each once."""
    histories = [
        [(record["step"], record["returns"]) for record in read_lines(run / EVALUATIONS)] for run in (whole, killed)
    ]
    return [] if histories[0] == histories[1] else [EVALUATIONS]
