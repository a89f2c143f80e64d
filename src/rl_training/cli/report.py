"""`axiomrl report`."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from rl_training.cli.options import PATH, Flag, arg, choice, echo, print_notes, say, write_output
from rl_training.utils.errors import UserError

Format = Literal["text", "json", "csv", "html"]
_BY_SUFFIX: dict[str, Format] = {".html": "html", ".htm": "html", ".json": "json", ".csv": "csv"}


@dataclass
class Command:
    """Report on runs: scores over seeds, learning curves, what differs, and what looks wrong."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, arg("[RUNS]")] = (Path("runs"),)
    """Run folders, or folders of runs."""
    format: Annotated[Format | None, choice(*get_args(Format)), arg("FORMAT")] = None
    """text, json (all of it), csv (one row per run) or html (one page, offline); else as --output ends, else text."""
    json: Flag = False
    """The same as --format json."""
    output: Annotated[Path | None, PATH, arg("FILE")] = None
    """Write to this file. Without it, html goes to report.html in the named folder and the others are printed."""

    def run(self) -> int:
        from rl_training.zoo.report.export import csv_report, json_report
        from rl_training.zoo.report.model import build_report
        from rl_training.zoo.report.text import text_report
        from rl_training.zoo.run_records import find_runs

        if self.json and self.format not in (None, "json"):
            raise UserError(f"give --json or --format {self.format}, not both")
        named = _BY_SUFFIX.get(self.output.suffix.lower()) if self.output else None
        kind: Format = "json" if self.json else self.format or named or "text"
        records, skipped = find_runs(self.runs)
        for reason in skipped:
            say(f"skipped: {reason}")
        print_notes(note for record in records for note in record.notes)
        report = build_report(records, skipped, self.runs, datetime.now(UTC))
        if kind == "html":
            from rl_training.zoo.report.page import html_report

            output = self.output or Path(os.path.commonpath([path.absolute() for path in self.runs])) / "report.html"
            return _write(output, html_report(report, output.parent))
        text = {"text": text_report, "json": json_report, "csv": csv_report}[kind](report)
        if self.output is not None:
            return _write(self.output, text)
        echo(text, end="")
        return 0


def _write(path: Path, text: str) -> int:
    with suppress(OSError):  # then the writing says what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    write_output(path, text)
    echo(str(path))
    return 0
