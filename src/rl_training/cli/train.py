"""`axiomrl train`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from rl_training.cli.end_card import print_card
from rl_training.cli.options import (
    TEXT,
    WHOLE,
    ConfigOptions,
    Flag,
    Group,
    JsonOption,
    arg,
    echo,
    print_json,
    print_notes,
    say,
)
from rl_training.cli.seeds import parse_seeds, train_side_by_side, with_seed
from rl_training.utils.errors import UserError

if TYPE_CHECKING:
    from rl_training.experiment.config.loader import ResolvedConfig
    from rl_training.experiment.run.session import TrainResult


@dataclass
class Command:
    """Train an agent. With nothing named: PPO on CartPole, which it solves."""

    options: Annotated[ConfigOptions, Group]
    output: Annotated[JsonOption, Group]
    seeds: Annotated[str | None, TEXT, arg("SEEDS")] = None
    """Train once per seed, such as 0-4 or 1,5-7."""
    jobs: Annotated[int, WHOLE, arg("N")] = 1
    """With --seeds: how many runs side by side, each in a process of its own."""
    dry_run: Flag = False
    """Print the resolved config, each value with its origin, and stop."""

    def run(self) -> int:
        if self.jobs < 1:
            raise UserError(f"--jobs must be at least 1, got {self.jobs}")
        if self.seeds is None and self.jobs > 1:
            raise UserError(f"--jobs is for several seeds, e.g. --seeds 0-4 --jobs {self.jobs}")
        if self.seeds is not None and self.options.seed is not None:
            raise UserError("give --seed or --seeds, not both")
        seeds = parse_seeds(self.seeds) if self.seeds is not None else None
        resolved = self.options.resolve()
        if self.dry_run:
            return self._show(resolved, seeds)
        if seeds is None:
            return self._train([resolved])
        configs = [with_seed(resolved, seed) for seed in seeds]
        if self.jobs == 1 or len(seeds) == 1:
            return self._train(configs)
        results, exit_code = train_side_by_side(configs, self.jobs, self.options.import_modules)
        if self.output.json:
            print_json([result["summary"] for result in results])
            return exit_code
        for result in results:
            print(result["card"], end="")
        evaluations = [result["summary"]["evaluation"] for result in results]
        _print_over_seeds([evaluation["mean"] for evaluation in evaluations if evaluation is not None])
        return exit_code

    def _train(self, configs: list[ResolvedConfig]) -> int:
        """One after the other, in this process; a signal ends them all."""
        from rl_training.experiment.run.runner import start_run
        from rl_training.zoo.reference import find_reference

        results: list[tuple[int, TrainResult]] = []
        for one in configs:
            result = start_run(one, find_reference=find_reference)
            results.append((one.config.seed, result))
            print_notes(result.notes)
            if not self.output.json:
                print_result(one, result, self.options.import_modules, alone=len(configs) == 1)
            if result.exit_code:
                if left := configs[len(results) :]:
                    say(f"not trained: {', '.join(f'seed {config.config.seed}' for config in left)}")
                break
        if self.output.json:
            summaries = [{"seed": seed, **summary(result)} for seed, result in results]
            print_json(summaries[0] if self.seeds is None else summaries)
        elif len(configs) > 1:
            _print_over_seeds([result.evaluation.mean for _, result in results if result.evaluation is not None])
        return results[-1][1].exit_code

    def _show(self, resolved: ResolvedConfig, seeds: list[int] | None) -> int:
        from rl_training.experiment.run.build import complete_config

        config, _ = complete_config(resolved)
        values = dict(_leaves(config.to_dict()))
        if seeds is not None:
            values["seed"], resolved.origins["seed"] = seeds, "command line"
        if self.output.json:
            print_json({key: {"value": value, "origin": _origin(resolved, key)} for key, value in values.items()})
            return 0
        width = max(len(key) for key in values)
        for key, value in values.items():
            echo(f"{key:<{width}}  {value!s:<24}  # {_origin(resolved, key)}")
        return 0


def summary(result: TrainResult) -> dict[str, Any]:
    """A result as JSON values."""
    return {
        "run_dir": str(result.run_dir),
        "checkpoint": str(result.checkpoint_path),
        "best_checkpoint": str(result.best_checkpoint_path) if result.best_checkpoint_path else None,
        "best_score": result.best_score,
        "reference": _reference_summary(result),
        "stop_reason": result.stop_reason,
        "resume_grade": result.resume_grade,
        "notes": list(result.notes),
        "evaluation": result.evaluation.to_dict() if result.evaluation else None,
        "metrics": result.metrics,
    }


def _reference_summary(result: TrainResult) -> dict[str, Any] | None:
    if result.reference is None:
        return None
    reference = result.reference
    scores = {"last_mean": reference.last_mean, "last_interval_95": list(reference.last_interval)}
    return {"preset": reference.preset, **scores, "last_scores": list(reference.last_scores)}


def print_result(
    resolved: ResolvedConfig, result: TrainResult, imports: tuple[str, ...] = (), *, alone: bool = True
) -> None:
    """The card at the end: what was done, how it compares, where it is, and, for a run `alone`, what to try next."""
    config = resolved.config
    seconds = result.metrics.get("time/elapsed")
    steps, took = int(result.metrics["global_step"]), f" in {seconds:.0f} s" if seconds is not None else ""
    print_card(
        f"{config.algo.upper()} on {config.env_title}, seed {config.seed}: {steps:,} steps{took}",
        result,
        [
            f"resume {shlex.quote(str(result.run_dir))} --total-timesteps {2 * config.total_timesteps}",
            "train ppo/pendulum",
        ]
        if alone
        else None,
        imports,
    )


def _print_over_seeds(means: list[float]) -> None:
    if len(means) > 1:
        print(f"\n{len(means)} seeds: mean {fmean(means):.1f}, lowest {min(means):.1f}, highest {max(means):.1f}")


def _leaves(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in values.items():
        key = f"{prefix}{name}"
        leaves += _leaves(value, f"{key}.") if isinstance(value, dict) and value else [(key, value)]
    return leaves


def _origin(resolved: ResolvedConfig, key: str) -> str:
    """Where a value of the complete config comes from; a part of a given value comes from where that one stands."""
    from rl_training.experiment.config import loader

    if (given := resolved.origins.get(key)) is not None:
        return given
    while "." in key:
        key = key.rpartition(".")[0]
        if key != "hyperparams" and key in resolved.origins:
            return resolved.origins[key]
    return loader.ALGORITHM_DEFAULT if key == "hyperparams" else loader.DEFAULT
