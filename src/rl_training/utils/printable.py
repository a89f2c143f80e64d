"""Text from files, names and errors on its way out: what a terminal, a spreadsheet or a message must not get raw.

A folder's name, a config's value or a line of a log may hold escape sequences that rewrite the screen, marks that turn text round,
half a surrogate that cannot be printed at all, a formula for a spreadsheet, or ten megabytes. HTML has its own place
(`zoo/report/markup.py`), which builds on this one.
"""

from __future__ import annotations

from typing import Any, Final

MAX_MESSAGE: Final = 4000
"""Longest error message; what goes beyond is left out of its middle."""


def printable(text: str) -> str:
    """The text with every character that is not printable written out (`\\x1b`, `\\u202e`); line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in "\n\t" else _written_out(sign) for sign in text)


def one_line(text: str) -> str:
    """The same without line ends and tabs, for a cell or a title."""
    return printable(text.replace("\n", " ").replace("\t", " "))


def quoted(value: object, limit: int = 60) -> str:
    """A value for an error message: its repr on one line, shortened."""
    try:
        text = repr(value[:limit] if isinstance(value, str | bytes) else value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; a list inside itself
        text = f"a {type(value).__name__} too large to show"
    cut = len(text) > limit or (isinstance(value, str | bytes) and len(value) > limit)
    return f"{text[: limit - 3]}..." if cut else text


def message(text: str) -> str:
    """An error message as it may be shown: printable, and not longer than a screen or two."""
    if len(text) > MAX_MESSAGE:
        start, end = MAX_MESSAGE * 3 // 4, MAX_MESSAGE // 8
        text = f"{text[:start]} … ({len(text) - start - end:,} characters left out) … {text[-end:]}"
    return printable(text)


def csv_cell(value: Any) -> Any:
    """A cell for a spreadsheet: text that it would take for a formula is marked as text."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _written_out(sign: str) -> str:
    code = ord(sign)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
