"""Measured results as data files: one JSON file per preset, with every seed's scores and what it takes to repeat them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rl_training.utils.errors import UserError
from rl_training.utils.numbers import finite
from rl_training.utils.printable import quoted
from rl_training.utils.safe_files import read_json

PACKAGE = Path(__file__).parent

FIRST_HELD_OUT_SEED = 100
"""Settings are chosen on seeds below this; scores are reported on seeds from here up, which nobody has looked at before."""
TUNED_ON = f"seeds below {FIRST_HELD_OUT_SEED}"
"""What a data file says of the seeds its preset's settings were chosen on."""
NOT_HELD_OUT = "†"
"""Marks scores in tables that were measured on seeds which the settings may have been chosen on."""
NOT_HELD_OUT_NOTE = f"{NOT_HELD_OUT} measured on seeds that its settings may have been chosen on, so it may flatter."


@dataclass(frozen=True)
class SeedResult:
    """One training run of a result. The scores are means over fresh evaluation episodes."""

    seed: int
    steps: int
    seconds: float | None
    """Wall-clock time of the training; None for a run that was continued, whose time is not known."""
    last: float
    """Score of the last checkpoint: what the training ended with."""
    best: float
    """Score of the checkpoint with the best evaluation: picked among many, so it flatters."""
    last_success: float | None
    """Share of the last checkpoint's episodes that reached their goal; None where the environment has no goal."""
    curve: list[tuple[int, float]]
    """(environment steps, mean return) of each evaluation on the way."""


@dataclass(frozen=True)
class ResultFile:
    """What was measured for one preset."""

    path: Path
    preset: str
    algo: str
    env_id: str
    command: str
    """The command that repeats the measurement."""
    versions: dict[str, str]
    system: dict[str, Any]
    config: dict[str, Any]
    seeds: list[SeedResult]
    episodes_per_seed: int
    last_interval: tuple[float, float]
    """95 % bootstrap interval of `last_mean` over the seeds, as the file has it."""
    measured_at_utc: str = ""
    tuned_on: str = ""
    """Which seeds the preset's settings were chosen on."""
    seeds_asked: int | None = None
    """How many seeds the manifest asked for; None where no manifest was used."""

    @property
    def last_mean(self) -> float:
        """Mean of the seeds' last scores, with two decimals as in the file, so that it reads the same everywhere."""
        return round(fmean(seed.last for seed in self.seeds), 2)

    @property
    def best_mean(self) -> float:
        """Mean of the seeds' best scores, likewise."""
        return round(fmean(seed.best for seed in self.seeds), 2)

    @property
    def held_out(self) -> bool:
        """Whether no seed of the result had a part in choosing the settings."""
        return all(seed.seed >= FIRST_HELD_OUT_SEED for seed in self.seeds)

    @property
    def seed_count(self) -> str:
        """How many seeds, marked where they are not held out."""
        return f"{len(self.seeds)}{'' if self.held_out else NOT_HELD_OUT}"

    @property
    def mean_seconds(self) -> float | None:
        """Mean wall-clock time of a run, over the seeds whose time is known."""
        known = [seed.seconds for seed in self.seeds if seed.seconds is not None]
        return fmean(known) if known else None

    @property
    def hardware(self) -> str:
        """What the networks ran on, e.g. `NVIDIA H200` or `CPU (AMD EPYC)`."""
        return str(self.system["gpu"] or f"CPU ({self.system['cpu']})")


def shipped_results() -> list[ResultFile]:
    """The results that come with AxiomRL, sorted by preset."""
    results, problems = read_result_files(results_folder())
    if problems:
        raise RuntimeError(f"a result that comes with AxiomRL cannot be read: {problems[0]}")
    return sorted(results, key=lambda result: result.preset)


def results_folder() -> Path:
    """Where those results are: in the package, or in `results/` of a checkout (see pyproject.toml)."""
    installed = PACKAGE / "results"
    return installed if installed.is_dir() else PACKAGE.parents[2] / "results"


def read_result_files(folder: Path) -> tuple[list[ResultFile], list[str]]:
    """The results in a folder, and one line per file that is none, saying why."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is not a folder; results are JSON files in a folder, such as those of `zoo benchmark`"
        )
    results, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            results.append(read_result_file(path))
        except UserError as error:
            problems.append(str(error))
    return results, problems


def read_result_file(path: Path) -> ResultFile:
    """One data file, checked: its parts are there and its mean and interval belong to its seeds."""
    try:
        record = read_json(path.resolve())  # a link is fine here: whoever names the file, or installed it, put it there
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: cannot be read as JSON ({why})") from None
    if not isinstance(record, Mapping) or not {"preset", "runs"} <= set(record):
        raise UserError(f"{path}: is not a result file")
    try:
        return _from_record(path, record)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise UserError(f"{path}: is not a complete result file: {what}") from None


def mean_curve(result: ResultFile) -> list[tuple[int, float]]:
    """(steps, mean return over the seeds) at the steps where every seed was evaluated."""
    curves = [dict(seed.curve) for seed in result.seeds]
    common = sorted(set(curves[0]).intersection(*curves[1:]))
    return [(step, fmean(curve[step] for curve in curves)) for step in common]


def _from_record(path: Path, record: Mapping[str, Any]) -> ResultFile:
    config = record["config"]
    result = ResultFile(
        path=path,
        preset=str(record["preset"]),
        algo=str(config["algo"]),
        env_id=str(config["env_id"]),
        command=str(record["command"]),
        versions=dict(record["versions"]),
        system={"gpu": None, "cpu": "unknown", **record["system"]},
        config=dict(config),
        seeds=[_seed(run) for run in record["runs"]],
        episodes_per_seed=int(record["episodes_per_seed"]),
        last_interval=(_number(record["last_interval_95"][0]), _number(record["last_interval_95"][1])),
        measured_at_utc=str(record.get("measured_at_utc", "")),
        tuned_on=str(record.get("tuned_on", "")),
        seeds_asked=None if record.get("seeds_asked") is None else int(record["seeds_asked"]),
    )
    int(config["total_timesteps"])
    if not result.seeds:
        raise ValueError("it has no runs")
    if len({seed.seed for seed in result.seeds}) != len(result.seeds):
        raise ValueError("a seed is there twice")
    if abs(result.last_mean - _number(record["last_mean"])) > 0.011:
        raise ValueError(f"last_mean is {record['last_mean']}, but its seeds give {result.last_mean:.2f}")
    return result


def _seed(run: Mapping[str, Any]) -> SeedResult:
    seconds, success = run["seconds"], run["last"].get("success_rate")
    return SeedResult(
        seed=int(run["seed"]),
        steps=int(run["steps"]),
        seconds=None if seconds is None else _number(seconds),
        last=_number(run["last"]["mean"]),
        best=_number(run["best"]["mean"]),
        last_success=None if success is None else _number(success),
        curve=[(int(step), _number(mean)) for step, mean in run["curve"]],
    )


def _number(value: Any) -> float:
    number = finite(value)
    if number is None:
        raise ValueError(f"{quoted(value)} is not a score")
    return number
