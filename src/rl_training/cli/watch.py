"""`axiomrl watch`."""

from __future__ import annotations

import shlex
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from rl_training.cli.options import Flag, Group, JsonOption, arg, echo, import_words, print_json, print_notes, program

if TYPE_CHECKING:
    from rich.console import Console

    from rl_training.zoo.run_follower import RunFollower

POLL_SECONDS = 0.5
QUIET_SECONDS = 60.0
"""Silence after which a run that calls itself running is suspected to be dead."""


@dataclass
class Command:
    """Follow a run from another terminal. It reads the run's folder only; leaving does not touch the run."""

    output: Annotated[JsonOption, Group]
    path: Annotated[Path, tyro.conf.Positional, arg("[RUN]")] = Path("runs")
    """A run folder, or a folder of runs: the one in it that was started or resumed last."""
    once: Flag = False
    """Show the run as it is now and leave; also what happens where the output is not a terminal."""

    def run(self) -> int:
        with suppress(KeyboardInterrupt):
            self._show()
        return 0

    def _show(self) -> None:
        from rich.console import Console

        from rl_training.experiment.console.panel import run_panel
        from rl_training.zoo.run_follower import RunFollower, newest_run

        run_dir, skipped = newest_run(self.path)
        print_notes(f"skipped {problem}" for problem in skipped)
        follower, console = RunFollower(run_dir), Console()
        print_notes(follower.notes)
        if self.output.json:
            print_json(follower.to_dict())
        elif self.once or follower.ended or not console.is_terminal:
            console.print(run_panel(follower.view, _footer(follower)))
        elif console.is_dumb_terminal:
            _follow_plainly(follower)
        else:
            _follow(follower, console)


def _follow(follower: RunFollower, console: Console) -> None:
    """Redraws the panel until the run ends; the last one stays on the screen."""
    from rich.live import Live

    from rl_training.experiment.console.panel import run_panel
    from rl_training.experiment.console.terminal import keys_unseen

    with keys_unseen(), Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(run_panel(follower.view, _footer(follower)), refresh=True)
            if follower.ended:
                return
            time.sleep(POLL_SECONDS)
            follower.poll()


def _follow_plainly(follower: RunFollower) -> None:
    """One line per report and evaluation, for terminals that cannot move their cursor."""
    from rl_training.experiment.console.panel import plain_evaluation, plain_line

    echo(plain_line(follower.view))
    while not follower.ended:
        time.sleep(POLL_SECONDS)
        before = follower.view.metrics, follower.view.evaluation
        follower.poll()
        if follower.view.evaluation not in (None, before[1]):
            echo(plain_evaluation(follower.view))
        if follower.view.metrics is not before[0]:
            echo(plain_line(follower.view))
    echo(_footer(follower))


def _footer(follower: RunFollower) -> str:
    imports = import_words(_imports_of(follower.metadata.get("command")))
    folder = f"run folder: {follower.run_dir}"
    resume = f"{program()} resume {shlex.quote(str(follower.run_dir))}{imports}"
    if not follower.ended:
        if follower.silence < QUIET_SECONDS:
            return f"{folder}\nCtrl-C leaves; the run goes on"
        return f"{folder}\nno news for {follower.silence:,.0f} s: busy, or killed; then continue it with: {resume}"
    reason = follower.metadata.get("stop_reason")
    lines = [folder]
    if reason:
        lines.append(f"{follower.view.status}: {reason}")
    if follower.view.status != "completed":
        lines.append(f"resume with: {resume}")
    return "\n".join(lines)


def _imports_of(command: object) -> list[str]:
    """What the run's own command imported, as its metadata has it."""
    words = [str(word) for word in command] if isinstance(command, list) else []
    after = [value for option, value in pairwise(words) if option == "--import"]
    return after + [word.removeprefix("--import=") for word in words if word.startswith("--import=")]
