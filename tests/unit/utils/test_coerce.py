"""Building dataclasses from plain values."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from rl_training.utils.coerce import (
    FieldError,
    build_dataclass,
    check_fields,
    plain_value,
    range_text,
    type_name,
)
from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Range
from rl_training.utils.schedules import Schedule


@dataclass
class Inner:
    size: Annotated[int, Range(ge=1)] = 1

    def __post_init__(self) -> None:
        if self.size == 13:
            raise FieldError("size", "is unlucky")
        if self.size == 14:
            raise ConfigError("two fields disagree")


@dataclass
class Sample:
    count: int = 1
    rate: Annotated[float | Schedule, Range(ge=0, le=1)] = 0.5
    flag: bool = False
    name: str = "x"
    mode: Literal["fast", "slow", 3] = "fast"
    limit: Annotated[int | None, Range(gt=0)] = None
    sizes: tuple[Annotated[int, Range(ge=1)], ...] = (1,)
    weights: Annotated[list[float], Range(ge=0)] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


def build(**values: Any) -> Sample:
    return build_dataclass(Sample, values, "hyperparams", {"hyperparams.sizes": "x.yaml:7"}.get)


def test_every_kind_of_field_takes_its_values_in_its_own_type() -> None:
    sample = build(
        count=np.int64(3), rate=1, flag=True, name="n", mode=3, limit=5, sizes=[4, 5], weights=(1, 2.5),
        options={"a": (1, {"b": None})}, inner={"size": 2},
    )  # fmt: skip
    assert sample == Sample(3, 1.0, True, "n", 3, 5, (4, 5), [1.0, 2.5], {"a": [1, {"b": None}]}, Inner(2))
    assert [type(sample.count), type(sample.rate), type(sample.weights[0])] == [int, float, float]
    assert build(rate={"start": 1, "end": 0}).rate == Schedule(1.0, 0.0)
    assert build(rate=Schedule(0.5, 0.25)).rate == Schedule(0.5, 0.25)
    assert build(limit=None).limit is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"count": True}, "key 'hyperparams.count': expected an integer, got True"),
        ({"count": 1e6}, "key 'hyperparams.count': expected an integer, got 1000000.0 (write 1_000_000)"),
        ({"count": 1.5}, "key 'hyperparams.count': expected an integer, got 1.5"),
        ({"rate": "x"}, "key 'hyperparams.rate': expected number or schedule, got 'x'"),
        ({"rate": None}, "key 'hyperparams.rate': expected number or schedule, got None"),
        ({"rate": 1.5}, "key 'hyperparams.rate': must be >= 0 and <= 1, got 1.5"),
        ({"rate": float("nan")}, "key 'hyperparams.rate': must be a finite number, got nan"),
        ({"rate": 10**400}, "key 'hyperparams.rate': must be a finite number"),
        ({"rate": {"start": 0.5, "end": -1}}, "key 'hyperparams.rate.end': must be >= 0 and <= 1, got -1.0"),
        ({"rate": {"start": 0.5}}, "key 'hyperparams.rate.end': missing; give it a value (number)"),
        ({"rate": {"start": "a", "end": 0}}, "key 'hyperparams.rate.start': expected a number, got 'a'"),
        ({"rate": {"begin": 1, "end": 0}}, "key 'hyperparams.rate.begin': unknown key"),
        ({"flag": 1}, "key 'hyperparams.flag': expected true or false, got 1 (write true or false)"),
        ({"name": 1}, "key 'hyperparams.name': expected text, got 1 (put it in quotes)"),
        ({"mode": "fsat"}, "must be one of fast, slow, 3, got 'fsat'; did you mean 'fast'?"),
        ({"mode": 3.0}, "key 'hyperparams.mode': must be one of"),
        ({"limit": 0}, "key 'hyperparams.limit': must be > 0, got 0"),
        ({"limit": "a"}, "key 'hyperparams.limit': expected integer or null, got 'a'"),
        (
            {"sizes": 64},
            "x.yaml:7: key 'hyperparams.sizes': expected a list of integers such as [64, 64], got 64",
        ),
        ({"sizes": [1, 0]}, "x.yaml:7: key 'hyperparams.sizes[1]': must be >= 1, got 0"),
        ({"weights": [0.0, -1]}, "key 'hyperparams.weights[1]': must be >= 0, got -1.0"),
        ({"options": [1]}, "key 'hyperparams.options': expected a mapping"),
        ({"options": {"f": print}}, "key 'hyperparams.options.f': must be a number, text, list or mapping"),
        ({"options": {1: 2}}, "key 'hyperparams.options': its keys must be text, got 1"),
        ({"inner": 3}, "key 'hyperparams.inner': expected a mapping"),
        ({"inner": {"size": 0}}, "key 'hyperparams.inner.size': must be >= 1, got 0"),
        ({"inner": {"size": 13}}, "key 'hyperparams.inner.size': is unlucky"),
        ({"inner": {"size": 14}}, "key 'hyperparams.inner': two fields disagree"),
        ({"cuont": 3}, "key 'hyperparams.cuont': unknown key; did you mean 'count'?"),
        ({"size": 3}, "key 'hyperparams.size': unknown key; did you mean 'sizes'?"),
        ({"zzz": 3}, "key 'hyperparams.zzz': unknown key; known keys: count, rate, flag"),
    ],
)
def test_each_misfit_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(**values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(ConfigError) as caught:
        build(count="y" * 10_000)
    assert len(str(caught.value)) < 150


def test_check_fields_works_on_instances() -> None:
    sample = Sample(sizes=[2, 3], rate=1)  # type: ignore[arg-type]
    check_fields(sample)
    assert (sample.sizes, repr(sample.rate)) == ((2, 3), "1.0")


def test_plain_value_copies() -> None:
    options = {"a": [1]}
    sample = build(options=options)
    options["a"].append(2)
    assert sample.options == {"a": [1]}
    assert plain_value({"s": Schedule(1, 0), "n": np.float32(0.5)}) == {
        "s": {"start": 1.0, "end": 0.0, "fraction": 1.0},
        "n": 0.5,
    }


def test_types_and_ranges_in_words() -> None:
    assert type_name(Annotated[float | Schedule, Range(ge=0)]) == "number or schedule"
    assert type_name(tuple[int, ...]) == "list of integers"
    assert range_text(Annotated[int, Range(ge=1)] | None) == ">= 1"
    assert range_text(tuple[Annotated[int, Range(ge=1, lt=9)], ...]) == ">= 1 and < 9"
    assert range_text(str) == ""
