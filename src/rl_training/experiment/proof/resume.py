"""Proof of the resume promise: one run left alone, one killed with SIGKILL and resumed in new processes, compared bit by bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_training.experiment.checkpoint.replay_segments import saved_replay
from rl_training.experiment.checkpoint.store import Checkpoint, CheckpointStore
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.experiment.proof.folders import differing_files
from rl_training.experiment.run.run_dir import CHECKPOINTS, METADATA
from rl_training.utils import failpoints
from rl_training.utils.errors import AxiomError
from rl_training.utils.trees import count_arrays


@dataclass(frozen=True)
class VerifyReport:
    """The outcome of one proof."""

    identical: bool
    asked: int
    """How often the run was to be killed."""
    kills: int
    """How often it was killed before it ended."""
    kill_steps: tuple[int, ...]
    """The newest checkpoint's step at each kill."""
    grades: tuple[str, ...]
    """The resume grade of each resume."""
    arrays: int
    """How many tensors and arrays were compared."""
    differences: tuple[str, ...]
    """What differs between the two run folders: file, and path in its content."""
    seconds: float

    @property
    def proved(self) -> bool:
        """Whether the run was killed as often as asked, and ended the same: fewer kills prove less than was asked for."""
        return self.identical and self.kills == self.asked

    def to_dict(self) -> dict[str, Any]:
        return {"proved": self.proved} | {
            name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()
        }


def verify_resume(
    config: TrainConfig,
    folder: Path,
    *,
    kills: int = 1,
    rng: random.Random | None = None,
    modules: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda text: None,
) -> VerifyReport:
    """Trains `config` twice under `folder`, the second time killed `kills` times, and compares the two run folders.

    Kills fall into iterations that are chosen at random, so their number does not depend on how fast the machine is.
    """
    begin, rng = time.monotonic(), rng or random.Random()
    config = replace(config, logging=replace(config.logging, console="off"))
    say("training once without interruption")
    whole = _train_whole(config, folder / "whole", modules)
    say(f"training again, killed {kills} time{'s' if kills != 1 else ''} at random moments")
    expected = _final_state(whole)
    runtime = expected.groups["runtime"]
    length = Length(runtime["iterations"], runtime["timer"]["elapsed"] / max(runtime["iterations"], 1))
    killed, kill_steps = _train_killed(config, folder / "killed", kills, length, rng, modules, say)

    differences = differing_files(whole, killed)
    resumes = _metadata(killed).get("resumes", [])
    return VerifyReport(
        identical=not differences,
        asked=kills,
        kills=len(kill_steps),
        kill_steps=tuple(kill_steps),
        grades=tuple(str(entry["grade"]) for entry in resumes),
        arrays=count_arrays(expected.groups),
        differences=tuple(differences),
        seconds=time.monotonic() - begin,
    )


@dataclass(frozen=True)
class Length:
    """How long the whole run was."""

    iterations: int
    seconds: float
    """Of one iteration, on average."""


def _train_whole(config: TrainConfig, folder: Path, modules: tuple[str, ...]) -> Path:
    _finish(_spawn_train(config, folder, modules))
    return _run_in(folder)


def _train_killed(
    config: TrainConfig,
    folder: Path,
    kills: int,
    length: Length,
    rng: random.Random,
    modules: tuple[str, ...],
    say: Callable[[str], None],
) -> tuple[Path, list[int]]:
    kill_steps: list[int] = []
    resume = ["resume", "", *_import_flags(modules)]
    done = 0
    while len(kill_steps) < kills and (left := length.iterations - done) > 0:
        # Early enough that the other kills find iterations too. It stops before the one that was chosen, so it cannot be too fast.
        chosen = rng.randint(1, max(1, (left - 2) // (kills - len(kill_steps))))
        stop = {failpoints.ENV_VAR: f"trainer.iteration@{chosen}=stop"}
        process = _spawn(resume, stop) if kill_steps else _spawn_train(config, folder, modules, stop)
        if not _stopped(process):
            _finish(process)
            return _run_in(folder), kill_steps
        delay = rng.uniform(0.0, length.seconds) if left - chosen > 5 else 0.0  # near the end, at once
        process.send_signal(signal.SIGCONT if delay else 0)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:  # it was faster than on average, and has ended
            _finish(process)
            return _run_in(folder), kill_steps
        process.communicate()
        run_dir = _run_in(folder)
        resume[1] = str(run_dir)
        store = CheckpointStore(run_dir / CHECKPOINTS, keep=1)
        checkpoint, _ = store.load_latest(["runtime"])
        done = checkpoint.groups["runtime"]["iterations"]
        kill_steps.append(checkpoint.info["step"])
        say(f"kill {len(kill_steps)} after {chosen} iterations; newest checkpoint at step {checkpoint.info['step']:,}")
    _finish(_spawn(resume) if kill_steps else _spawn_train(config, folder, modules))
    return _run_in(folder), kill_steps


def _run_in(folder: Path) -> Path:
    (run_dir,) = (folder / "runs").iterdir()
    return run_dir


def _stopped(process: subprocess.Popen[str]) -> bool:
    """Waits until the process has stopped itself, or has ended."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return True
    process.returncode = os.waitstatus_to_exitcode(status)  # nobody else can ask for it any more
    return False


def _spawn_train(
    config: TrainConfig, folder: Path, modules: tuple[str, ...], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "verify.yaml"
    path.write_text(replace(config, output_dir=str(folder / "runs")).to_yaml(), encoding="utf-8")
    return _spawn(["train", "--config", str(path), *_import_flags(modules)], environment)


def _import_flags(modules: tuple[str, ...]) -> list[str]:
    return [flag for module in modules for flag in ("--import", module)]


def _spawn(arguments: list[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    # A process group of its own, so that environment workers die with the run, as on a real power cut.
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )


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
