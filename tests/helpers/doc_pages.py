"""Documentation pages as a list of code blocks, and the comparison of an output that a page shows with the real one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^[ ]*```(\w*)[^\n]*\n(.*?)^[ ]*```[ ]*$", re.MULTILINE | re.DOTALL)
_SAVE = re.compile(r"Save this as `([\w.-]+)`:\s*\Z")
_HEADING = re.compile(r"^#+ ", re.MULTILINE)
# A comment, which ends a command: two spaces or a line's begin, then #.
_COMMENT = re.compile(r"(?:^|\s\s|\s(?=# ))#.*$")

_TIME_STAMP = re.compile(r"\d{8}-\d{6}-\d{6}")
_DRAWN = re.compile(r"[▁▂▃▄▅▆▇█▓▒░·━─╭╮╰╯│]")
_NUMBER = re.compile(r"(?<![A-Za-z_\d])[-+]?\d[\d,.:]*(?:e[-+]?\d+)?[kM]?")
_ELISION = "…"


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    line: int
    section: int
    """How many headings stand before it."""
    save_as: str | None
    """The file it is to be written to, if the page says so."""


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The blocks of a page, of one language or of all."""
    text = page.read_text(encoding="utf-8")
    found, end, section = [], 0, 0
    for match in _BLOCK.finditer(text):
        before = text[end : match.start()]
        section += len(_HEADING.findall(before))
        save = _SAVE.search(before)
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], match[2], line, section, save[1] if save else None))
        end = match.end()
    return [block for block in found if language is None or block.language == language]


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def command_lines(block: Block) -> list[str]:
    """The commands of a block, without comments, continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", block.text).splitlines()
    return [command for line in lines if (command := _COMMENT.sub("", line).strip())]


def shows(shown: str, real: str, *, exactly: bool) -> str | None:
    """None if what a page shows occurs in the real output, otherwise the first line that does not.

    The lines must follow each other, except where the page has a line with `…` alone. Unless `exactly`, numbers, times and drawings
    may differ: they depend on the run and the machine.
    """
    form = str.rstrip if exactly else skeleton
    expected = [form(line) for line in shown.strip("\n").splitlines()]
    actual = [form(line) for line in real.splitlines()]
    start, begun = 0, False
    part: list[str] = []
    for line in [*expected, _ELISION]:
        if line.strip() != _ELISION:
            part.append(line)
            continue
        places = range(start, len(actual) - len(part) + 1)
        place = next((at for at in places if actual[at : at + len(part)] == part), None)
        if place is None:
            return _first_difference(part, actual[start:])
        start, part, begun = place + len(part), [], True
    assert begun
    return None


def skeleton(line: str) -> str:
    """A line without what changes from run to run; an exit code stays."""
    if line.startswith("exit code"):
        return line.rstrip()
    line = _DRAWN.sub(" ", _TIME_STAMP.sub("TIME", line))
    line = re.sub(r"step_\d+", "step_N", line)
    line = re.sub(r"\S*axiomrl(?= )", "axiomrl", line)
    line = _NUMBER.sub("0", line).replace("0 min 0 s", "0 s")
    return " ".join(line.split())


def _first_difference(part: list[str], actual: list[str]) -> str:
    """The line after the longest beginning of `part` that does occur."""
    longest = 0
    for at in range(len(actual)):
        same = next((i for i, line in enumerate(part) if at + i >= len(actual) or actual[at + i] != line), len(part))
        longest = max(longest, same)
    return part[min(longest, len(part) - 1)]
