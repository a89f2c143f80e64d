"""`axiomrl eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from rl_training.cli.options import (
    WHOLE,
    EnvId,
    Flag,
    Group,
    ImportModules,
    JsonOption,
    Number,
    arg,
    echo,
    env_can_be_named,
    import_modules,
    print_json,
    print_notes,
)
from rl_training.utils.errors import UserError


@dataclass
class Command:
    """Evaluate a run or a checkpoint on complete episodes."""

    path: Annotated[Path, tyro.conf.Positional, arg("RUN|CHECKPOINT")]
    """A run folder (its newest checkpoint), a checkpoint, or a folder that agent.save wrote."""
    output: Annotated[JsonOption, Group]
    episodes: Annotated[int, WHOLE, arg("N")] = 20
    """How many episodes."""
    best: Flag = False
    """Take the run's best checkpoint instead of its newest."""
    stochastic: Flag = False
    """Sample actions instead of taking the most likely one."""
    seed: Number = None
    """Seed of the evaluation episodes; the run's seed by default."""
    env: EnvId = None
    """Another environment with the same spaces, e.g. a harder one; the run's own by default."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        from rl_training.api.agent import agent_of
        from rl_training.experiment.console.lines import evaluation_text
        from rl_training.experiment.run.runner import open_checkpoint

        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be from 0 to {2**32 - 1}, got {self.seed}")
        import_modules(self.import_modules)
        checkpoint, notes = open_checkpoint(self.path, best=self.best)
        print_notes(notes)
        agent = agent_of(checkpoint)
        with env_can_be_named(self.env):
            result = agent.evaluate(self.episodes, env=self.env, deterministic=not self.stochastic, seed=self.seed)
        env_id = self.env or agent.config.env_id
        if self.output.json:
            print_json({"checkpoint": str(checkpoint.path), "env_id": env_id, **result.to_dict()})
        else:
            echo(f"{agent.config.algo.upper()} on {env_id}, checkpoint {checkpoint.path}")
            echo(
                f"{evaluation_text(result)}; standard deviation {result.std:.1f}, mean length {result.mean_length:.1f}"
            )
        return 0
