"""What a config dataclass can say about its fields: allowed ranges, extra checks, what they need, and their docstrings."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any


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


class Needs:
    """What another setting must be for this one to mean anything: `Annotated[int, Needs("distribution", "categorical")]`.

    Without it, a value that is not the default is refused. `above` is for numbers: `Needs("update_epochs", above=1)`. What is no
    setting is named in words, as in `Needs("the action space", "Box")`, and looked at by whoever knows it.
    """

    def __init__(self, key: str, *values: Any, above: float | None = None):
        assert bool(values) != (above is not None), "either values or a bound"
        self.key, self.values, self.above = key, values, above

    def problem(self, facts: Mapping[str, Any]) -> str | None:
        """Why the setting means nothing (a phrase for an error message), or None if it does, or if the key is not known."""
        if self.key not in facts:
            return None
        value = facts[self.key]
        if self.above is not None:
            met = not isinstance(value, int | float) or value > self.above  # what is no number is refused as such
        else:
            met = any(type(choice) is type(value) and choice == value for choice in self.values)
        if met:
            return None
        choices = " or ".join(map(as_yaml, self.values))
        asked = f"to {choices}" if self.above is None else f"above {self.above}"
        way_out = "" if self._is_fact else f", or set {self.key} {asked}"
        return f"means nothing while {self.key} is {as_yaml(value)}: leave it out{way_out}"

    @property
    def _is_fact(self) -> bool:
        return " " in self.key

    def __str__(self) -> str:
        """For the docs."""
        if self.above is not None:
            return f"Needs `{self.key}` above {self.above}."
        if self._is_fact:
            return f"Needs {self.key} to be {' or '.join(map(as_yaml, self.values))}."
        return f"Needs {' or '.join(f'`{self.key}: {as_yaml(value)}`' for value in self.values)}."


@dataclass(frozen=True)
class Unused:
    """An inherited field that a class has no use for, and why: `Annotated[float, Unused("there are no target networks")]`."""

    reason: str

    def problem(self, facts: Mapping[str, Any]) -> str | None:
        return f"means nothing here: {self.reason}. Leave it out"

    def __str__(self) -> str:
        """For the docs."""
        return f"Refused here: {self.reason}."


Condition = Needs | Unused


@functools.cache
def conditions(cls: type) -> dict[str, tuple[Condition, ...]]:
    """When the fields of a dataclass mean something; those that always do are left out.

    What a base class says holds for a subclass that declares the field again, with another default, and says nothing.
    """
    found: dict[str, tuple[Condition, ...]] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        own = vars(base).get("__annotations__", {})
        for name, hint in typing.get_type_hints(base, include_extras=True).items():
            if name in own and typing.get_origin(hint) is Annotated:
                stated = tuple(item for item in hint.__metadata__ if isinstance(item, Needs | Unused))
                found.update({name: stated} if stated else {})
    return found


def idle_fields(cls: type, facts: Mapping[str, Any]) -> dict[str, str]:
    """The fields of a dataclass that mean nothing beside the given values of fields, and why."""
    idle: dict[str, str] = {}
    for name, stated in conditions(cls).items():
        problems = [problem for condition in stated if (problem := condition.problem(facts))]
        idle.update({name: problems[0]} if problems else {})
    return idle


def as_yaml(value: object) -> str:
    """A choice as it is written in a config."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


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
