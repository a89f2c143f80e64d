"""Environments from other packages through the command line: trained, killed, resumed, reported, and proved.

    python scripts/check_environments.py                     # all that are installed here
    python scripts/check_environments.py Blackjack-v1 ...    # these
    python scripts/check_environments.py --write             # into results/environments/third_party.json
    python scripts/check_environments.py --table             # only the table of docs/environments.md, from that file

Packages that are not installed are skipped and keep their old entry in the file. Some cannot be installed together, because they
need different versions of MuJoCo: run it once in each virtual environment.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "environments" / "third_party.json"
PAGE = HERE.parent / "docs" / "environments.md"
BEGIN, END = "<!-- scripts/check_environments.py writes this table -->", "<!-- end of the table -->"
SHORT = (
    "--num-envs 2 --total-timesteps 600 --set evaluation.episodes=2 --set evaluation.every=200 "
    "--set evaluation.max_episode_steps=100"
)
ON_POLICY = "--set hyperparams.num_steps=50 --set checkpoint.every=100"
OFF_POLICY = (
    "--set hyperparams.learning_starts=100 --set hyperparams.batch_size=16 --set hyperparams.buffer_size=1000 "
    "--set checkpoint.every=50"
)

TINY = (
    "--num-envs 2 --total-timesteps 200 --set hyperparams.num_steps=10 --set hyperparams.num_minibatches=1 "
    "--set hyperparams.update_epochs=1 --set checkpoint.every=20 --set evaluation.every=0"
)
"""For slow ones with images (PPO)."""


@dataclass(frozen=True)
class Case:
    env: str
    package: str
    algo: str = "ppo"
    module: str | None = None
    """What `--import` names."""
    settings: str = ""
    needs: tuple[str, ...] = ()
    """Further packages whose version belongs to the result."""
    slow: bool = False

    def flags(self) -> list[str]:
        imported = ["--import", self.module] if self.module else []
        family = ON_POLICY if self.algo in ("ppo", "a2c", "trpo") else OFF_POLICY
        length = TINY if self.slow else f"{SHORT} {family}"
        chosen = ["--algo", self.algo, "--env", self.env]
        return [*chosen, *imported, *shlex.split(f"{length} {self.settings}")]

    def installed(self) -> bool:
        try:
            importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return False
        return True


OURS = str((HERE / "third_party_envs.py").relative_to(HERE.parent))
MUJOCO = ("mujoco",)
CASES = (
    Case("Blackjack-v1", "gymnasium"),
    Case("CliffWalking-v1", "gymnasium", "dqn", settings="--set env.max_episode_steps=100"),
    Case("BipedalWalker-v3", "gymnasium", "sac", needs=("Box2D",)),
    Case("CarRacing-v3", "gymnasium", slow=True, needs=("Box2D",)),
    Case("Crafter-v1", "crafter", module=OURS, slow=True),
    Case("tetris_gymnasium/Tetris", "tetris-gymnasium", module="tetris_gymnasium.envs"),
    Case("DeepSeaTreasure-v0", "mo-gymnasium", "dqn", module=OURS),
    Case(
        "MiniGrid-Empty-5x5-v0",
        "minigrid",
        module="minigrid",
        settings="--set 'env.wrappers=[{name: FilterObservation, filter_keys: [image, direction]}]'",
    ),
    Case("highway-fast-v0", "highway-env", "dqn", module="highway_env"),
    Case("FlappyBird-v0", "flappy-bird-gymnasium", "dqn", "flappy_bird_gymnasium", "--set env.renew=true"),
    Case("dm_control/cartpole-swingup-v0", "dm-control", "sac", "shimmy", needs=("shimmy", "mujoco")),
    Case("FetchReach-v4", "gymnasium-robotics", "sac", "gymnasium_robotics", needs=MUJOCO),
    Case("FrankaKitchen-v1", "gymnasium-robotics", "ppo", "gymnasium_robotics", needs=MUJOCO),
    Case("PointMaze_UMaze-v3", "gymnasium-robotics", "sac", "gymnasium_robotics", needs=MUJOCO),
    Case("Meta-World/MT1", "metaworld", "sac", "metaworld", "--set env.kwargs.env_name=reach-v3", MUJOCO),
    Case("PandaReach-v3", "panda-gym", "sac", "panda_gym", "--set env.renew=true", ("pybullet",)),
)


def axiomrl(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "rl_training.cli", *arguments]


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parent)


def killed_run(case: Case, folder: Path) -> Path:
    """Trains until there is a checkpoint, and kills."""
    command = axiomrl("train", *case.flags(), "--output-dir", str(folder))
    with (folder / "train.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=HERE.parent)
        while process.poll() is None and not [*folder.glob("*/checkpoints/latest")]:
            time.sleep(0.05)
        time.sleep(0.5)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    pointers = [*folder.glob("*/checkpoints/latest")]
    if not pointers:
        raise RuntimeError((folder / "train.log").read_text()[-400:])
    return pointers[0].parent.parent


def checked(case: Case) -> dict[str, Any]:
    """One entry of the result file."""
    names = [case.package, *case.needs]
    entry: dict[str, Any] = {
        "environment": case.env,
        "versions": {name: importlib.metadata.version(name) for name in names},
        "algorithm": case.algo,
        "command": shlex.join(["axiomrl", "train", *case.flags()]),
    }
    imported = ["--import", case.module] if case.module else []
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = killed_run(case, Path(folder))
        except RuntimeError as error:
            return {**entry, "trains": False, "error": str(error)}
        resumed = finished(axiomrl("resume", str(run), *imported))
        reported = finished(axiomrl("report", str(run)))
        resumes = json.loads((run / "metadata.json").read_text()).get("resumes", [{}])
    entry |= {"trains": True, "resumes": resumed.returncode == 0, "reports": reported.returncode == 0}
    proof = finished(axiomrl("verify-resume", *case.flags(), "--kills", "1", "--json"))
    try:
        verdict = json.loads(proof.stdout)
    except ValueError:
        return {**entry, "error": (resumed.stderr + proof.stderr)[-400:]}
    notes = [note for resume in resumes for note in resume.get("notes", [])]
    grades = sorted({str(resumes[-1].get("grade")), *verdict["grades"]})
    entry |= {"grades": grades, "kills": verdict["kills"], "identical": verdict["identical"]}
    return {**entry, "note": notes[0]} if notes else entry


def table(entries: list[dict[str, Any]]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| environment | versions | algorithm | trains, resumes, reports | grade | same as never stopped |",
        "|---|---|---|---|---|---|",
    ]
    for entry in entries:
        versions = ", ".join(f"{name} {version}" for name, version in entry["versions"].items())
        works = "yes" if all(entry.get(key) for key in ("trains", "resumes", "reports")) else "no"
        grades = ", ".join(f"`{grade}`" for grade in entry.get("grades", ()))
        settings = " (`env.renew=true`)" if "env.renew=true" in entry["command"] else ""
        same = "yes" if entry.get("identical") else "no"
        lines.append(
            f"| `{entry['environment']}`{settings} | {versions} | `{entry['algorithm']}` | {works} | {grades} | {same} |"
        )
    return "\n".join(lines) + "\n"


def write_table() -> None:
    """Puts the table between the two marks in the page."""
    head, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, tail = rest.partition(END)
    new = table(json.loads(RESULTS.read_text(encoding="utf-8"))["environments"])
    PAGE.write_text(f"{head}{begin}\n{new}{end}{tail}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", help="only these")
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--table", action="store_true", help="write the table and check nothing")
    options = parser.parse_args()
    if options.table:
        write_table()
        return
    for case in CASES:
        if options.environments and case.env not in options.environments:
            continue
        if not case.installed():
            print(f"{case.env}: {case.package} is not installed, skipped")
            continue
        entry = checked(case)
        print(json.dumps(entry), flush=True)
        if options.write:
            old = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"environments": []}
            kept = [known for known in old["environments"] if known["environment"] != case.env]
            order = [known.env for known in CASES]
            found = sorted([*kept, entry], key=lambda known: order.index(known["environment"]))
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps({"environments": found}, indent=1) + "\n")
            write_table()


if __name__ == "__main__":
    main()
