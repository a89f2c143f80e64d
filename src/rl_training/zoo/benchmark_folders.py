"""Folders of benchmarks among a user's runs, and which of their results may stand beside other scores. Without torch."""

from __future__ import annotations

import os
from pathlib import Path

from rl_training.experiment.config.presets import preset_names
from rl_training.zoo.catalog import preset_values
from rl_training.zoo.result_files import ResultFile, read_result_files
from rl_training.zoo.run_records import BENCHMARK, SEARCH_DEPTH


def benchmark_folders(path: Path) -> list[Path]:
    """Those below a path, but not the path itself: who names the folder of a benchmark means it."""
    found = []
    for folder, subfolders, files in os.walk(path):
        here = Path(folder)
        if here != path and BENCHMARK in files:
            found.append(here)
            subfolders.clear()
        elif len(here.relative_to(path).parts) >= SEARCH_DEPTH:
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
    return found


def full_results(folder: Path) -> tuple[list[ResultFile], list[str]]:
    """A benchmark's results that used the whole budget of their presets, and a line for what is left out."""
    results_folder = folder / "results"
    results, problems = read_result_files(results_folder) if results_folder.is_dir() else ([], [])
    short = [result for result in results if _is_short(result)]
    notes = [f"{folder}: {problem}" for problem in problems]
    if not results:
        notes.append(f"{folder}: left out, a benchmark without results yet; rank its runs with: {_command(folder)}")
    elif short:
        names = ", ".join(result.preset for result in short)
        notes.append(
            f"{folder}: left out {names}: a benchmark with fewer steps than the preset trains for, so these are no scores of it; "
            f"rank them with: {_command(folder)}"
        )
    return [result for result in results if result not in short], notes


def _is_short(result: ResultFile) -> bool:
    if result.preset not in preset_names():
        return False
    budget, steps = preset_values(result.preset)["total_timesteps"], result.config.get("total_timesteps")
    return not isinstance(steps, int) or steps < budget


def _command(folder: Path) -> str:
    return f"axiomrl leaderboard {folder}"
