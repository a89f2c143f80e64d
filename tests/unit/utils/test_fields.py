"""Ranges and field docstrings."""

from dataclasses import dataclass, field

import pytest

from rl_training.utils.fields import Range, field_docs


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
