"""`axiomrl resume`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rl_training.cli.options import (
    TEXT,
    Group,
    ImportModules,
    JsonOption,
    Number,
    arg,
    import_modules,
    print_json,
    print_notes,
)


@dataclass
class Command:
    """Continue a run from its newest sound checkpoint, or from the checkpoint you name."""

    path: Annotated[Path, tyro.conf.Positional, arg("RUN|CHECKPOINT")]
    """A run folder (continues in place) or one checkpoint (an older one continues in a new run folder)."""
    output: Annotated[JsonOption, Group]
    total_timesteps: Number = None
    """Train further than the config says."""
    device: Annotated[str | None, TEXT, arg("DEVICE")] = None
    """Continue on another device."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        from rl_training.cli.end_card import print_card
        from rl_training.cli.train import summary
        from rl_training.experiment.run.runner import resume_run
        from rl_training.zoo.reference import find_reference

        import_modules(self.import_modules)
        result = resume_run(
            self.path, total_timesteps=self.total_timesteps, device=self.device, find_reference=find_reference
        )
        print_notes(result.notes)
        if self.output.json:
            print_json(summary(result))
            return result.exit_code
        print_card(
            f"resumed (grade {result.resume_grade}); now at {int(result.metrics['global_step']):,} steps",
            result,
            [],
            self.import_modules,
        )
        return result.exit_code
