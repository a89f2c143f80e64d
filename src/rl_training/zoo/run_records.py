"""Run folders read back as plain values, without torch or Gymnasium."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.experiment.config.yaml_files import Origin, parse_yaml
from rl_training.experiment.run.run_dir import CHECKPOINTS, CONFIG, EVALUATIONS, METADATA, METRICS
from rl_training.utils.errors import ConfigError, UserError
from rl_training.utils.json_lines import JsonLines, damage_note
from rl_training.utils.printable import quoted
from rl_training.utils.safe_files import check_values, read_json, read_limited
from rl_training.zoo.values import number

NEWEST_SCHEMA = 1
"""Newest `schema` of metadata.json that is understood here."""
BENCHMARK = "benchmark.json"
"""Names the benchmark that a folder belongs to."""
STATUSES = ("completed", "running", "interrupted", "failed")
MAX_LINES = 8192
"""Lines of a log that are kept; of a longer one a part, evenly spread, so that memory does not grow with it."""
MAX_CONFIG_BYTES = 2**20
SEARCH_DEPTH = 4  # folders below a named one that are searched: enough for runs kept by preset and date


@dataclass
class NotFinite:
    """NaN and infinity among the training metrics, which JSON holds as null; counted over every line of a log."""

    lines: int = 0
    affected: int = 0
    keys: list[str] = field(default_factory=list)
    first_step: int | None = None

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> NotFinite:
        found = cls()
        for record in records:
            found.add(record)
        return found

    def add(self, record: Mapping[str, Any]) -> None:
        self.lines += 1
        if None not in record.values():
            return
        keys = [key for key, value in record.items() if value is None and key.startswith("train/")]
        if keys:
            self.affected += 1
            self.keys += [key for key in keys if key not in self.keys][: max(0, 10 - len(self.keys))]
            self.first_step = record["step"] if self.first_step is None else self.first_step


@dataclass(frozen=True)
class RunRecord:
    """One run as its files tell it."""

    path: Path
    algo: str
    env_id: str
    seed: int
    status: str
    """One of `STATUSES`."""
    config: dict[str, Any]
    """config.yaml as plain values."""
    metadata: dict[str, Any]
    """metadata.json."""
    metrics: list[dict[str, Any]]
    """Lines of metrics.jsonl, at most `MAX_LINES`; damaged ones are left out."""
    evaluations: list[dict[str, Any]]
    """Lines of evaluations.jsonl, the same way, without the returns of single episodes; the best is always there."""
    not_finite: NotFinite | None = None
    """Of all lines of metrics.jsonl, also those that are not kept; None for a record made by hand."""
    notes: tuple[str, ...] = ()
    """What had to be passed over while reading."""

    @property
    def last_score(self) -> float | None:
        """Mean return of the newest evaluation; None without one, or if its mean was not finite."""
        return number(self.evaluations[-1].get("mean")) if self.evaluations else None

    @property
    def best_score(self) -> float | None:
        """Highest mean return of all evaluations: a maximum over many noisy ones, so it flatters."""
        return max((score for _, score in self.curve), default=None)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """(environment step, mean return) of each evaluation with a finite mean, in the order they were made."""
        points = [(number(record.get("step")), number(record.get("mean"))) for record in self.evaluations]
        return [(int(step), mean) for step, mean in points if step is not None and mean is not None]

    @property
    def steps(self) -> int:
        """Environment steps of the newest line of metrics or evaluations."""
        newest = (records[-1] for records in (self.metrics, self.evaluations) if records)
        return max((int(number(record.get("step")) or 0) for record in newest), default=0)


def find_runs(paths: Sequence[Path], without: Collection[Path] = ()) -> tuple[list[RunRecord], list[str]]:
    """The runs in these folders, but for those in the folders `without`, and one line for each that had to be skipped.

    A path is a run folder or a folder of runs, searched a few levels deep; links to folders are not followed. A run found
    twice counts once. A path that does not exist or holds no run is the user's mistake, and so is a call that finds no
    readable run at all.
    """
    records: list[RunRecord] = []
    skipped: list[str] = []
    seen: set[Path] = set()
    for path in paths:
        folders = list(run_folders(path, without))
        if not folders:
            raise UserError(
                f"no run found in {path}: expected a run folder (with {METADATA}) or a folder of runs, "
                "as `axiomrl train` writes under runs/"
            )
        for folder in folders:
            if (real := folder.resolve()) in seen:
                continue
            seen.add(real)
            try:
                records.append(read_run(folder))
            except UserError as error:
                skipped.append(str(error))
    if not records:
        more = f" (and {len(skipped) - 1} more like it)" if len(skipped) > 1 else ""
        raise UserError(f"no readable run: {skipped[0]}{more}" if skipped else "no run was named")
    return records, skipped


def run_folders(path: Path, without: Collection[Path] = ()) -> Iterator[Path]:
    """The run folders at or below a path, but for those in the folders `without`, sorted by name, broken ones included."""
    if not path.exists():
        raise UserError(f"{path} does not exist")
    if not path.is_dir():
        raise UserError(f"{path} is a file; name a run folder or a folder of runs")
    for folder, subfolders, files in os.walk(path):
        here = Path(folder)
        if here in without:
            subfolders.clear()
        elif is_run({*files, *subfolders}):
            subfolders.clear()
            yield here
        elif len(here.relative_to(path).parts) >= SEARCH_DEPTH:
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))


def is_run(names: set[str]) -> bool:
    """Whether a folder with these entries is a run, perhaps a half-written one."""
    return bool(names & {METADATA, METRICS, EVALUATIONS}) or names >= {CONFIG, CHECKPOINTS}


def read_run(folder: Path) -> RunRecord:
    """One run folder; UserError says in one line why it cannot be read."""
    metadata = read_metadata(folder)
    config = read_config(folder)
    algo, env_id, seed = (config.get(key) for key in ("algo", "env_id", "seed"))
    if not isinstance(algo, str) or not isinstance(env_id, str) or not isinstance(seed, int):
        raise UserError(f"{folder}: half-written run ({CONFIG} does not give algo, env_id and seed)")
    if metadata.get("status") not in STATUSES:
        raise UserError(f"{folder}: {METADATA} has no known status (got {quoted(metadata.get('status'))})")
    logs = [JsonLines(folder / name, inside=folder) for name in (METRICS, EVALUATIONS)]
    not_finite = NotFinite()
    try:
        metrics = _thinned(_counted(logs[0].records(), not_finite))
        evaluations = _thinned(_without_lists(logs[1].records()), keep="mean")
    except OSError as error:
        raise UserError(f"{folder}: its metrics cannot be read ({_reason(error)})") from error
    notes = tuple(damage_note(log.path, log.damaged) for log in logs if log.damaged)
    status = metadata["status"]
    return RunRecord(folder, algo, env_id, seed, status, config, metadata, metrics, evaluations, not_finite, notes)


def _counted(records: Iterable[dict[str, Any]], not_finite: NotFinite) -> Iterator[dict[str, Any]]:
    for record in records:
        not_finite.add(record)
        yield record


def _without_lists(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        yield {key: value for key, value in record.items() if not isinstance(value, list | dict)}


def _thinned(records: Iterable[dict[str, Any]], keep: str | None = None) -> list[dict[str, Any]]:
    """At most `MAX_LINES` records, evenly spread, the first and the last one among them, and the one with the largest `keep`."""
    kept: list[dict[str, Any]] = []
    stride, newest, best, highest = 1, None, None, -math.inf
    for place, record in enumerate(records):
        newest = record
        if keep is not None and (value := number(record.get(keep))) is not None and value > highest:
            best, highest = record, value
        if place % stride == 0:
            kept.append(record)
            if len(kept) >= MAX_LINES:
                kept, stride = kept[::2], stride * 2
    kept += [one for one in (best, newest) if one is not None and not any(one is other for other in kept)]
    return sorted(kept, key=lambda record: int(record["step"])) if stride > 1 else kept


def read_metadata(folder: Path) -> dict[str, Any]:
    """A run's metadata as plain values; UserError says why it cannot be read."""
    path = folder / METADATA
    if not os.path.lexists(path):
        raise UserError(f"{folder}: half-written run (no {METADATA})")
    try:
        metadata = read_json(path, inside=folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: {METADATA} cannot be read ({_reason(error)})") from error
    schema = metadata.get("schema") if isinstance(metadata, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise UserError(f"{folder}: {METADATA} is not the metadata of a run (no schema number)")
    if schema > NEWEST_SCHEMA:
        raise UserError(
            f"{folder}: written by a newer AxiomRL (metadata schema {schema}, this version reads up to {NEWEST_SCHEMA}); "
            "update with: pip install -U axiomrl"
        )
    return metadata


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config as plain values, not yet checked; UserError says why it cannot be read."""
    path = folder / CONFIG
    if not os.path.lexists(path):
        raise UserError(f"{folder}: half-written run (no {CONFIG})")
    try:
        text = read_limited(path, MAX_CONFIG_BYTES, inside=folder).decode("utf-8")
        entry = parse_yaml(text, lambda line: Origin(CONFIG, f"{path}:{line}"))
        config = entry.plain() if entry is not None else None
        check_values(config)
    except (OSError, ValueError, ConfigError) as error:
        raise UserError(f"{folder}: {CONFIG} cannot be read ({_reason(error)})") from error
    if not isinstance(config, dict):
        raise UserError(f"{folder}: half-written run ({CONFIG} is empty)")
    return config


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
