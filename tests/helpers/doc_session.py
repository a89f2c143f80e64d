"""Runs the code of a documentation page, block by block, in a folder of its own.

Commands run inside the test's process, so that torch is loaded once. What would take long is done with a small budget, and what
cannot be done here is only checked; `Session.run` says which.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.doc_pages import Block, blocks, command_lines, shows
from rl_training.cli.main import main, parse_command
from rl_training.experiment.config.loader import parse_override, resolve
from rl_training.experiment.registry import algorithm_info
from rl_training.zoo.benchmark import plan
from rl_training.zoo.manifest import load_manifest

ROOT = Path(__file__).parents[2]

NOT_RUN = {
    "pip": "installs what the tests have already",
    "source": "changes the reader's shell only",
    "tensorboard": "a server that does not end",
}
"""Programs in the pages that are not run, and why."""
SMALL = ("--set", "evaluation.episodes=2", "--set", "evaluation.every=500", "--set", "checkpoint.every=500")
SMALL_STEPS = 1_100
"""Just beyond the `learning_starts` of the off-policy presets, so that they learn a little."""
SHORT_STEPS = 50_000
"""An on-policy training of no more steps than this takes seconds and is run as it is."""
_RUN_NAME = re.compile(r"((?:[\w.-]+/)*\w+__[\w.-]+?__seed\d+__)\d{8}-\d{6}-\d{6}")
_ECHO = '; echo "exit code $?"'


@dataclass(frozen=True)
class Outcome:
    """What became of a command."""

    code: int | None
    """Its exit code; None if it was not run."""
    output: str = ""
    comparable: bool = False
    """Whether its words can be compared with what the page shows: it and the runs it reads had the page's budget."""
    exact: bool = False
    """Whether its numbers can be, too: they come from the shipped data files."""


@dataclass
class Kitchen:
    """What several pages need and takes seconds to make, so it is made once and copied."""

    folder: Path
    _made: dict[str, tuple[Path, str]] = field(default_factory=dict)

    def serve(self, dish: Any, target: Path, make: Callable[[Path], str]) -> str:
        """Copies the dish into `target`, made first where that has not happened yet; returns what making it printed."""
        key = repr(dish)
        if key not in self._made:
            folder = Path(tempfile.mkdtemp(dir=self.folder)) / "dish"
            self._made[key] = folder, make(folder)
        source, output = self._made[key]
        shutil.copytree(source, target, dirs_exist_ok=True)
        return output.replace(f"{source}/", f"{target}/")


class Session:
    """One page's commands and code, in order, in one folder."""

    def __init__(self, folder: Path, kitchen: Kitchen):
        self.folder, self.kitchen = folder, kitchen
        self.names: dict[str, Any] = {"__name__": "page"}
        self.small_runs: set[Path] = set()
        """Runs that were made with smaller budgets than the page's."""

    def play(self, page: Path) -> None:
        """Runs a whole page; AssertionError names the line that does not work."""
        found = blocks(page)
        last: Outcome | None = None
        section = -1
        for block in found:
            place = f"{page.name}:{block.line}"
            if block.save_as is not None:
                (self.folder / block.save_as).write_text(block.text, encoding="utf-8")
            elif block.language == "python":
                self.execute(block)
            elif block.language == "bash":
                last, section = self._run_block(block, place), block.section
            elif block.language == "text" and block.text.startswith("$ "):
                self._check_transcript(block, place)
            elif block.language == "text" and last is not None and block.section == section and last.comparable:
                missing = shows(block.text, last.output, exactly=last.exact)
                assert missing is None, f"{place}: the page shows {missing!r}; the command prints\n{last.output}"
            if block.language != "bash":
                last = None

    def execute(self, block: Block, instead: Mapping[str, str] | None = None) -> None:
        """Python code, in the names that the page's code before it has left; `instead` replaces parts of it."""
        code = self._with_real_runs(block.text)
        for part, replacement in (instead or {}).items():
            code = code.replace(part, replacement)
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, f"line {block.line}", "exec"), self.names)

    def _run_block(self, block: Block, place: str) -> Outcome | None:
        """The block's last command that was run."""
        last = None
        for line in command_lines(block):
            outcome = self.run(line)
            if outcome.code is None:
                continue
            allowed = (0, 3) if "--fail-on-regression" in line else (0,)
            assert outcome.code in allowed, f"{place}: {line}: exit code {outcome.code}\n{outcome.output}"
            last = outcome
        return last

    def _check_transcript(self, block: Block, place: str) -> None:
        """`$ command` and what it prints, word for word."""
        line, _, shown = block.text.partition("\n")
        outcome = self.run(line.removeprefix("$ "))
        assert outcome.code == (2 if shown.startswith("error:") else 0), f"{place}: {outcome}"
        missing = shows(shown, outcome.output, exactly=True)
        assert missing is None, f"{place}: the page shows {missing!r}; the command prints\n{outcome.output}"

    def run(self, line: str) -> Outcome:
        """One command line, as it is, with a small budget, or only checked."""
        line, wants_code = line.removesuffix(_ECHO), line.endswith(_ECHO)
        words = shlex.split(self._with_real_runs(line))
        program, *arguments = words
        if program == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            assert re.search(rf"^{arguments[0]}:", makefile, re.MULTILINE), f"no target {arguments[0]}"
            if arguments != ["train"]:
                return Outcome(None)
            program, arguments = "axiomrl", ["train"]  # what that target does after the installation
        if program in NOT_RUN:
            return Outcome(None)
        assert Path(program).name == "axiomrl", f"no way to check {program!r}: see NOT_RUN"
        outcome = self._axiomrl([part for word in arguments for part in self._expanded(word)])
        if wants_code:
            outcome = replace(outcome, output=f"{outcome.output}exit code {outcome.code}\n")
        return outcome

    def _axiomrl(self, words: list[str]) -> Outcome:
        name = " ".join(words[:2]) if words[0] == "zoo" else words[0]
        if name in ("train", "zoo run") and "--dry-run" not in words:
            return self._train(words)
        if name == "zoo benchmark":
            return self._benchmark(words)
        if name == "verify-resume":
            # It starts and kills processes for half a minute; tests/faults and tests/unit/cli run it.
            parse_command(name, words[1:])
            return Outcome(None)
        if name == "resume":
            return self._resume(words)
        outcome = call(words)
        paths = [Path(word) for word in words[1:] if Path(word).is_dir()] or [Path("runs")]
        shipped = name in ("zoo list", "zoo show") or (name == "leaderboard" and not any(map(os.path.isdir, words)))
        return replace(outcome, comparable=shipped or not self._reads_small_runs(paths), exact=shipped)

    def _resume(self, words: list[str]) -> Outcome:
        """One more rollout where the page asks for more steps. The run is finished here, so the words at the end are other ones."""
        if "--total-timesteps" in words:
            at = words.index("--total-timesteps") + 1
            words = [*words[:at], str(_steps(Path(words[1])) + 1), *words[at + 1 :]]
        return call(words)

    def _reads_small_runs(self, paths: list[Path]) -> bool:
        return any(run.is_relative_to(path) for run in self.small_runs for path in paths)

    def _train(self, words: list[str]) -> Outcome:
        command = parse_command(words[0], words[1:])
        config = command.options.resolve().config
        target = Path(config.output_dir)
        same = config.to_dict() | {"output_dir": None}
        default = resolve("ppo/cartpole").config.to_dict() | {"output_dir": None}
        short = same == default or config.total_timesteps <= SHORT_STEPS
        if short and algorithm_info(config.algo).trainer == "on_policy" and command.seeds is None:
            output = self.kitchen.serve(same, target, lambda folder: checked([*words, "--output-dir", str(folder)]))
            return Outcome(0, output, comparable=True)
        before = set(_runs(target))
        outcome = call([*words, "--total-timesteps", str(SMALL_STEPS), *SMALL])
        self.small_runs |= set(_runs(target)) - before
        return outcome

    def _benchmark(self, words: list[str]) -> Outcome:
        """The smoke benchmark with one seed.

        The others take minutes to hours: each of their configs is resolved, and their folder is filled with the smoke benchmark's
        runs, for the commands that follow.
        """
        command = parse_command(words[0], words[1:])
        manifest = load_manifest(command.manifest)
        overrides = dict(parse_override(text) for text in command.set)
        overrides.pop("device", None)  # this machine may have no GPU
        plan(replace(manifest, overrides={**manifest.overrides, **overrides}), self.folder / "planned")
        small = ["zoo", "benchmark", "smoke", "--seeds", "0", "--episodes", "2", "--jobs", "1", "--output"]
        target = command.output or Path("runs/zoo") / manifest.name
        self.kitchen.serve(small, target, lambda folder: checked([*small, str(folder)]))
        self.small_runs.add(target / "runs")
        return Outcome(0)

    def _with_real_runs(self, text: str) -> str:
        """The runs that the page names, by the names they have here; RUN and RUNS are the newest one and all of them."""

        def newest(match: re.Match[str]) -> str:
            found = self._expanded(f"{match[1]}*")
            assert found, f"no run {match[0]} here"
            return found[-1]

        text = _RUN_NAME.sub(newest, text)
        if re.search(r"\bRUN\b", text):
            text = re.sub(r"\bRUN\b", self._expanded("runs/*__seed*")[-1], text)
        return text

    def _expanded(self, word: str) -> list[str]:
        """A word as the shell hands it over: `*` becomes the file names that fit."""
        return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def call(words: list[str]) -> Outcome:
    """`axiomrl WORDS` in this process."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = main(words)
        except SystemExit as leaving:  # --help, or a mistake in the arguments
            code = int(leaving.code or 0)
    return Outcome(code, output.getvalue())


def checked(words: list[str]) -> str:
    """What the command prints; it must succeed."""
    outcome = call(words)
    assert outcome.code == 0, outcome.output
    return outcome.output


def _runs(folder: Path) -> list[Path]:
    return sorted(folder.glob("*__seed*"))


def _steps(run: Path) -> int:
    metadata = json.loads((run / "metadata.json").read_text(encoding="utf-8"))
    return int(metadata["latest_metrics"]["global_step"])
