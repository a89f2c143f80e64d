"""`axiomrl check-env`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from rl_training.cli.options import (
    WHOLE,
    Group,
    ImportModules,
    JsonOption,
    Settings,
    arg,
    import_modules,
    overrides_of,
    print_json,
)
from rl_training.utils.errors import UserError


@dataclass
class Command:
    """Check an environment: its API and spaces, seeding, episode ends, what a resume can bring back. Says what to mend, and how.

    Exit code 0 if nothing makes training impossible or wrong (warnings are allowed), 1 if something does.
    """

    env_id: Annotated[str, tyro.conf.Positional, arg("ENV_ID")]
    """The id of a registered environment, such as CartPole-v1."""
    output: Annotated[JsonOption, Group]
    set: Settings = ()
    """A key of the config's env section, e.g. --set env.kwargs.length=10; may be repeated."""
    steps: Annotated[int, WHOLE, arg("N")] = 1_000
    """How many random steps are taken."""
    seed: Annotated[int, WHOLE, arg("N")] = 0
    """Seed of the environment and of the actions."""
    import_modules: ImportModules = ()

    def run(self) -> int:
        from rl_training.envs.check import check_env

        settings = _env_section(overrides_of(self.set))
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be from 0 to {2**32 - 1}, got {self.seed}")
        import_modules(self.import_modules)
        report = check_env(self.env_id, settings=settings, steps=self.steps, seed=self.seed)
        if self.output.json:
            print_json(report.to_dict())
        else:
            print(report)
        return 0 if report.passed else 1


def _env_section(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`{"env.kwargs.length": 10}` as `{"kwargs": {"length": 10}}`."""
    section: dict[str, Any] = {}
    for key, value in overrides.items():
        first, *path = key.split(".")
        if first != "env" or not path:
            raise UserError(f"--set {key}: only keys of the env section mean something here, such as env.kwargs.NAME")
        place = section
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = value
    return section
