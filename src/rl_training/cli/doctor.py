"""`axiomrl doctor`: what is installed, and what is wrong with its fix. Never imports torch."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rl_training.cli.options import Flag, Group, JsonOption, print_json
from rl_training.utils.system import cpu_name
from rl_training.version import __version__

# Extra -> the module that shows it is installed.
EXTRAS = {"mujoco": "mujoco", "box2d": "Box2D", "atari": "ale_py", "video": "av", "dev": "pytest"}
REQUIRED = ("torch", "gymnasium", "numpy", "pyyaml", "tyro", "rich", "tensorboard", "safetensors")
MIN_SHARED_MEMORY = 64 * 2**20
GL_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
"""What MuJoCo's environments draw with where there is no screen: the value of MUJOCO_GL, and its library."""
_DRAW = "import mujoco as m; d = m.MjModel.from_xml_string('<mujoco/>'); m.Renderer(d, 8, 8).render()"


@dataclass
class Command:
    """Show what is installed here, and problems with their fix. Exit code 0 when training can work."""

    output: Annotated[JsonOption, Group]
    gl: Flag = False
    """Also draw a picture with each of MuJoCo's GL backends, which takes seconds."""

    def run(self) -> int:
        facts = gather_facts()
        if self.gl:
            facts |= {f"gl.{backend}": _draws(backend) for backend in GL_LIBRARIES}
        problems = list(find_problems(facts))
        fatal = any(problem["fatal"] for problem in problems)
        status = "cannot train" if fatal else "ok"
        if self.output.json:
            print_json({**facts, "problems": problems, "status": status})
        else:
            for key, value in facts.items():
                print(f"{key}: {_text(value)}")
            for problem in problems:
                print(f"problem: {problem['problem']} (fix: {problem['fix']})")
            print(f"status: {status}")
        return 1 if fatal else 0


def gather_facts() -> dict[str, Any]:
    """Everything the command prints, by key; keys are stable."""
    facts: dict[str, Any] = {
        "axiomrl": __version__,
        "python": platform.python_version(),
        "python_executable": sys.executable,
        "os": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "memory_gib": _memory_gib(),
    }
    facts |= {package: _version(package) for package in REQUIRED}
    facts |= {
        "cuda": _torch_cuda(),
        "gpu": _gpus(),
        **{f"extra.{extra}": importlib.util.find_spec(module) is not None for extra, module in EXTRAS.items()},
        "gl": [backend for backend, library in GL_LIBRARIES.items() if _loads(library)],
        "gl_chosen": os.environ.get("MUJOCO_GL"),
        "shared_memory_mib": _shared_memory_mib(),
        "git": shutil.which("git") is not None,
    }
    return facts


def find_problems(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What is wrong, how to mend it, and whether training is impossible because of it."""
    if sys.version_info < (3, 11):  # noqa: UP036 - that is what is being checked
        yield _problem(f"Python {facts['python']} is too old", "use Python 3.11 or newer", fatal=True)
    for package in REQUIRED:
        if facts[package] is None:
            yield _problem(f"{package} is not installed", f'pip install "{package}"', fatal=True)
    if facts["gpu"] and facts["torch"] and facts["cuda"] is None:
        yield _problem(
            "there is a GPU, but this torch is built for the CPU only",
            "install a CUDA build of torch (see pytorch.org) to use device: cuda",
        )
    shared = facts["shared_memory_mib"]
    if shared is not None and shared * 2**20 < MIN_SHARED_MEMORY:
        yield _problem(
            f"shared memory is only {shared} MiB, so env.backend=async may fail",
            "use env.backend=sync, or in a container --shm-size=1g",
        )
    if facts["extra.mujoco"] and not (facts["gl"] or os.environ.get("DISPLAY")) and sys.platform == "linux":
        yield _problem(
            "MuJoCo's environments cannot be drawn here: there is neither a screen nor a GL library for pictures",
            "apt-get install libegl1 and set MUJOCO_GL=egl; only videos and pixels need it",
        )
    tried = {backend: facts[f"gl.{backend}"] for backend in GL_LIBRARIES if f"gl.{backend}" in facts}
    if tried and facts["extra.mujoco"] and True not in tried.values():
        reasons = "; ".join(f"{backend}: {why}" for backend, why in tried.items())
        yield _problem(f"no GL backend draws ({reasons})", "apt-get install libegl1 and set MUJOCO_GL=egl")
    if not _writable(Path.cwd()):
        yield _problem("the current folder cannot be written", "use --output-dir with a folder that can")


def _problem(problem: str, fix: str, *, fatal: bool = False) -> dict[str, Any]:
    return {"problem": problem, "fix": fix, "fatal": fatal}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """The CUDA version torch was built for, read from its version file: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=]*=\s*'([^']+)'", text, re.MULTILINE)
    return match[1] if match else None


def _gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in result.stdout.splitlines() if line.strip()] if result.returncode == 0 else []


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _draws(backend: str) -> bool | str:
    """Whether a picture comes of it, in a process of its own; otherwise why not."""
    environment = {**os.environ, "MUJOCO_GL": backend}
    command = [sys.executable, "-c", _DRAW]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return True if done.returncode == 0 else (lines[-1] if lines else f"exit code {done.returncode}")[:200]


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _shared_memory_mib() -> int | None:
    try:
        return shutil.disk_usage("/dev/shm").total // 2**20
    except OSError:
        return None


def _writable(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value) if value else "none"
    return str(value)
