"""`axiomrl zoo`: list, show, run and benchmark the presets."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rl_training.cli import train
from rl_training.cli.options import (
    PATH,
    TEXT,
    Flag,
    Group,
    ImportModules,
    JsonOption,
    Number,
    Settings,
    arg,
    import_modules,
    overrides_of,
    print_json,
    program,
    say,
)
from rl_training.cli.seeds import parse_seeds
from rl_training.utils.coerce import did_you_mean
from rl_training.utils.errors import UserError

if TYPE_CHECKING:
    from rl_training.zoo.benchmark import BenchmarkOutcome
    from rl_training.zoo.manifest import Manifest

ALIASES = ("report", "leaderboard")


@dataclass
class List:
    """List the presets with their expected scores: last checkpoints, mean over seeds."""

    output: Annotated[JsonOption, Group]
    algo: Annotated[str | None, TEXT, arg("ALGO")] = None
    """Only this algorithm, e.g. ppo."""
    env: Annotated[str | None, TEXT, arg("ENV")] = None
    """Only this environment, e.g. CartPole-v1 or cartpole."""
    family: Annotated[str | None, TEXT, arg("FAMILY")] = None
    """Only this family: classic_control, box2d, mujoco or goals."""
    tier: Annotated[str | None, TEXT, arg("TIER")] = None
    """Only this tier: core (at least 5 seeds, or 3 where a run takes over ten minutes), measured (fewer) or unmeasured."""

    def run(self) -> int:
        from rl_training.cli.zoo_text import list_text
        from rl_training.zoo.catalog import catalog, select

        entries = select(catalog(), self.algo, self.env, self.family, self.tier)
        if self.output.json:
            print_json([entry.to_dict() for entry in entries])
        else:
            print(list_text(entries))
        return 0


@dataclass
class Show:
    """Show one preset: its config, what was measured for it, and how to repeat that."""

    preset: Annotated[str, tyro.conf.Positional, arg("PRESET")]
    """A preset such as ppo/cartpole."""
    output: Annotated[JsonOption, Group]

    def run(self) -> int:
        from rl_training.cli.zoo_text import show_text, show_values
        from rl_training.zoo.catalog import find_entry

        entry = find_entry(self.preset)
        if self.output.json:
            print_json(show_values(entry))
        else:
            print(show_text(entry))
        return 0


@dataclass
class Run(train.Command):
    """Train a preset. The same as `axiomrl train PRESET`, with the same options."""

    def run(self) -> int:
        if self.options.preset is None:
            raise UserError(
                "zoo run needs a preset, e.g. axiomrl zoo run ppo/cartpole; `axiomrl zoo list` shows them all"
            )
        return super().run()


@dataclass
class Benchmark:
    """Measure presets over many seeds, in parallel processes.

    Killed at any moment and started again, it goes on where it was and ends with the same numbers. The data files are in
    FOLDER/results.
    """

    manifest: Annotated[str, tyro.conf.Positional, arg("MANIFEST")]
    """classic_control, box2d, mujoco, goals or smoke; a preset; a YAML config; or a YAML file with name, presets (names or config
    files), seeds, episodes and overrides."""
    json_output: Annotated[JsonOption, Group]
    seeds: Annotated[str | None, TEXT, arg("SEEDS")] = None
    """Seeds instead of the manifest's, e.g. --seeds 0-9."""
    episodes: Number = None
    """Evaluation episodes per seed instead of the manifest's."""
    set: Settings = ()
    """Change any config key for all presets, e.g. --set device=cpu; may be repeated."""
    jobs: Number = None
    """Runs trained side by side; one per two cores by default."""
    output: Annotated[Path | None, PATH, arg("FOLDER")] = None
    """Where runs and results are kept; runs/zoo/NAME by default."""
    redo: Flag = False
    """Train anew what the folder has from another config, code or package version, instead of refusing it."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs must be at least 1, got {self.jobs}")
        from rl_training.experiment.config.presets import preset_names
        from rl_training.zoo.benchmark import run_benchmark
        from rl_training.zoo.manifest import load_manifest

        import_modules(self.import_modules)
        named = load_manifest(self.manifest)
        manifest = self._with_options(named)
        alone = self.manifest in (*preset_names(), *named.presets)  # asks for no number of seeds itself
        asked = len((manifest if alone else named).seeds)
        output = self.output or Path("runs/zoo") / manifest.name
        outcome = run_benchmark(
            manifest,
            output,
            seeds_asked=asked,
            jobs=self.jobs,
            redo=self.redo,
            imports=self.import_modules,
            say=say,
        )
        if self.json_output.json:
            again = self._again(output) if outcome.exit_code else None
            print_json({**_outcome_values(outcome, output), "continue_with": again})
        else:
            self._print(outcome, output)
        return outcome.exit_code

    def _with_options(self, manifest: Manifest) -> Manifest:
        return replace(
            manifest,
            seeds=manifest.seeds if self.seeds is None else tuple(parse_seeds(self.seeds)),
            episodes=manifest.episodes if self.episodes is None else self.episodes,
            overrides={**manifest.overrides, **overrides_of(self.set)},
        )

    def _print(self, outcome: BenchmarkOutcome, output: Path) -> None:
        from rl_training.cli.zoo_text import benchmark_text

        if outcome.exit_code > 1:
            print(f"\nstopped; everything is saved. Go on with: {self._again(output)}")
            return
        if outcome.records:
            print(benchmark_text(outcome.records))
            print(f"\ndata files: {output / 'results'}")
        if outcome.failed:
            print(f"\n{len(outcome.failed)} runs failed:")
            for task, reason in outcome.failed.items():
                print(f"  {task}: {reason} (log: {task.log})")
            print(f"Try them again with: {self._again(output)}")

    def _again(self, output: Path) -> str:
        words = ["zoo", "benchmark", self.manifest, "--output", str(output)]
        for name in ("seeds", "episodes", "jobs"):
            value = getattr(self, name)
            words += [f"--{name}", str(value)] if value is not None else []
        words += [word for setting in self.set for word in ("--set", setting)]
        return shlex.join([program(), *words, *(word for name in self.import_modules for word in ("--import", name))])


COMMANDS: dict[str, tuple[type, str]] = {
    "list": (List, "list the presets with their expected scores"),
    "show": (Show, "show one preset: config, result, how to repeat it"),
    "run": (Run, "train a preset, as `axiomrl train PRESET` does"),
    "benchmark": (Benchmark, "measure many presets over many seeds, resumable after a kill"),
}


def parse(args: Sequence[str]) -> Any:
    """The sub-command's dataclass, filled from its arguments."""
    from rl_training.cli.main import parse_arguments, parse_command

    name, *rest = args or ["--help"]
    if name in ("--help", "-h", "help"):
        print(_help(), end="")
        raise SystemExit(0)
    option, _, value = name.partition("=")
    if option == "--format":
        kind, *rest = [value, *rest] if value else rest or [""]
        if kind not in ALIASES:
            hint = did_you_mean(kind, ALIASES) or f"; e.g. axiomrl zoo --format {ALIASES[0]} RUNS"
            raise UserError(f"zoo --format takes {' or '.join(ALIASES)}, got {kind!r}{hint}")
        return parse_command(kind, rest)
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        raise UserError(f"unknown command 'zoo {name}'{hint}")
    return parse_arguments(COMMANDS[name][0], f"axiomrl zoo {name}", rest)


def _help() -> str:
    lines = [f"  {name:<11}{text}" for name, (_, text) in COMMANDS.items()]
    aliases = [f"  --format {name:<12} the same as `axiomrl {name}`" for name in ALIASES]
    parts = ["usage: axiomrl zoo COMMAND [OPTIONS]", "\n".join(lines), "\n".join(aliases)]
    return "\n\n".join([*parts, "`axiomrl zoo COMMAND --help` explains one.\n"])


def _outcome_values(outcome: BenchmarkOutcome, output: Path) -> dict[str, Any]:
    from rl_training.zoo.seed_files import data_file

    keys = ("preset", "seeds", "seeds_asked", "last_mean", "last_interval_95", "last_lowest", "best_mean", "command")
    return {
        "output": str(output),
        "stopped": outcome.exit_code > 1,
        "results": [
            {**{key: record[key] for key in keys}, "file": str(data_file(output, record["preset"]))}
            for record in outcome.records
        ],
        "failed": [
            {"preset": task.preset, "seed": task.seed, "reason": reason, "log": str(task.log)}
            for task, reason in outcome.failed.items()
        ],
    }
