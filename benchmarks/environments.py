"""A throw-away virtual environment for each peer, under `.bench/`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".bench"
CONSTRAINTS = ROOT / "constraints.txt"

MUJOCO = "gymnasium[mujoco]"
PACKAGES: dict[str, tuple[str, ...]] = {
    "sb3": ("stable-baselines3>=2.3", MUJOCO),
    "tianshou": ("tianshou>=2", MUJOCO),
    "torchrl": ("torchrl>=0.6", "tensorboard", MUJOCO),
    "d3rlpy": ("d3rlpy>=2", MUJOCO),
    "sample_factory": ("sample-factory>=2", MUJOCO),
    "rllib": ("ray[rllib]>=2.40", MUJOCO),
    "sb3_contrib": ("sb3-contrib>=2.3", "stable-baselines3>=2.3", "--editable", str(ROOT)),
    "defaults": (
        *(
            "stable-baselines3>=2.3",
            "minigrid>=3",
            "flappy-bird-gymnasium",
            "highway-env",
            "--editable",
            f"{ROOT}[mujoco]",
        ),
    ),
}
"""What is installed for each peer, named as its script in `benchmarks/peers/`; `defaults` is for `benchmarks.defaults`,
`sb3_contrib` for `benchmarks.masks`. The lower
bounds keep pip from settling for a release of years ago."""


@dataclass(frozen=True)
class Installed:
    """An environment that can be used, or why there is none."""

    python: Path | None
    reason: str | None = None


def ours() -> Installed:
    """The environment that this process runs in."""
    return Installed(Path(sys.executable))


def install(peer: str, *, again: bool = False) -> Installed:
    """The peer's environment, made on first use. A failure is remembered; `again` starts afresh."""
    folder, record = FOLDER / peer, FOLDER / f"{peer}.json"
    if again:
        shutil.rmtree(folder, ignore_errors=True)
        record.unlink(missing_ok=True)
    if not record.exists():
        print(f"installing {', '.join(PACKAGES[peer])} into {folder.relative_to(ROOT)} ...", flush=True)
        record.parent.mkdir(exist_ok=True)
        reason = _install(folder, PACKAGES[peer], FOLDER / f"{peer}.log")
        record.write_text(json.dumps({"reason": reason}))
    reason = json.loads(record.read_text())["reason"]
    return Installed(None, reason) if reason else Installed(folder / "bin" / "python")


def _install(folder: Path, packages: tuple[str, ...], log: Path) -> str | None:
    """None, or the reason why the packages cannot be had."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    constraints = FOLDER / "torch.txt"
    constraints.write_text(torch_pin(CONSTRAINTS.read_text()) + "\n")
    command = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--constraint", str(constraints), "torch", *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    return None if done.returncode == 0 else install_failure(done.stderr)


def torch_pin(constraints: str) -> str:
    """The line of a constraints file that pins torch: unpinned, every peer would fetch gigabytes of CUDA."""
    for line in constraints.splitlines():
        if re.fullmatch(r"torch==\S+", line.strip()):
            return line.strip()
    raise ValueError("constraints.txt does not pin torch")


def install_failure(stderr: str) -> str:
    """The most telling line of what pip wrote: its first error, with what conflicts if it says so."""
    lines = [line.strip() for line in stderr.splitlines()]
    errors = [line for line in lines if line.lower().startswith("error")]
    depends = [line for line in lines if " depends on " in line]
    return "; ".join([*(errors[:1] or lines[-1:]), *depends[:2]])[:300] or "pip failed without a message"


def versions(python: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Versions of the named distributions in an environment; those not installed are left out."""
    code = (
        "import json, sys\nfrom importlib import metadata\nfound = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run([str(python), "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))
