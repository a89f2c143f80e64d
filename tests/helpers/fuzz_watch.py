"""Runs a command in this process and says what it must never do: traceback, hang, execution, raw escapes, megabytes."""

from __future__ import annotations

import io
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from rl_training.cli.main import main

CPU_SECONDS, REAL_SECONDS = 20.0, 240.0
"""A command that computes for so long hangs; so does one that waits for so long, on a machine with other work."""
MAX_OUT, MAX_ERR = 5_000_000, 100_000
CANARY = "axiomrl_fuzz_canary"
_EXECUTIONS = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "pickle.find_class",
    "code.__new__",
)


class _TooLong(BaseException):
    """Not an Exception, so that nothing on the way takes it for an error."""


@dataclass
class Outcome:
    """How one command ended."""

    code: int | None
    out: str
    err: str
    problems: list[str] = field(default_factory=list)


_seen: list[str] = []
_active = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _active:
        return
    if event in _EXECUTIONS or (
        event == "subprocess.Popen" and "git" not in str(args[0]) and str(args[1][:1]) != "['git']"
    ):
        _seen.append(f"{event} {args!r:.200}")


def watch_executions() -> None:
    """Once per process: an audit hook cannot be taken away again."""
    sys.addaudithook(_audit)
    sys.meta_path.insert(0, _Canary())  # type: ignore[arg-type]


class _Canary:
    """A module that exists, and whose import is noticed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] == CANARY:
            _seen.append(f"import {name}")
            sys.modules[CANARY] = types.ModuleType(CANARY)


@contextmanager
def _time_limits() -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise _TooLong

    signals = {
        signal.SIGVTALRM: (signal.ITIMER_VIRTUAL, CPU_SECONDS),
        signal.SIGALRM: (signal.ITIMER_REAL, REAL_SECONDS),
    }
    before = {number: signal.signal(number, too_long) for number in signals}
    for timer, seconds in signals.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in signals.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def run_watched(argv: Sequence[str]) -> Outcome:
    """The command's exit code and output, and everything that is wrong with them."""
    global _active
    out, err, problems = io.StringIO(), io.StringIO(), []
    code: int | None = None
    _seen.clear()
    _active = True
    try:
        with redirect_stdout(out), redirect_stderr(err), _time_limits():
            code = main(list(argv))
    except _TooLong:
        problems.append("hang")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except Exception as error:
        problems.append(f"traceback: {error!r:.300}")
    finally:
        _active = False
    outcome = Outcome(code, out.getvalue(), err.getvalue(), problems)
    if "Traceback (most recent" in outcome.err or "bug in AxiomRL" in outcome.err:
        problems.append("traceback")
    if code not in (0, 1, 2, 3) and not problems:
        problems.append(f"exit code {code}")
    problems += [f"execution: {what}" for what in _seen]
    for name, text, limit in (("stdout", outcome.out, MAX_OUT), ("stderr", outcome.err, MAX_ERR)):
        if len(text) > limit:
            problems.append(f"{len(text):,} characters on {name}")
        if raw := {sign for sign in text if not sign.isprintable() and sign not in "\n\t"}:
            problems.append(f"raw {sorted(raw)!r:.100} on {name}")
    return outcome
