"""`axiomrl verify-resume`."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rl_training.cli.options import WHOLE, ConfigOptions, Group, JsonOption, Number, arg, print_json, say
from rl_training.utils.errors import UserError

SHORT_RUN = 20_000


@dataclass
class Command:
    """Train a short run twice and say whether both leave the same run folder: every tensor, every line of the logs.

    One of them is killed with SIGKILL at random moments and resumed in a new process each time. Exit code 0 if they are identical,
    1 if not, or if the run was too short to be killed as often as asked.
    """

    options: Annotated[ConfigOptions, Group]
    output: Annotated[JsonOption, Group]
    kills: Annotated[int, WHOLE, arg("N")] = 1
    """How many times the run is killed."""
    moments_seed: Number = None
    """Seed of the random moments; different every time by default."""

    def run(self) -> int:
        from rl_training.experiment.proof.resume import verify_resume
        from rl_training.experiment.run.build import complete_config

        if self.options.output_dir is not None:
            raise UserError("verify-resume trains in a temporary folder and keeps nothing: leave out --output-dir")
        if self.kills < 1:
            raise UserError(f"--kills must be at least 1, got {self.kills}")
        config, _ = complete_config(self._short_run())
        with tempfile.TemporaryDirectory(prefix="axiomrl-verify-") as folder:
            report = verify_resume(
                config,
                Path(folder),
                kills=self.kills,
                rng=random.Random(self.moments_seed),
                modules=self.options.import_modules,
                say=say,
            )
        if self.output.json:
            print_json(report.to_dict())
        else:
            verdict = "identical" if report.identical else "NOT identical"
            if report.identical and not report.proved:
                verdict = f"NOT PROVED, {report.asked} were asked for and the run is too short: give it more --total-timesteps"
            run = f"{config.algo} on {config.env_title}, {config.total_timesteps:,} steps"
            print(f"{run}, {report.kills} kills: {verdict}")
            print(f"compared: {report.arrays} tensors and arrays of the last checkpoint, and the two whole run folders")
            print(f"resume grades: {', '.join(report.grades) or 'none'}")
            for path in report.differences[:20]:
                print(f"differs: {path}")
        return 0 if report.proved else 1

    def _short_run(self) -> Any:
        """The config with about ten checkpoints in a short run, unless the user said how long."""
        chosen = self.options.resolve()
        extra: dict[str, Any] = {}
        if chosen.origins["total_timesteps"] != "command line":
            extra["total_timesteps"] = min(chosen.config.total_timesteps, SHORT_RUN)
        steps = extra.get("total_timesteps", chosen.config.total_timesteps)
        if chosen.origins["checkpoint.every"] != "command line":
            extra["checkpoint.every"] = max(steps // 10, 1)
        if chosen.origins["evaluation.every"] != "command line" and chosen.config.evaluation.every > 0:
            extra["evaluation.every"] = max(steps // 4, 1)
        return self.options.resolve(extra)
