"""Ranges and field docstrings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import pytest

from rl_training.utils.coerce import FieldError, build_dataclass, check_fields, without_idle, working_values
from rl_training.utils.fields import Needs, Range, Unused, conditions, field_docs


@pytest.mark.parametrize(
    ("bounds", "inside", "outside"),
    [
        (Range(ge=0), [0, 0.5, 10**20], [-1, -1e-9]),
        (Range(gt=0), [1e-9, 3], [0, -1]),
        (Range(le=1), [1, -5], [1.0001]),
        (Range(ge=0, lt=2**32), [0, 2**32 - 1], [-1, 2**32]),
    ],
)
def test_range_holds_its_bounds(bounds: Range, inside: list[float], outside: list[float]) -> None:
    assert [bounds.problem(value) for value in inside] == [None] * len(inside)
    assert all(bounds.problem(value) for value in outside)


def test_range_says_what_it_wants_and_what_it_got() -> None:
    assert Range(gt=0, le=1).problem(1.5) == "must be > 0 and <= 1, got 1.5"


@dataclass
class Base:
    """Docstring of the class, not of a field."""

    inherited: int = 0
    """From the base."""
    changed: int = 0
    """Old words."""


@dataclass
class Derived(Base):
    changed: int = 1
    """New words,
    on two lines."""
    own: list[int] = field(default_factory=list)
    """Of its own."""
    silent: int = 3

    def method(self) -> None:
        """Not a field."""


def test_field_docs_reads_own_and_inherited_strings_in_field_order() -> None:
    assert list(field_docs(Derived).items()) == [
        ("inherited", "From the base."),
        ("changed", "New words, on two lines."),
        ("own", "Of its own."),
    ]


@dataclass
class Noise:
    kind: str = "white"
    """Which."""
    memory: Annotated[float, Range(ge=0), Needs("kind", "pink", "brown")] = 0.5
    """How long it lasts."""
    scale: float = 1.0
    """How strong."""
    clip: Annotated[float | None, Needs("scale", above=0)] = None
    """Largest."""
    seats: Annotated[int, Needs("the house", "full")] = 1
    """What only the house knows."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class Silence(Noise):
    memory: Annotated[float, Range(ge=0)] = 0.7
    scale: Annotated[float, Unused("there is nothing to scale")] = 0.0


@dataclass
class Unchecked:
    kind: str = "white"
    memory: Annotated[float, Needs("kind", "pink")] = 0.5


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (
            Noise,
            {"memory": 0.1},
            "key 'x.memory': means nothing while kind is white: leave it out, or set kind to pink",
        ),
        (
            Noise,
            {"scale": 0.0, "clip": 2.0},
            "'x.clip': means nothing while scale is 0.0: leave it out, or set scale above 0",
        ),
        (Silence, {"memory": 0.5}, "'x.memory': means nothing while kind is white"),  # the base says so
        (Silence, {"scale": 1.0}, "'x.scale': means nothing here: there is nothing to scale. Leave it out"),
        (Unchecked, {"memory": 0.1}, "'x.memory': means nothing while kind is white"),  # built, so it is checked
    ],
)
def test_a_value_without_what_it_needs_is_refused(cls: type, values: dict[str, object], message: str) -> None:
    with pytest.raises(FieldError) as refused:
        build_dataclass(cls, values, "x")
    assert message in str(refused.value)


def test_what_is_needed_may_be_there_and_a_default_may_stay() -> None:
    assert build_dataclass(Noise, {"kind": "brown", "memory": 0.1}).memory == 0.1
    assert build_dataclass(Noise, {"memory": 0.5, "seats": 7}).seats == 7, "nobody here knows the house"
    assert working_values(Noise(scale=0.0)) == {"kind": "white", "scale": 0.0, "seats": 1}
    assert working_values(Noise(kind="pink")) == {"kind": "pink", "memory": 0.5, "scale": 1.0, "clip": None, "seats": 1}


def test_what_was_written_out_in_full_loses_what_meant_nothing() -> None:
    assert without_idle(Noise, {"memory": 0.3, "scale": 2.0, "clip": 1.0, "old": 1}) == {
        "scale": 2.0,
        "clip": 1.0,
        "old": 1,
    }
    assert without_idle(Silence, {"kind": "pink", "memory": 0.3, "scale": 3.0}) == {"kind": "pink", "memory": 0.3}


def test_needs_in_words() -> None:
    assert [str(need) for needs in conditions(Silence).values() for need in needs] == [
        "Needs `kind: pink` or `kind: brown`.",
        "Needs `scale` above 0.",
        "Needs the house to be full.",
        "Refused here: there is nothing to scale.",
    ]
