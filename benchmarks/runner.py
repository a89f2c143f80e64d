"""Runs one case: every library in turn, round after round, each measurement in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import NOT_MEASURED, Case
from benchmarks.environments import ROOT

TIMEOUT = 900
MARK = "BENCH "
"""Begins the line with the result; libraries print lines of their own."""


@dataclass(frozen=True)
class Entry:
    """One way to run one library."""

    library: str
    threads: int

    def __str__(self) -> str:
        return f"{self.library}, {self.threads} thread{'s' if self.threads > 1 else ''}"


class MeasurementError(Exception):
    """A peer script did not deliver a result."""


def entries(case: Case, peers: Iterable[str], *, quick: bool) -> list[Entry]:
    """Who takes part, in the order of each round: ours first, then the peers that can do the case."""
    threads = (1,) if quick else case.threads
    able = [peer for peer in peers if (peer, case.name) not in NOT_MEASURED]
    return [Entry(library, count) for library in ("ours", *able) for count in threads]


def measure(entry: Entry, python: Path, work: Mapping[str, Any]) -> dict[str, Any]:
    """The result of one fresh process."""
    text = json.dumps({**work, "threads": entry.threads})
    threads = {name: str(entry.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        # A folder of its own: some libraries leave files wherever they are.
        environment = {
            **os.environ,
            **threads,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
            "CUDA_VISIBLE_DEVICES": "",
        }
        environment["BENCH_STARTED"] = str(time.time())
        try:
            done = subprocess.run(
                [str(python), "-m", f"benchmarks.peers.{entry.library}", text],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"took longer than {TIMEOUT} s") from None
    results = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode != 0 or not results:
        raise MeasurementError(failure(done.stderr, done.returncode))
    return dict(json.loads(results[-1].removeprefix(MARK)))


def failure(stderr: str, code: int) -> str:
    """The last line that a failed script wrote."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit code {code}")[:300]


OUT_OF_REACH = 0.6
"""A peer that is slower than this share of the fastest one in the first round is not measured again: it will not be the fastest."""


def within_reach(case: Case, first: Mapping[Entry, Mapping[str, Any]]) -> set[Entry]:
    """Who is measured in the rounds after the first one: all of ours, and the peers near the fastest of them."""
    metric, peers = case.metrics[0], [entry for entry in first if entry.library != "ours"]
    if len(case.metrics) > 1 or metric.kind == "bytes" or not peers:
        return set(first)
    values = {entry: float(first[entry]["values"][metric.name]) for entry in peers}
    speeds = {entry: value if metric.kind == "rate" else 1 / value for entry, value in values.items()}
    return set(first) - {entry for entry in peers if speeds[entry] < OUT_OF_REACH * max(speeds.values())}


@dataclass(frozen=True)
class Outcome:
    """All measurements of a case."""

    results: Mapping[Entry, list[dict[str, Any]]]
    """One per round, or of the first round only (`within_reach`); entries that failed once are left out."""
    failed: Mapping[Entry, str]


def run_case(case: Case, taking_part: list[Entry], pythons: Mapping[str, Path], rounds: int, *, quick: bool) -> Outcome:
    """Alternates between the entries for `rounds` rounds."""
    results: dict[Entry, list[dict[str, Any]]] = {entry: [] for entry in taking_part}
    failed: dict[Entry, str] = {}
    contenders: set[Entry] = set()
    for number in range(rounds):
        for entry in taking_part:
            if entry in failed or (number and entry not in contenders):
                continue
            begin = time.monotonic()
            try:
                result = measure(entry, pythons[entry.library], case.work_for(quick=quick))
            except MeasurementError as error:
                failed[entry] = str(error)
                print(f"  {entry}: failed: {error}", flush=True)
                continue
            results[entry].append(result)
            numbers = ", ".join(f"{name} {value:,.6g}" for name, value in result["values"].items())
            print(f"  {number + 1}/{rounds} {entry}: {numbers}  [{time.monotonic() - begin:.0f} s]", flush=True)
        if number == 0:
            contenders = within_reach(case, {entry: found[0] for entry, found in results.items() if found})
    return Outcome({entry: found for entry, found in results.items() if entry not in failed}, failed)
