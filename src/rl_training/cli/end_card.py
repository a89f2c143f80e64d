"""What `train` and `resume` print at the end: the score beside its reference, where everything is, and what to try next."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rl_training.cli.options import echo, import_words, program

if TYPE_CHECKING:
    from rl_training.experiment.run.session import TrainResult


def print_card(
    headline: str, result: TrainResult, further: list[str] | None = None, imports: tuple[str, ...] = ()
) -> None:
    """`further` are commands to try next, beside those that every finished run gets; None names none at all.

    Opening the run again takes `imports`.
    """
    from rl_training.experiment.console.lines import evaluation_text
    from rl_training.experiment.run.view import number

    again, run_dir = import_words(imports), shlex.quote(str(result.run_dir))
    echo(f"\n{headline}")
    if result.evaluation is not None:
        echo(evaluation_text(result.evaluation))
    if result.best_checkpoint_path is not None:
        echo(f"best checkpoint ({number(result.best_score)}): {result.best_checkpoint_path}")
    echo(reference_text(result))
    if result.stop_reason is not None:
        echo(result.stop_reason if result.stop_reason.startswith("stopped") else f"stopped: {result.stop_reason}")
    echo(f"run folder: {result.run_dir}")
    if result.exit_code:
        echo(f"resume with: {program()} resume {run_dir}{again}")
    if result.exit_code or further is None:
        return
    echo("\nTry next:")
    for command in (f"report {run_dir} --format html", f"eval {run_dir} --episodes 100", *further):
        echo(f"  {program()} {command}{again if command.startswith(('eval', 'resume')) else ''}")


def reference_text(result: TrainResult) -> str:
    """The shipped score of the same config, and where a run that went all the way lies among its seeds."""
    from rl_training.experiment.run.reference import NO_REFERENCE
    from rl_training.experiment.run.view import number

    reference, evaluation = result.reference, result.evaluation
    if reference is None:
        return NO_REFERENCE
    low, high = reference.last_interval
    text = f"reference {number(reference.last_mean)} ({reference.seeds} seeds, {number(low)} to {number(high)})"
    if evaluation is None or result.stop_reason is not None:
        return text
    seeds = reference.at_end
    place = seeds.place(evaluation.mean, evaluation.ci_low, evaluation.ci_high)
    return f"{text}; this run is {place} the seeds' range, {number(seeds.low)} to {number(seeds.high)}"
