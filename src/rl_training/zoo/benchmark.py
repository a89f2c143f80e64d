"""Benchmarks: presets × seeds, trained side by side, resumable after a kill, with one data file per preset in the end."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.config.loader import ResolvedConfig, parse_override, resolve
from rl_training.experiment.run.build import complete_config
from rl_training.experiment.run.device import select_device
from rl_training.experiment.run.metadata import system_info
from rl_training.experiment.run.run_dir import write_atomically
from rl_training.utils.errors import UserError
from rl_training.zoo.manifest import OWN_KEYS, Manifest
from rl_training.zoo.measure import result_record
from rl_training.zoo.seed_files import SeedTask, claim_folder, data_file, run_fingerprint
from rl_training.zoo.workers import locked, run_tasks


@dataclass(frozen=True)
class BenchmarkOutcome:
    """How a benchmark ended."""

    records: list[dict[str, Any]] = field(default_factory=list)
    """The data file of each preset of which at least one seed is finished."""
    failed: dict[SeedTask, str] = field(default_factory=dict)
    """Runs that failed, and why."""
    exit_code: int = 0
    """0; 1 if a run failed; 130 or 143 after a signal."""


def run_benchmark(
    manifest: Manifest,
    output: Path,
    *,
    seeds_asked: int | None = None,
    jobs: int | None = None,
    redo: bool = False,
    imports: tuple[str, ...] = (),
    say: Callable[[str], None] = lambda text: None,
) -> BenchmarkOutcome:
    """Trains what is not finished yet, continues what was killed, and writes the data files under `output/results/`.

    `seeds_asked` is how many seeds there should be, where that is more than the manifest has now; the data files say both. Numbers
    that were made with another config, code or package version are refused, or made anew with `redo`. `imports` are modules and
    files that register what the configs name; they have been imported here already.
    """
    tasks = plan(manifest, output, imports)
    asked = seeds_asked or len(manifest.seeds)
    claim_folder(output, manifest.name)
    with locked(output / ".lock", busy=f"another benchmark is running in {output}"):
        _check_origin(tasks, redo)
        finished = sum(task.result() is not None for task in tasks)
        if finished:
            say(f"{finished} of {len(tasks)} runs are finished already")
        todo = [task for task in tasks if task.result() is None]
        failed, received = run_tasks(todo, jobs or default_jobs(), say)
        if received.exit_code:
            return BenchmarkOutcome(failed=failed, exit_code=received.exit_code)
        written = (_write_result(manifest, preset, tasks, asked) for preset in manifest.presets)
        records = [record for record in written if record is not None]
    return BenchmarkOutcome(records, failed, 1 if failed else 0)


def default_jobs() -> int:
    """One run per two cores: a run computes on one and its evaluations and the system need some of another."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


def plan(manifest: Manifest, output: Path, imports: tuple[str, ...] = ()) -> list[SeedTask]:
    """The runs of a benchmark, seed by seed, so that every preset has a first result early; the configs are checked."""
    parts = []
    for preset in manifest.presets:
        resolved = _checked_config(preset, manifest.overrides)
        config = {key: value for key, value in resolved.config.to_dict().items() if key not in OWN_KEYS}
        fingerprint = run_fingerprint(config, manifest.episodes, _device(resolved.config.device), imports)
        parts.append((preset, config, fingerprint))
    return [
        SeedTask(preset, seed, manifest.overrides, manifest.episodes, output, config, fingerprint, imports)
        for seed in manifest.seeds
        for preset, config, fingerprint in parts
    ]


def _checked_config(preset: str, overrides: Mapping[str, Any]) -> ResolvedConfig:
    try:
        resolved = resolve(preset, overrides, "overrides")
        complete_config(resolved)  # an unknown hyperparameter is an error now, not in the middle of the night
    except UserError as error:
        raise UserError(str(error) if str(error).startswith(preset) else f"{preset}: {error}") from None
    return resolved


def command_for(
    preset: str, seeds: Sequence[int], episodes: int, overrides: Mapping[str, Any], imports: Sequence[str] = ()
) -> str:
    """The command that repeats one preset's part of a benchmark."""
    settings = [f"{key}={_override_text(key, value)}" for key, value in overrides.items()]
    words = ["axiomrl", "zoo", "benchmark", preset, "--seeds", ",".join(map(str, seeds)), "--episodes", str(episodes)]
    words += [word for setting in settings for word in ("--set", setting)]
    return shlex.join([*words, *(word for name in imports for word in ("--import", name))])


def _override_text(key: str, value: Any) -> str:
    """A value as `--set` reads it; text that would be read as something else stands in quotes."""
    plain = isinstance(value, str) and parse_override(f"{key}={value}")[1] == value
    return value if plain else json.dumps(value)


def _device(name: str) -> str:
    device = str(select_device(name))
    return str(system_info(device)["gpu"] or device)


def _check_origin(tasks: Sequence[SeedTask], redo: bool) -> None:
    other = {task: reason for task in tasks if (reason := task.mismatch())}
    if redo:
        for task in other:
            task.discard()
    elif other:
        lines = [f"{tasks[0].output} has runs of another origin, and numbers of different origin are not mixed:"]
        lines += [f"  {task}: {reason}" for task, reason in list(other.items())[:5]]
        if len(other) > 5:
            lines.append(f"  and {len(other) - 5} more")
        raise UserError("\n".join([*lines, "Choose another folder with --output, or train these anew with --redo."]))


def _write_result(
    manifest: Manifest, preset: str, tasks: Sequence[SeedTask], seeds_asked: int
) -> dict[str, Any] | None:
    """The preset's data file, written and returned; None if no seed is finished."""
    own = [task for task in tasks if task.preset == preset]
    runs = [run for task in own if (run := task.result())]
    if not runs:
        return None
    command = command_for(preset, [run["seed"] for run in runs], manifest.episodes, manifest.overrides, own[0].imports)
    record = result_record(preset, manifest.overrides, manifest.episodes, runs, command)
    record |= {"manifest": manifest.name, "seeds_asked": seeds_asked, "fingerprint": own[0].fingerprint}
    path = data_file(own[0].output, preset)
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(record, indent=1) + "\n")
    return record
