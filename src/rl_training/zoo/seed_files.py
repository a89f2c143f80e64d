"""What a benchmark keeps of each seed: where it came from, so that numbers of different origin are never mixed, and its result.

OUTPUT/benchmark.json           which benchmark the folder belongs to
OUTPUT/ppo_cartpole/seed0.json  fingerprint, config and result of one seed; the result is null until the run is finished
OUTPUT/ppo_cartpole/seed0.log   what the run printed
OUTPUT/ppo_cartpole/ppo__…/     its run directory
OUTPUT/results/ppo_cartpole.json
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.run.run_dir import write_atomically
from rl_training.experiment.versions import versions
from rl_training.utils.disk import replace_file
from rl_training.utils.errors import UserError
from rl_training.utils.safe_files import read_json
from rl_training.utils.user_code import import_modules, source_of
from rl_training.version import __version__
from rl_training.zoo.run_records import BENCHMARK

IDENTITY, RESULTS = BENCHMARK, "results"
PACKAGE = Path(__file__).parents[1]
SOURCES = (
    *("algorithms", "api", "data", "envs", "execution", "experiment", "policies", "runtime", "utils"),
    "zoo/measure.py",
)
"""The code that a score depends on. How scores are listed and drawn does not belong to it."""


@dataclass(frozen=True, eq=False)
class SeedTask:
    """One run of a benchmark: everything a process needs to do it."""

    preset: str
    seed: int
    overrides: dict[str, Any]
    episodes: int
    output: Path
    config: dict[str, Any]
    """The config that determines the scores, as plain values."""
    fingerprint: dict[str, Any]
    imports: tuple[str, ...] = ()
    """Modules and files of the user's that are imported first."""

    def __str__(self) -> str:
        return f"{self.preset} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Where the runs of the preset are."""
        return self.output / file_stem(self.preset)

    @property
    def file(self) -> Path:
        return self.folder / f"seed{self.seed}.json"

    @property
    def log(self) -> Path:
        return self.file.with_suffix(".log")

    @property
    def lock(self) -> Path:
        return self.folder / f".seed{self.seed}.lock"

    @property
    def begun(self) -> bool:
        return self.file.exists()

    def work(self) -> None:
        """Trains and measures, from where an earlier process has left off."""
        from rl_training.zoo.measure import is_resumable, measure_seed

        if code_fingerprint() != self.fingerprint["code"]:
            raise UserError("the source code of AxiomRL changed while the benchmark was running; start it again")
        import_modules(self.imports)
        for run_dir in self.run_dirs():
            if not is_resumable(run_dir):  # killed before it had anything
                shutil.rmtree(run_dir)
        if not self.begun:
            self.write(None)
        self.write(measure_seed(self.preset, self.overrides, self.episodes, self.folder, self.seed))

    def ending(self) -> str | None:
        """One line for a finished run."""
        if (run := self.result()) is None:
            return None
        took = "" if run["seconds"] is None else f" in {run['seconds']:.0f} s"
        inexact = sorted(set(run.get("resume_grades", ())) - {"exact"})
        note = f" (resumed with grade {inexact[0]}: not the same run bit for bit)" if inexact else ""
        return f"{self}: done{took}, last {run['last']['mean']:.1f}, best {run['best']['mean']:.1f}{note}"

    def run_dirs(self) -> list[Path]:
        """The run directories of this seed, oldest first."""
        return begun_runs(self.folder, self.seed)

    def write(self, run: Mapping[str, Any] | None) -> None:
        """Notes that the run has begun (None) or is finished."""
        record = {"fingerprint": self.fingerprint, "config": self.config, "run": run}
        write_atomically(self.file, json.dumps(record, indent=1) + "\n")

    def result(self) -> dict[str, Any] | None:
        """The finished run's scores; None if it is not finished."""
        record = _read(self.file)
        return None if record is None else record["run"]

    def mismatch(self) -> str | None:
        """Why what the folder has of this seed must not be used, or None if it may."""
        if not self.file.exists():
            return "its seed file is missing" if self.run_dirs() else None
        record = _read(self.file)
        if record is None:
            return f"{self.file.name} is damaged"
        changes = differences(record["config"], self.config)
        then, now = ({**fingerprint, "config": None} for fingerprint in (record["fingerprint"], self.fingerprint))
        changes += differences(then, now)
        return "; ".join(changes[:4]) or None

    def discard(self) -> None:
        """Removes all that the folder has of this seed, and the preset's data file, which it may be part of."""
        for run_dir in self.run_dirs():
            shutil.rmtree(run_dir)
        for path in (self.file, self.log, data_file(self.output, self.preset)):
            path.unlink(missing_ok=True)


def begun_runs(folder: Path, seed: int, algo: str = "*") -> list[Path]:
    """The run directories of one seed in a folder, oldest first."""
    return sorted(folder.glob(f"{algo}__*__seed{seed}__*"))


def file_stem(preset: str) -> str:
    """A preset's name, or that of a config file, as a file name."""
    return Path(preset).stem if is_config_file(preset) else preset.replace("/", "_")


def is_config_file(preset: str) -> bool:
    """Whether an entry of a manifest is a config file instead of a preset."""
    return preset.endswith((".yaml", ".yml"))


def data_file(output: Path, preset: str) -> Path:
    """The data file that a benchmark writes for a preset."""
    return output / RESULTS / f"{file_stem(preset)}.json"


def claim_folder(output: Path, name: str) -> None:
    """Makes the folder of a benchmark, or checks that it is one of the same name."""
    identity = output / IDENTITY
    if identity.exists():
        found = _read_json(identity).get("name")
        if found != name:
            raise UserError(
                f"{output} holds the runs of the benchmark {found!r}, not of {name!r}. "
                f"Choose another folder: --output {output.parent / name}"
            )
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is not empty and not the folder of a benchmark. Choose another one: --output FOLDER")
    try:
        output.mkdir(parents=True, exist_ok=True)
        replace_file(identity, json.dumps({"format": 1, "name": name}).encode() + b"\n")
    except OSError as error:
        raise UserError(
            f"cannot write to {output}: {error.strerror}. Choose another folder: --output FOLDER"
        ) from error


def code_fingerprint() -> str:
    """The package's version and a digest of its source files."""
    digest = hashlib.sha256()
    for source in (PACKAGE / name for name in SOURCES):
        for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return f"{__version__}+{digest.hexdigest()[:16]}"


def config_fingerprint(config: Mapping[str, Any]) -> str:
    """A digest of a config as plain values; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def run_fingerprint(
    config: Mapping[str, Any], episodes: int, device: str, imports: Iterable[str] = ()
) -> dict[str, Any]:
    """All parts of a measured run: two runs of equal fingerprint and seed must give equal scores."""
    own = {name: hashlib.sha256(source_of(name).read_bytes()).hexdigest()[:16] for name in imports}
    return {
        **({"imports": own} if own else {}),
        "config": config_fingerprint(config),
        "code": code_fingerprint(),
        "episodes": episodes,
        "device": device,
        "versions": versions(),
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What differs between two mappings, key by key, as `key: 1 then, 2 now`."""
    lines: list[str] = []
    for key in sorted({*then, *now}):
        before, after = then.get(key), now.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            lines += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            old, new = ("none" if value is None else value for value in (before, after))
            lines.append(f"{prefix}{key}: {old} then, {new} now")
    return lines


def _read(path: Path) -> dict[str, Any] | None:
    record = _read_json(path)
    whole = {"fingerprint", "config", "run"} <= set(record) and isinstance(record["run"], dict | None)
    return record if whole and all(isinstance(record[key], dict) for key in ("fingerprint", "config")) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
