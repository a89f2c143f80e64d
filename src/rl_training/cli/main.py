"""Finds the command, parses its arguments, and turns errors into one message and an exit code."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

from rl_training.cli import failures
from rl_training.utils.errors import AxiomError
from rl_training.utils.printable import message as bounded
from rl_training.utils.printable import quoted
from rl_training.utils.streams import abandon
from rl_training.version import __version__

# Name -> (module with a dataclass `Command`, one line of help). Modules load only when their command is called.
COMMANDS = {
    "train": ("rl_training.cli.train", "train a preset, a config, or any algorithm on any env"),
    "eval": ("rl_training.cli.evaluate", "evaluate a run or a checkpoint"),
    "resume": ("rl_training.cli.resume", "continue a run that was stopped or killed"),
    "watch": ("rl_training.cli.watch", "follow a run from another terminal"),
    "report": ("rl_training.cli.report", "report on runs: scores, curves, what looks wrong"),
    "zoo": ("rl_training.cli.zoo", "presets with their scores: list, show, run, benchmark"),
    "leaderboard": ("rl_training.cli.leaderboard", "rank algorithms, or compare runs to a baseline"),
    "verify-resume": ("rl_training.cli.verify_resume", "prove that a killed and resumed run ends the same"),
    "check-algorithm": (
        "rl_training.cli.check_algorithm",
        "put an algorithm through the conformance suite",
    ),
    "check-env": ("rl_training.cli.check_env", "check an environment, and say what to mend"),
    "doctor": ("rl_training.cli.doctor", "show what is installed and what is wrong, with the fix"),
}

WIDTH = 80
"""Columns of the help."""

WELCOME = f"""AxiomRL {__version__}: reinforcement learning you can trust and reproduce.

  axiomrl train                               train PPO on CartPole and solve it
  axiomrl train --algo sac --env Pendulum-v1  any algorithm, any environment
  axiomrl eval RUN                            evaluate what came out
  axiomrl resume RUN                          continue it, bit for bit
  axiomrl check-env ENV_ID                    check an environment
  axiomrl doctor                              check this machine

`axiomrl --help` lists all commands, `axiomrl COMMAND --help` explains one.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code (0 done, 2 the user's mistake, 1 a failure, 129/130/143 stopped by a signal)."""
    args = list(sys.argv[1:] if argv is None else argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be no text; stderr does so by itself
    if (odd := next((arg for arg in args if not _is_text(arg)), None)) is not None:
        return _fail(f"{quoted(odd)} is not UTF-8 text, which names of runs must be: rename the file or folder", 2)
    if not args:
        print(WELCOME, end="")
        return 0
    name, *rest = args
    if name in ("--version", "-V"):
        print(f"axiomrl {__version__}")
        return 0
    if name in ("--help", "-h", "help"):
        print(_help(), end="")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(COMMANDS)}"
        return _fail(f"unknown command {name!r}: {hint}", 2)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            command = parse_command(name, rest)
            try:
                return command.run()
            except SystemExit as error:  # not ours: an environment's, or that of another library
                return _fail(failures.left(error), 1)
    except AxiomError as error:
        if os.environ.get("AXIOMRL_TRACEBACK"):  # for the author of an environment or a callback
            traceback.print_exc()
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("stopped at once; the last checkpoint is intact", 130)
    except BrokenPipeError:  # the reader of a pipe (| head) has left
        abandon(sys.stdout)
        return 1
    except Exception as error:
        return _fail(*failures.unexpected(error))


def parse_command(name: str, args: Sequence[str]) -> Any:
    """The command's dataclass, filled from its arguments; exits with code 2 and the usage if they are wrong."""
    module = importlib.import_module(COMMANDS[name][0])
    if hasattr(module, "parse"):  # a command with commands of its own
        return module.parse(args)
    return parse_arguments(module.Command, f"axiomrl {name}", args)


def parse_arguments(command: type, prog: str, args: Sequence[str]) -> Any:
    """A dataclass filled from its arguments, which `prog` is called with."""
    import tyro

    config = (tyro.conf.FlagCreatePairsOff, tyro.conf.HelptextFromCommentsOff)
    shown = _Shown()
    try:
        with contextlib.redirect_stdout(shown):
            return tyro.cli(command, prog=prog, args=args, config=config)
    except SystemExit:  # the help was asked for, or the arguments are wrong
        print("\n".join(_filled(line) for line in shown.getvalue().split("\n")), end="")
        raise


class _Shown(io.StringIO):
    """What is printed, in colours where the real output takes them."""

    def isatty(self) -> bool:
        return sys.__stdout__ is not None and sys.__stdout__.isatty()


def _filled(line: str) -> str:
    """A line of the help within the width of a page: tyro prints a command's description as one long line."""
    return line if line.startswith(("╭", "│", "╰", " ")) or "\x1b" in line else textwrap.fill(line, WIDTH)


def _is_text(argument: str) -> bool:
    """Whether an argument can be written down: Python keeps bytes that are no UTF-8 as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in argument)


def _help() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "usage: axiomrl COMMAND [OPTIONS]\n\n" + "\n".join(lines) + "\n\n`axiomrl COMMAND --help` explains one.\n"


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one line, without the place in the code that gave it."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(message)).removeprefix("WARN: ")  # Gymnasium's are coloured
    _complain(f"warning: {bounded(text)}")


def _fail(message: str, code: int) -> int:
    _complain(f"error: {bounded(message)}")
    return code


def _complain(text: str) -> None:
    """A line on stderr; that nobody is there to read it must not end a run."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
