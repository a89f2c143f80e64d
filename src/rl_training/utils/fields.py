"""What a config dataclass can say about its fields: allowed ranges, extra checks, and their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Range:
    """Bounds of a number, used as `Annotated[float, Range(ge=0, le=1)]`.

    On `tuple[int, ...]` it bounds every element; on `float | Schedule` the number, or the start and the end.
    """

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def problem(self, value: float) -> str | None:
        """What is wrong with `value` (a phrase for an error message), or None if it lies inside."""
        inside = (
            (self.ge is None or value >= self.ge)
            and (self.gt is None or value > self.gt)
            and (self.le is None or value <= self.le)
            and (self.lt is None or value < self.lt)
        )
        return None if inside else f"must be {self}, got {value!r}"

    def __str__(self) -> str:
        bounds = ((">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt))
        return " and ".join(f"{sign} {bound}" for sign, bound in bounds if bound is not None)


@dataclass(frozen=True)
class Check:
    """A rule for a text field, used as `Annotated[str, Check(function)]`.

    The function returns a phrase that says what is wrong, or None.
    """

    problem: Callable[[str], str | None]


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The string literal under each field of the dataclass `cls` (its own and inherited), on one line each.

    These strings are the one source of command-line help and of docs/config-schema.md.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (class_def,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(class_def, ast.ClassDef)
        for statement, following in zip(class_def.body, class_def.body[1:]):
            if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
                continue
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = following.value.value
                if isinstance(text, str):
                    docs[statement.target.id] = " ".join(text.split())
    return {field.name: docs[field.name] for field in dataclasses.fields(cls) if field.name in docs}
