"""A tiny run, disturbed at one file-system call after the other: killed there, or told that the disk is full or broken.

    python tests/helpers/disk_torture.py FOLDER ALGO ACTION STRIDE OFFSET

Every STRIDE-th call from OFFSET on is disturbed in a run of its own, which is then resumed; its whole folder is compared with that
of a run that was left alone. Prints a summary as JSON. Python and torch start once: a process with one thread forks each run.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from rl_training.cli.main import main
from rl_training.experiment.proof.folders import differing_files
from rl_training.zoo import reference

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
ERRORS = {"enospc": errno.ENOSPC, "eio": errno.EIO, "erofs": errno.EROFS}
TAKES_SPACE = ("open", "write", "pwrite", "mkdir", "fsync", "ftruncate", "posix_fallocate", "rename", "replace")
"""The calls that a full disk refuses; removing something always works."""
SECONDS = 120
"""A run that takes longer hangs."""

COMMON: dict[str, Any] = {
    "execution": "eager",
    "policy": {"hidden_sizes": [8]},
    "logging": {"console": "plain", "every": 32},
    "checkpoint": {"every": 48, "keep": 2},
}
REPLAY = {"learning_starts": 24, "batch_size": 8, "buffer_size": 64}
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {
        "env_id": "CartPole-v1",
        "total_timesteps": 128,
        "num_envs": 2,
        "hyperparams": {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1},
        "env": {"normalize_observations": True, "normalize_rewards": True, "max_episode_steps": 20},
        "evaluation": {"every": 64, "episodes": 2, "num_envs": 2},
    },
    "rainbow": {
        "env_id": "CartPole-v1",
        "total_timesteps": 120,
        "num_envs": 2,
        "hyperparams": REPLAY,
        "env": {"max_episode_steps": 20},
        "evaluation": {"every": 60, "episodes": 2, "num_envs": 2},
    },
    "sac": {
        "env_id": "Pendulum-v1",
        "total_timesteps": 120,
        "num_envs": 1,
        "hyperparams": REPLAY,
        "env": {"max_episode_steps": 20},
        "evaluation": {"every": 60, "episodes": 1, "num_envs": 1},
    },
}


class Disturbance:
    """Counts the calls that change something below `root`, for a broken disk also those that open a file to read, and disturbs
    the `at`-th. `at` 0 only counts."""

    PATHS = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace")
    DESCRIPTORS = ("write", "pwrite", "fsync", "ftruncate", "posix_fallocate")

    def __init__(self, root: Path, action: str, at: int):
        self.root, self.action, self.at, self.count = f"{root}/", action, at, 0
        self.bypassed: list[str] = []
        self._real_open, self._real_write = os.open, os.write

    def install(self) -> None:
        sys.addaudithook(self._audit)
        os.open = self._wrapped("open", os.open, self._opens)
        for name in self.PATHS:
            # With dir_fd (as in rmtree) the name is relative to a folder, which is below the root in these runs.
            setattr(os, name, self._wrapped(name, getattr(os, name), lambda path, *_: self._below(path)))
        for name in self.DESCRIPTORS:
            setattr(os, name, self._wrapped(name, getattr(os, name), lambda descriptor, *_: self._is_ours(descriptor)))

    def _opens(self, path: Any, flags: int, *_: Any) -> bool:
        # A broken disk can refuse to read as well.
        return bool(flags & WRITES or self.action == "eio") and self._below(path)

    def _below(self, path: Any) -> bool:
        return not str(path).startswith("/") or str(path).startswith(self.root)

    def _is_ours(self, descriptor: int) -> bool:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink()).startswith(self.root)

    def _wrapped(self, name: str, real: Callable[..., Any], counts: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if counts(*args):
                self.count += 1
                if self.count == self.at or (self.count > self.at > 0 and self._still_refused()):
                    self._disturb(name, *args)
            return real(*args, **options)

        return call

    def _still_refused(self) -> bool:
        """A full disk stays full, and one that can only be read stays so; a broken block is met once."""
        return self.action in ("enospc", "erofs")

    def _disturb(self, name: str, *args: Any) -> None:
        if name == "write":  # half of it arrives
            self._real_write(args[0], memoryview(args[1])[: len(args[1]) // 2])
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action != "enospc" or name in TAKES_SPACE:
            raise OSError(ERRORS[self.action], os.strerror(ERRORS[self.action]), str(args[0]))

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Notes files of the run that are written around `os`, where nothing can be disturbed."""
        written = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        if written and str(args[0]).startswith(self.root):
            self.bypassed.append(str(args[0]))


class Torture:
    def __init__(self, folder: Path, algo: str):
        self.folder, self.algo = folder, algo
        folder.mkdir(parents=True)

    def command(self, arguments: list[str], root: Path, action: str = "kill", at: int = 0) -> dict[str, Any]:
        """Runs one command in a process of its own; what became of it."""
        log, notes = self.folder / "log.txt", self.folder / "notes.json"
        notes.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
                os.dup2(descriptor, 1)
                os.dup2(descriptor, 2)
                signal.alarm(SECONDS)
                disturbance = Disturbance(root, action, at)
                disturbance.install()
                code = main(arguments)
                notes.write_text(json.dumps({"calls": disturbance.count, "bypassed": disturbance.bypassed}))
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = json.loads(notes.read_text()) if notes.exists() else {"calls": 0, "bypassed": []}
        return {"status": status, "said": log.read_text(errors="replace"), **told}

    def warm_up(self) -> None:
        """Imports and reads whatever a run does on its way to the first step, so that the forked ones need not."""
        reference.shipped_results = functools.cache(reference.shipped_results)
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            assert main(self._train(self.folder / "warm")) == 0
        shutil.rmtree(self.folder / "warm")

    def train(self, root: Path, action: str = "kill", at: int = 0) -> dict[str, Any]:
        return self.command(self._train(root), root, action, at)

    def _train(self, root: Path) -> list[str]:
        config = {"algo": self.algo, **COMMON, **RUNS[self.algo], "output_dir": str(root)}
        path = self.folder / "config.yaml"
        path.write_text(json.dumps(config))
        return ["train", "--config", str(path)]

    def case(self, whole: Path, action: str, at: int) -> tuple[int, list[str]]:
        """(how the run ended, what is wrong) after a disturbance of call `at`."""
        root = self.folder / "case"
        shutil.rmtree(root, ignore_errors=True)
        outcomes = [self.train(root, action, at)]
        run_dirs = list(root.iterdir()) if root.exists() else []
        if run_dirs and (run_dirs[0] / "config.yaml").exists():
            if action == "kill":  # and once more, somewhere in the resume
                outcomes.append(self.command(["resume", str(run_dirs[0])], root, action, 1 + at * 37 % 60))
            outcomes.append(self.command(["resume", str(run_dirs[0])], root))
        wrong = [f"{outcome['status']}: {outcome['said'][-2000:]}" for outcome in outcomes if not _decent(outcome)]
        if len(outcomes) > 1:
            if outcomes[-1]["status"] != 0:
                wrong.append(f"the resume failed: {outcomes[-1]['said'][-2000:]}")
            else:
                wrong += [f"differs: {name}" for name in differing_files(whole, run_dirs[0])]
        return outcomes[0]["status"], wrong


def _decent(outcome: dict[str, Any]) -> bool:
    """It ended by our SIGKILL, or well, or with a message."""
    ended = outcome["status"] in (0, 1, 2, -signal.SIGKILL)
    return ended and "Traceback" not in outcome["said"] and not outcome["bypassed"]


def torture(folder: Path, algo: str, action: str, stride: int, offset: int) -> dict[str, Any]:
    runs = Torture(folder, algo)
    runs.warm_up()
    undisturbed = runs.train(folder / "whole", action)
    assert undisturbed["status"] == 0 and not undisturbed["bypassed"], undisturbed
    (whole,) = (folder / "whole").iterdir()
    calls, ended, wrong = range(1 + offset % stride, undisturbed["calls"] + 1, stride), Counter[int](), {}
    for at in calls:
        status, found = runs.case(whole, action, at)
        ended[status] += 1
        if found:
            wrong[at] = found
            print(f"call {at}: {found}", file=sys.stderr, flush=True)
    return {"calls": undisturbed["calls"], "cases": len(calls), "ended": ended, "wrong": wrong}


if __name__ == "__main__":
    print(json.dumps(torture(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
