"""`axiomrl resume`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rl_training.cli.options import (
    TEXT,
    EnvId,
    Group,
    ImportModules,
    JsonOption,
    Number,
    Settings,
    arg,
    env_can_be_named,
    import_modules,
    overrides_of,
    print_json,
    print_notes,
)


@dataclass
class Command:
    """Continue a run from its newest sound checkpoint, or from the checkpoint you name.

    Hyperparameters, evaluations, checkpoints, logging and stopping may change, which the run's lineage records. What the saved
    state is built on (algorithm, environment, number of environments, networks, replay) may not.
    """

    path: Annotated[Path, tyro.conf.Positional, arg("RUN|CHECKPOINT")]
    """A run folder (continues in place) or one checkpoint (an older one continues in a new run folder)."""
    output: Annotated[JsonOption, Group]
    set: Settings = ()
    """Change a config key, e.g. --set hyperparams.learning_rate=1e-4 or --set evaluation.every=5000; may be repeated."""
    total_timesteps: Number = None
    """Train up to this many steps in all."""
    device: Annotated[str | None, TEXT, arg("DEVICE")] = None
    """Continue on another device."""
    env: EnvId = None
    """The environment of a run that got its own in Python; any other is another task and continues in a new run folder."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        from rl_training.cli.end_card import print_card
        from rl_training.cli.train import summary
        from rl_training.experiment.run.runner import resume_run
        from rl_training.zoo.reference import find_reference

        import_modules(self.import_modules)
        changes = overrides_of(self.set, {"total_timesteps": self.total_timesteps, "device": self.device})
        with env_can_be_named(self.env):
            result = resume_run(self.path, changes=changes, env_id=self.env, find_reference=find_reference)
        print_notes(result.notes)
        if self.output.json:
            print_json(summary(result))
            return result.exit_code
        how = "began again" if result.resume_grade is None else f"resumed (grade {result.resume_grade})"
        print_card(
            f"{how}; now at {int(result.metrics['global_step']):,} steps",
            result,
            [],
            self.import_modules,
        )
        return result.exit_code
