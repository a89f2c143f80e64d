"""Options that several commands share, and how they become overrides of the config."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from rl_training.utils.errors import UserError

if TYPE_CHECKING:
    from rl_training.experiment.config.loader import ResolvedConfig

DEFAULT_PRESET = "ppo/cartpole"

ImportModules = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(
        name="import",
        metavar="MODULE|FILE",
        help="Import a Python module or file first, which registers environments, algorithms or wrappers; may be repeated.",
    ),
]


@dataclass
class ConfigOptions:
    """Which config, and what to change in it."""

    preset: Annotated[str | None, tyro.conf.arg(metavar="[PRESET]"), tyro.conf.Positional] = None
    """A preset such as ppo/cartpole (the default)."""
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """A YAML config file instead of a preset."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="KEY=VALUE")] = ()
    """Change any config key, e.g. --set hyperparams.learning_rate=1e-3; may be repeated."""
    seed: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Seed of every random generator."""
    total_timesteps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Environment steps to train for."""
    num_envs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Environments stepped side by side."""
    device: Annotated[str | None, tyro.conf.arg(metavar="DEVICE")] = None
    """auto, cpu, cuda, cuda:N or mps."""
    output_dir: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Folder in which the run directory is made."""
    import_modules: ImportModules = ()

    def resolve(self, extra: Mapping[str, Any] | None = None) -> ResolvedConfig:
        """The config with its origins; flags win over --set, `extra` over both."""
        from rl_training.experiment.config.loader import parse_override, resolve

        if self.preset is not None and self.config is not None:
            raise UserError(f"give a preset or --config, not both (got {self.preset!r} and {str(self.config)!r})")
        if self.preset is not None and self.preset.endswith((".yaml", ".yml")):
            raise UserError(f"a config file is named with --config: axiomrl train --config {self.preset}")
        import_modules(self.import_modules)
        overrides: dict[str, Any] = dict(parse_override(text) for text in self.set)
        for key in ("seed", "total_timesteps", "num_envs", "device", "output_dir"):
            value = getattr(self, key)
            if value is not None:
                overrides[key] = value
        return resolve(self.config or self.preset or DEFAULT_PRESET, {**overrides, **(extra or {})})


@dataclass
class JsonOption:
    """Output for scripts."""

    json: bool = False
    """Print the result as JSON on stdout."""


def import_modules(names: tuple[str, ...]) -> None:
    """Imports what the user named on the command line: modules, also from the current folder, and files. Configs cannot do that."""
    if names and "" not in sys.path:
        sys.path.insert(0, "")  # as `python` itself does; an installed command does not
    for name in names:
        try:
            if name.endswith(".py"):
                _import_file(Path(name).resolve())
            else:
                importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"--import {name}: {error}") from error


def _import_file(path: Path) -> None:
    """As `python FILE` does: its folder is searched for modules from then on. So other processes can import it by its name too."""
    if not path.is_file():
        raise UserError(f"--import {path}: no such file")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise UserError(
            f"--import {path}: another module is called {path.stem!r} ({module.__file__ or 'built in'}); rename the file"
        )


def say(text: str) -> None:
    """A line on stderr, at once: stdout is for the result."""
    print(text, file=sys.stderr, flush=True)


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def program() -> str:
    """How the user can call us from here: by name, or by the path where the name is not on the PATH."""
    beside = Path(sys.executable).parent / "axiomrl"
    if shutil.which("axiomrl") is not None or not beside.exists():
        return "axiomrl"
    try:
        return str(beside.relative_to(Path.cwd()))
    except ValueError:
        return str(beside)
