"""`axiomrl check-algorithm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from rl_training.cli.options import (
    TEXT,
    Group,
    ImportModules,
    JsonOption,
    Number,
    Settings,
    arg,
    import_modules,
    overrides_of,
    print_json,
)


@dataclass
class Command:
    """Put an algorithm through the conformance suite: repeatable, resumable bit for bit, honest about its spaces.

    Exit code 0 if every check passes, 1 if not.
    """

    algo: Annotated[str, tyro.conf.Positional, arg("ALGO")]
    """The id of the algorithm, such as ppo."""
    output: Annotated[JsonOption, Group]
    set: Settings = ()
    """A hyperparameter, e.g. --set num_steps=16; may be repeated."""
    total_timesteps: Number = None
    """Length of each training; it must hold at least two iterations."""
    device: Annotated[str, TEXT, arg("DEVICE")] = "cpu"
    """cpu, cuda, cuda:N or mps."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        from rl_training.experiment.proof.conformance import check_algorithm

        import_modules(self.import_modules)
        report = check_algorithm(
            self.algo, total_timesteps=self.total_timesteps, hyperparams=overrides_of(self.set), device=self.device
        )
        if self.output.json:
            checks = {result.name: result.problem for result in report.results}
            print_json({"algo": self.algo, "passed": report.passed, "checks": checks})
        else:
            print(report)
        return 0 if report.passed else 1
