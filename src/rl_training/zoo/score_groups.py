"""The one model of results, which report and leaderboard read: scores from run folders and result files, by method and task.

Only seeds of one method on one task stand together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.utils.errors import UserError
from rl_training.zoo.benchmark_folders import benchmark_folders, full_results
from rl_training.zoo.result_files import ResultFile, read_result_file, read_result_files, shipped_results
from rl_training.zoo.run_records import RunRecord, find_runs, run_folders
from rl_training.zoo.values import number

# What makes two configs different methods. The task has its own place in a group, and where or how often a run logs, saves
# and evaluates does not change what it learns.
_METHOD_KEYS = ("total_timesteps", "num_envs", "overlap")
_METHOD_SECTIONS = ("hyperparams", "policy", "env")
_NOT_METHOD = {"env.kwargs", "env.max_episode_steps", "env.backend", "env.restart_workers"}

CHANGED = "changed on resume"


@dataclass(frozen=True)
class SeedScore:
    """One training run."""

    seed: int
    source: str
    """Its folder or result file."""
    steps: int
    last: float | None
    """Score of its last checkpoint; None if it failed or was never evaluated."""
    best: float | None
    """Its best evaluation or best checkpoint: picked among many, so it flatters."""
    episode_margin: tuple[float, float] = (0.0, 0.0)
    """How far below and above `last` the 95 % interval over its evaluation episodes reaches, where that is known."""
    status: str = "completed"
    created: str = ""
    run: RunRecord | None = None
    """What its folder holds; None for a seed of a result file."""


@dataclass(frozen=True)
class ScoreGroup:
    """The seeds of one method on one task."""

    algo: str
    task: str
    """Environment id, with its arguments where there are any."""
    name: str
    """The algorithm; a preset or a numbered config where an algorithm occurs with several configs."""
    method: Mapping[str, Any]
    """The config keys that make the method, e.g. `hyperparams.gamma`."""
    runs: tuple[SeedScore, ...]
    preset: str | None = None
    """The preset that was measured, for a result file."""
    seeds_asked: int | None = None
    """How many seeds a benchmark was to have, for a result file that says so."""
    differences: Mapping[str, Any] | None = None
    """The keys in which this config differs from the other configs of its algorithm on this task."""
    repeated: tuple[SeedScore, ...] = ()
    """Further runs of the same seeds, which count once: training a seed twice is no more evidence."""

    @property
    def env_id(self) -> str:
        return self.task.partition("(")[0]

    @property
    def scored(self) -> list[SeedScore]:
        return [run for run in self.runs if run.last is not None]

    @property
    def without_score(self) -> list[SeedScore]:
        return [run for run in self.runs if run.last is None]

    @property
    def unfinished(self) -> list[SeedScore]:
        """Scored runs whose training has not come to its end, so that their last score is an early one."""
        return [run for run in self.scored if run.status != "completed"]

    @property
    def last(self) -> NDArray[np.float64]:
        return np.array([run.last for run in self.scored], dtype=np.float64)

    @property
    def best(self) -> NDArray[np.float64]:
        return np.array([run.best for run in self.scored], dtype=np.float64)

    @property
    def steps(self) -> tuple[int, int]:
        """Fewest and most steps of a scored run."""
        steps = [run.steps for run in self.scored]
        return min(steps), max(steps)


def collect(paths: Sequence[Path]) -> tuple[list[ScoreGroup], list[str]]:
    """The groups in run folders, folders of runs, result files and folders of result files, and a line per thing left out.

    A folder with result files, in it or in its `results/`, is not searched for runs: the results were made from them. So are
    folders of benchmarks among the runs; of these, results of a shortened training are left out.
    """
    groups: list[ScoreGroup] = []
    notes: list[str] = []
    run_paths: list[Path] = []
    benchmarks: list[Path] = []
    for path in paths:
        results, problems = _results_at(path)
        groups += [_of_result(result) for result in results]
        if results:
            notes += problems
        elif any(run_folders(path)):
            inside = benchmark_folders(path)
            for folder in inside:
                full, left_out = full_results(folder)
                groups += [_of_result(result) for result in full]
                notes += left_out
            benchmarks += inside
            if any(run_folders(path, inside)):
                run_paths.append(path)
        else:
            why = problems[0] if problems else "expected run folders, as `axiomrl train` writes them, or result files"
            raise UserError(f"no run and no result found in {path}: {why}")
    if run_paths:
        records, skipped = find_runs(run_paths, benchmarks)
        groups += [_of_run(record) for record in records]
        notes += [*skipped, *(note for record in records for note in record.notes)]
    if not groups:
        raise UserError("\n".join([f"nothing to rank in {', '.join(map(str, paths))}", *notes]))
    merged = _merge(groups)
    repeated = [run for group in merged for run in group.repeated]
    return merged, notes + [
        f"{run.source}: left out, seed {run.seed} of the same config counts already" for run in repeated
    ]


def group_runs(records: Sequence[RunRecord]) -> list[ScoreGroup]:
    """The groups of these runs, by task and algorithm."""
    return _merge([_of_run(record) for record in records])


def shipped() -> list[ScoreGroup]:
    """The results that come with AxiomRL."""
    return _merge([_of_result(result) for result in shipped_results()])


def select(groups: Sequence[ScoreGroup], envs: Sequence[str], algos: Sequence[str]) -> list[ScoreGroup]:
    """The groups of these environments and algorithms; nothing named means all of them."""
    return [group for group in groups if (not envs or group.env_id in envs) and (not algos or group.algo in algos)]


def method_differences(method: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The keys in which two configs differ, among those that both give: a result file may leave out defaults."""
    return [key for key in method if key in other and _differ(method[key], other[key])]


def _results_at(path: Path) -> tuple[list[ResultFile], list[str]]:
    if path.is_file():
        return [read_result_file(path)], []
    if not path.is_dir():
        raise UserError(f"{path} does not exist")
    results, problems = read_result_files(path)
    benchmark = path / "results"  # where `zoo benchmark` puts them, beside the runs
    if not results and benchmark.is_dir():
        return read_result_files(benchmark)
    return results, problems


def _of_run(record: RunRecord) -> ScoreGroup:
    newest = record.evaluations[-1] if record.evaluations else {}
    # A failed run stopped at an error: its newest evaluation is not what the training ended with.
    last = None if record.status == "failed" else record.last_score
    margin = (0.0, 0.0)
    low, high = number(newest.get("ci_low")), number(newest.get("ci_high"))
    if last is not None and low is not None and high is not None:
        margin = (max(0.0, last - low), max(0.0, high - last))
    run = SeedScore(
        seed=record.seed,
        source=str(record.path),
        steps=record.steps,
        last=last,
        best=last if record.best_score is None else record.best_score,
        episode_margin=margin,
        status=record.status,
        created=str(record.metadata.get("created_at_utc", "")),
        run=record,
    )
    method = {**method_of(record.config), CHANGED: _changed_hyperparams(record.metadata.get("resumes"))}
    return ScoreGroup(record.algo, task_of(record.config), record.algo, method, (run,))


def _of_result(result: ResultFile) -> ScoreGroup:
    runs = tuple(
        SeedScore(seed.seed, str(result.path), seed.steps, seed.last, seed.best, created=result.measured_at_utc)
        for seed in result.seeds
    )
    return ScoreGroup(
        result.algo,
        task_of(result.config),
        result.algo,
        {**method_of(result.config), CHANGED: None},
        runs,
        preset=result.preset,
        seeds_asked=result.seeds_asked,
    )


def _changed_hyperparams(resumes: object) -> str | None:
    """What resumes have changed on the way, from the lineage in metadata.json: such a run is not one of its last config."""
    found = []
    for entry in resumes if isinstance(resumes, list) else []:
        changes = entry.get("changes") if isinstance(entry, dict) else None
        for change in changes if isinstance(changes, list) else []:
            if isinstance(change, dict) and str(change.get("key")).startswith("hyperparams."):
                found.append(f"{change['key']} at step {entry.get('step')}")
    return ", ".join(found) or None


def task_of(config: Mapping[str, Any]) -> str:
    """Environments with other arguments are other tasks, whatever their id."""
    env = _section(config, "env")
    arguments = dict(_section(env, "kwargs"))
    if env.get("max_episode_steps") is not None:
        arguments["max_episode_steps"] = env["max_episode_steps"]
    text = ", ".join(f"{name}={value}" for name, value in sorted(arguments.items()))
    return f"{config['env_id']}({text})" if text else str(config["env_id"])


def method_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that runs must share for their seeds to stand together: what changes what is learned, or measured."""
    method = {key: config[key] for key in _METHOD_KEYS if key in config}
    for section in _METHOD_SECTIONS:
        method |= {f"{section}.{key}": value for key, value in _section(config, section).items()}
    # Sampled actions score lower than the most likely ones: the same training, measured differently.
    method["evaluation.deterministic"] = _section(config, "evaluation").get("deterministic", True)
    return {key: value for key, value in method.items() if key not in _NOT_METHOD}


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _differ(value: Any, other: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return any(_differ(value[key], other[key]) for key in value if key in other)
    return bool(value != other)


def _merge(groups: Sequence[ScoreGroup]) -> list[ScoreGroup]:
    """Puts the seeds of equal configs together and gives every group a name of its own within its task."""
    by_algo: dict[tuple[str, str], list[ScoreGroup]] = {}
    for group in groups:
        same_algo = by_algo.setdefault((group.task, group.algo), [])
        for index, other in enumerate(same_algo):
            if not method_differences(group.method, other.method):
                same_algo[index] = replace(other, runs=other.runs + group.runs, preset=other.preset or group.preset)
                break
        else:
            same_algo.append(group)
    return [_one_run_per_seed(group) for _, same_algo in sorted(by_algo.items()) for group in _named(same_algo)]


def _named(groups: list[ScoreGroup]) -> list[ScoreGroup]:
    """Groups of one algorithm on one task: one config needs no more than the algorithm's name."""
    if len(groups) == 1:
        return groups
    differing = {key for one in groups for other in groups for key in method_differences(one.method, other.method)}
    presets = {group.preset for group in groups}
    by_preset = None not in presets and len(presets) == len(groups)
    return [
        replace(
            group,
            name=group.preset if by_preset and group.preset else f"{group.algo} ({number})",
            differences={key: group.method[key] for key in group.method if key in differing},
        )
        for number, group in enumerate(groups, start=1)
    ]


def _one_run_per_seed(group: ScoreGroup) -> ScoreGroup:
    """Of several runs of a seed a completed one counts, and the newest of several."""
    kept: dict[int, SeedScore] = {}
    repeated = []
    for run in sorted(group.runs, key=lambda run: (run.status == "completed", run.created), reverse=True):
        if kept.setdefault(run.seed, run) is not run:
            repeated.append(run)
    return replace(group, runs=tuple(kept[seed] for seed in sorted(kept)), repeated=tuple(repeated))
