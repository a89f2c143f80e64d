"""`axiomrl check-algorithm`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rl_training.cli.options import ImportModules, JsonOption, import_modules, print_json


@dataclass
class Command:
    """Put an algorithm through the conformance suite: repeatable, resumable bit for bit, honest about its spaces.

    Exit code 0 if every check passes, 1 if not.
    """

    algo: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGO")]
    """The id of the algorithm, such as ppo."""
    output: tyro.conf.OmitArgPrefixes[JsonOption]
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """A hyperparameter, e.g. --set num_steps=16; may be repeated."""
    total_timesteps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Length of each training; it must hold at least two iterations."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "cpu"
    """cpu, cuda, cuda:N or mps."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        from rl_training.experiment.config.loader import parse_override
        from rl_training.experiment.proof.conformance import check_algorithm

        import_modules(self.import_modules)
        hyperparams: dict[str, Any] = dict(parse_override(text) for text in self.set)
        report = check_algorithm(
            self.algo, total_timesteps=self.total_timesteps, hyperparams=hyperparams, device=self.device
        )
        if self.output.json:
            checks = {result.name: result.problem for result in report.results}
            print_json({"algo": self.algo, "passed": report.passed, "checks": checks})
        else:
            print(report)
        return 0 if report.passed else 1
