"""Options that several commands share, and how they become overrides of the config."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from rl_training.utils.coerce import did_you_mean
from rl_training.utils.disk import replace_file
from rl_training.utils.errors import EnvCreationError, UserError
from rl_training.utils.printable import printable
from rl_training.utils.safe_files import require_replaceable
from rl_training.utils.streams import abandon
from rl_training.utils.user_code import import_modules as import_modules

if TYPE_CHECKING:
    from rl_training.experiment.config.loader import ResolvedConfig

DEFAULT_PRESET = "ppo/cartpole"
DEFAULT_ALGO = "ppo"
_SAYS_NOTHING = ("None", "False", "")


def arg(metavar: str | None = None, *, name: str | None = None, help: str | None = None) -> Any:
    """How an option looks in the help: its value's name, and its default only where that says something."""
    hint = lambda label: "" if label in _SAYS_NOTHING else f"(default: {label})"  # noqa: E731
    return tyro.conf.arg(name=name, metavar=metavar, help=help, help_behavior_hint=hint)


def _value(kind: Callable[[str], Any], expected: str) -> Any:
    """One value of an option. tyro's own reading of `int | None` would take the word None, and speak of it in its errors."""

    def read(words: list[str]) -> Any:
        try:
            return kind(words[0])
        except ValueError:
            raise ValueError(f"expected {expected}, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="VALUE",
        instance_from_str=read,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )


def choice(*choices: str) -> Any:
    """One of these words, for an option that has no default."""
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="VALUE",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )


WHOLE = _value(int, "a whole number")
NUMBER = _value(float, "a number")
TEXT = _value(str, "text")
PATH = _value(Path, "a path")

Flag = Annotated[bool, arg()]
Number = Annotated[int | None, WHOLE, arg("N")]
Settings = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, arg("KEY=VALUE")]
EnvId = Annotated[str | None, TEXT, arg("ENV_ID")]
Group = tyro.conf.arg(name="")
"""For a dataclass of options inside a command: they stand among the command's own."""
ImportModules = Annotated[
    tuple[str, ...],
    tyro.conf.UseAppendAction,
    arg(
        "MODULE|FILE",
        name="import",
        help="Import a Python module or file first, which registers environments, algorithms or wrappers; may be repeated.",
    ),
]


@dataclass
class ConfigOptions:
    """Which config, and what to change in it."""

    preset: Annotated[str | None, TEXT, arg("[PRESET|ALGO]"), tyro.conf.Positional] = None
    """A preset such as ppo/cartpole (the default), or an algorithm such as sac with --env."""
    algo: Annotated[str | None, TEXT, arg("ALGO")] = None
    """An algorithm with its own defaults, e.g. --algo sac --env Pendulum-v1; on top of a preset or file: instead of its own."""
    env: EnvId = None
    """A Gymnasium environment; on top of a preset or file: instead of its own."""
    config: Annotated[Path | None, PATH, arg("FILE")] = None
    """A YAML config file instead of a preset."""
    set: Settings = ()
    """Change any config key, e.g. --set hyperparams.learning_rate=1e-3; may be repeated."""
    seed: Number = None
    """Seed of every random generator."""
    total_timesteps: Number = None
    """Environment steps to train for."""
    num_envs: Number = None
    """Environments stepped side by side."""
    device: Annotated[str | None, TEXT, arg("DEVICE")] = None
    """auto, cpu, cuda, cuda:N or mps."""
    output_dir: Annotated[str | None, TEXT, arg("FOLDER")] = None
    """Folder in which the run directory is made."""
    import_modules: ImportModules = ()

    def resolve(self, extra: Mapping[str, Any] | None = None) -> ResolvedConfig:
        """The config with its origins; `extra` wins over what the command line says."""
        from rl_training.experiment.config.loader import resolve

        if self.preset is not None and self.config is not None:
            raise UserError(f"give a preset or --config, not both (got {self.preset!r} and {str(self.config)!r})")
        if self.preset is not None and self.preset.endswith((".yaml", ".yml")):
            raise UserError(f"a config file is named with --config: axiomrl train --config {self.preset}")
        import_modules(self.import_modules)
        source, algo = self._source()
        flags = {"algo": algo, "env_id": self.env, "seed": self.seed, "total_timesteps": self.total_timesteps}
        flags |= {"num_envs": self.num_envs, "device": self.device, "output_dir": self.output_dir}
        return resolve(source, {**overrides_of(self.set, flags), **(extra or {})})

    def _source(self) -> tuple[Path | str | None, str | None]:
        """(file or preset, or None for an algorithm's defaults; the algorithm that is asked for)."""
        if self.config is not None:
            return self.config, self.algo
        if self.preset is not None and "/" in self.preset:
            return self.preset, self.algo
        if self.preset is None and self.algo is None and self.env is None:
            return DEFAULT_PRESET, None
        algo = self.algo or DEFAULT_ALGO
        if self.preset is not None:
            algo = _algorithm(self.preset)
            if self.algo not in (None, algo):
                raise UserError(f"two algorithms are named, {self.preset!r} and --algo {self.algo}: leave one out")
        elif self.algo is not None:
            _algorithm(algo)
        if self.env is None and not any(text.partition("=")[0].strip() == "env_id" for text in self.set):
            raise UserError(
                f"{algo} needs an environment, e.g. axiomrl train --algo {algo} --env {_example_env(algo)}; "
                f"`axiomrl zoo list --algo {algo}` shows its presets"
            )
        return None, algo


def _algorithm(name: str) -> str:
    from rl_training.experiment.registry import ALGORITHMS

    if name in ALGORITHMS:
        return name
    from rl_training.experiment.config.presets import preset_names

    hint = did_you_mean(name, [*ALGORITHMS.names(), *preset_names()])
    if not hint:
        hint = (
            f"; algorithms: {', '.join(ALGORITHMS.names())}; presets are named as in ppo/cartpole (`axiomrl zoo list`)"
        )
    raise UserError(f"no algorithm or preset {name!r}{hint}{ALGORITHMS.way_out}")


def _example_env(algo: str) -> str:
    """An environment that suits an algorithm: that of its first preset."""
    from rl_training.experiment.config.loader import resolve
    from rl_training.experiment.config.presets import preset_names

    own = [name for name in preset_names() if name.startswith(f"{algo}/")]
    first = next((name for name in own if name.endswith(("/cartpole", "/pendulum"))), own[0] if own else None)
    return "CartPole-v1" if first is None else resolve(first).config.env_id


def overrides_of(settings: Iterable[str], flags: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What --set and the options of the same meaning say, by config key. A key that is given twice is a mistake, not a riddle."""
    from rl_training.experiment.config.loader import parse_override

    given = {key: value for key, value in (flags or {}).items() if value is not None}
    options = {key: _OPTION_OF.get(key, f"--{key.replace('_', '-')}") for key in given}
    for text in settings:
        key, value = parse_override(text)
        if key in given and given[key] != value:
            other = options.get(key, "another --set")
            raise UserError(f"{key} is given twice, by --set {text} and by {other}: leave one out")
        given[key] = value
    return given


_OPTION_OF = {"env_id": "--env"}


@dataclass
class JsonOption:
    """Output for scripts."""

    json: Flag = False
    """Print the result as JSON on stdout."""


@contextmanager
def env_can_be_named(env_id: str | None) -> Iterator[None]:
    """Adds to the error over an unknown environment that --env names one: a run may have got its own in Python."""
    try:
        yield
    except EnvCreationError as error:
        if env_id is not None or "unknown environment" not in str(error):
            raise
        raise EnvCreationError(
            f"{error}\nFor a run that got its environment in Python: --env ENV_ID names it"
        ) from error


def echo(text: str, end: str = "\n") -> None:
    """Text of the result on stdout. Names, settings and reasons come from files, so nothing in it may steer the terminal."""
    _write(sys.stdout, printable(text) + end)


def say(text: str) -> None:
    """A line on stderr, at once: stdout is for the result."""
    _write(sys.stderr, f"{printable(text)}\n")


def print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        say(f"note: {note}")


def print_json(value: Any) -> None:
    _write(sys.stdout, f"{json.dumps(value, indent=2)}\n")


def _write(stream: IO[str], text: str) -> None:
    """Writes at once. Where the reader of a pipe (`| head`) has left, the command goes on to its end in silence."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        abandon(stream)


def write_output(path: Path, text: str) -> None:
    """Writes a result to the file that --output names; only a regular file is ever replaced."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it, e.g. --output {path / 'report.html'}")
    require_replaceable(path)
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise UserError(f"cannot write --output {path}: {error.strerror}. Name another file") from error


def import_words(names: Iterable[str]) -> str:
    """What a printed command takes besides, so that it finds what the run needs: ` --import my_env.py`."""
    return "".join(f" --import {shlex.quote(name)}" for name in names)


def program() -> str:
    """How the user can call us from here: by name, or by the path where the name is not on the PATH."""
    beside = Path(sys.executable).parent / "axiomrl"
    if shutil.which("axiomrl") is not None or not beside.exists():
        return "axiomrl"
    try:
        return str(beside.relative_to(Path.cwd()))
    except ValueError:
        return str(beside)
