"""Builds config dataclasses from plain values, and says what is wrong with those that do not fit.

Field types understood: int, float, bool, str, Literal, X | None, tuple[T, ...], list[T], dict[str, Any],
nested dataclasses, unions such as `float | Schedule`, and `Annotated` with `Range`, `Check`, `Needs` or `Unused`
around any of them.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeGuard, TypeVar, Union

from rl_training.utils.errors import ConfigError
from rl_training.utils.fields import Check, Range, as_yaml, conditions, idle_fields
from rl_training.utils.printable import quoted
from rl_training.utils.safe_files import MAX_INT

T = TypeVar("T")
Rule = Range | Check
Locate = Callable[[str], str | None]


class FieldError(ConfigError):
    """A value that does not fit its field.

    A dataclass may raise it from `__post_init__` with the name of a field; `build_dataclass` adds the prefix
    and the place.
    """

    def __init__(self, key: str, problem: str, where: str | None = None) -> None:
        self.key, self.problem = key, problem
        parts = (where, f"key '{key}'" if key else None, problem)
        super().__init__(": ".join(part for part in parts if part))


class _WrongType(FieldError):
    """A value of another type than the field's."""


def build_dataclass(cls: type[T], values: Mapping[str, Any], prefix: str = "", locate: Locate = lambda key: None) -> T:
    """An instance of the dataclass `cls` from `values`; every key and value is checked.

    Errors name the dotted key, which starts with `prefix`, and the place that `locate` gives for that key or
    for the nearest key around it, such as "configs/x.yaml:7".
    """
    try:
        return _build(cls, values, prefix)
    except FieldError as error:
        raise FieldError(error.key, error.problem, _locate_nearest(error.key, locate)) from None


def check_fields(instance: Any) -> None:
    """Checks every field of a dataclass instance and stores it in its exact type; for `__post_init__`."""
    cls: type = type(instance)
    hints = _field_types(cls)
    for field in dataclasses.fields(instance):
        value = _coerce(getattr(instance, field.name), hints[field.name], field.name)
        object.__setattr__(instance, field.name, value)  # frozen dataclasses too
    check_idle(instance)


def check_idle(instance: Any, usual: Any = None, facts: Mapping[str, Any] | None = None) -> None:
    """Raises FieldError for a field that means nothing beside the others and yet has another value than its default and, if given,
    than `usual` has. `facts` are what the instance cannot know itself."""
    cls: type = type(instance)
    if conditions(cls):
        for name, problem in idle_fields(cls, {**_values(instance), **(facts or {})}).items():
            unasked = [_class_default(cls, name), *([] if usual is None else [getattr(usual, name)])]
            if getattr(instance, name) not in unasked:
                raise FieldError(name, problem)


def working_values(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass instance as plain values, without those that mean nothing beside the others."""
    idle = idle_fields(type(instance), _values(instance))
    return {name: value for name, value in plain_value(instance).items() if name not in idle}


def without_idle(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` for a dataclass without those that would mean nothing, which earlier versions wrote out with the rest."""
    assert dataclasses.is_dataclass(cls)
    defaults = {field.name: _class_default(cls, field.name) for field in dataclasses.fields(cls)}
    idle = idle_fields(cls, {**defaults, **values})
    return {name: value for name, value in values.items() if name not in idle}


def _values(instance: Any) -> dict[str, Any]:
    return {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}


def _class_default(cls: type, name: str) -> Any:
    field = cls.__dataclass_fields__[name]  # type: ignore[attr-defined]
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def plain_value(value: Any, key: str = "") -> Any:
    """A copy of `value` as JSON and YAML can hold it: dataclasses become dicts, tuples become lists."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | PurePath):
        return str(value)
    if isinstance(value, numbers.Integral):
        if not -MAX_INT <= int(value) <= MAX_INT:  # no file of ours could be read with it
            raise FieldError(key, f"must be an integer of at most 63 bits, got {quoted(value)}")
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_value(getattr(value, f.name), join(key, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise FieldError(key, f"its keys must be text, got {quoted(name)}")
        return {name: plain_value(item, join(key, name)) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item, f"{key}[{index}]") for index, item in enumerate(value)]
    raise FieldError(
        key,
        f"must be a number, text, list or mapping, because the config is saved as YAML; got {quoted(value)}",
    )


def join(prefix: str, name: str) -> str:
    """The dotted key of `name` inside `prefix`."""
    return f"{prefix}.{name}" if prefix else name


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is close."""
    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def type_name(annotation: Any) -> str:
    """A field type in words, for error messages and the docs."""
    annotation, _ = _unwrap(annotation)
    if _is_dataclass_type(annotation):
        return annotation.__name__.lower()
    if typing.get_origin(annotation) is Literal:
        return "one of " + ", ".join(map(as_yaml, typing.get_args(annotation)))
    if _is_union(annotation):
        return " or ".join(type_name(member) for member in typing.get_args(annotation))
    if typing.get_origin(annotation) in (tuple, list):
        return f"list of {type_name(typing.get_args(annotation)[0])}s"
    if typing.get_origin(annotation) is dict:
        return "mapping"
    names = {int: "integer", float: "number", bool: "true or false", str: "text", types.NoneType: "null"}
    return names[annotation]


def range_text(annotation: Any) -> str:
    """The bounds of a field type in words (`>= 0 and <= 1`), or nothing; for the docs."""
    inner, rules = _unwrap(annotation)
    texts = [str(rule) for rule in rules if isinstance(rule, Range)]
    if _is_union(inner) or typing.get_origin(inner) in (tuple, list):
        texts += [text for member in typing.get_args(inner) if (text := range_text(member))]
    return " and ".join(texts)


@functools.cache
def _field_types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _build(cls: type[T], values: Mapping[str, Any], prefix: str) -> T:
    if not isinstance(values, Mapping):
        raise _WrongType(prefix, f"expected a mapping (key: value), got {quoted(values)}")
    assert dataclasses.is_dataclass(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = _field_types(cls)
    for name in values:
        if name not in fields:
            raise FieldError(join(prefix, str(name)), f"unknown key{_suggest_key(name, cls, prefix)}")
    ready = {name: _coerce(value, hints[name], join(prefix, name)) for name, value in values.items()}
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in ready:
            raise FieldError(join(prefix, name), f"missing; give it a value ({type_name(hints[name])})")
    try:
        built = cls(**ready)
        check_idle(built)  # also of a class that does not check itself
        return built
    except FieldError as error:
        raise FieldError(join(prefix, error.key), error.problem) from None
    except ConfigError as error:
        raise FieldError(prefix, str(error)) from None


def _suggest_key(name: object, cls: type, prefix: str) -> str:
    """Help for an unknown key: one spelled nearly so, the same one in a section below, or all there are."""
    hints = _field_types(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    if close := did_you_mean(name, names):
        return close
    for section in names:
        below = _unwrap(hints[section])[0]
        if _is_dataclass_type(below) and name in {field.name for field in dataclasses.fields(below)}:
            return f"; did you mean '{join(join(prefix, section), str(name))}'?"
    return f"; known keys: {', '.join(names)}" if names else "; no keys are allowed here"


def _coerce(value: Any, annotation: Any, key: str, rules: tuple[Rule, ...] = ()) -> Any:
    """`value` in the exact type that `annotation` asks for, or FieldError."""
    annotation, own_rules = _unwrap(annotation)
    rules = rules + own_rules
    origin = typing.get_origin(annotation)
    if _is_union(annotation):
        return _coerce_union(value, annotation, key, rules)
    if _is_dataclass_type(annotation):
        return _coerce_dataclass(value, annotation, key, rules)
    if origin is Literal:
        return _coerce_choice(value, typing.get_args(annotation), key)
    if origin in (tuple, list):
        if not isinstance(value, list | tuple):
            example = " such as [64, 64]" if _unwrap(typing.get_args(annotation)[0])[0] is int else ""
            raise _WrongType(key, f"expected a {type_name(annotation)}{example}, got {quoted(value)}")
        item_type = typing.get_args(annotation)[0]
        return origin(_coerce(item, item_type, f"{key}[{index}]", rules) for index, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _WrongType(key, f"expected a mapping (key: value), got {quoted(value)}")
        return plain_value(value, key)
    scalar = _coerce_scalar(value, annotation, key)
    for rule in rules if scalar is not None else ():  # null has no range
        if problem := rule.problem(scalar):
            raise FieldError(key, problem)
    return scalar


def _coerce_scalar(value: Any, annotation: Any, key: str) -> Any:
    is_bool = isinstance(value, bool)  # an int to Python, but not to a reader of `num_envs: true`
    if annotation is int and isinstance(value, numbers.Integral) and not is_bool:
        whole = int(value)
        if not -MAX_INT <= whole <= MAX_INT:
            raise FieldError(key, f"must fit 64 bits, got {quoted(whole)}")
        return whole
    if annotation is float and isinstance(value, numbers.Real) and not is_bool:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise FieldError(key, f"must be a finite number, got {quoted(value)}")
        return number
    if annotation is bool and is_bool:
        return value
    if annotation is str and isinstance(value, str | PurePath):
        return str(value)
    if annotation is types.NoneType and value is None:
        return None
    hint = ""
    if annotation is int and isinstance(value, float) and value.is_integer():
        hint = f" (write {int(value):_})" if abs(value) < 1e18 else ""
    elif annotation is str and value is not None:
        hint = " (put it in quotes)"
    elif annotation is bool:
        hint = " (write true or false)"
    article = {int: "an integer", float: "a number"}.get(annotation) or type_name(annotation)
    raise _WrongType(key, f"expected {article}, got {quoted(value)}{hint}")


def _coerce_union(value: Any, annotation: Any, key: str, rules: tuple[Rule, ...]) -> Any:
    members = typing.get_args(annotation)
    specific: FieldError | None = None
    for member in members:
        try:
            return _coerce(value, member, key, rules)
        except FieldError as error:
            # The right type with a wrong range, or with a mistake inside: the real cause, told as it is.
            if specific is None and not (isinstance(error, _WrongType) and error.key == key):
                specific = error
    raise specific or _WrongType(key, f"expected {type_name(annotation)}, got {quoted(value)}")


def _coerce_dataclass(value: Any, cls: type, key: str, rules: tuple[Rule, ...]) -> Any:
    if isinstance(value, cls):
        # Built anew, so that two configs never share a section that one of them changes.
        built = _build(type(value), _values(value), key)
    else:
        built = _build(cls, value, key)
    for name in getattr(cls, "ranged_fields", ()):
        for rule in rules:
            if problem := rule.problem(getattr(built, name)):
                raise FieldError(join(key, name), problem)
    return built


def _coerce_choice(value: Any, choices: tuple[Any, ...], key: str) -> Any:
    for choice in choices:
        if type(choice) is type(value) and choice == value:
            return choice
    known = ", ".join(map(as_yaml, choices))
    raise FieldError(key, f"must be one of {known}, got {quoted(value)}{did_you_mean(value, map(str, choices))}")


def _locate_nearest(key: str, locate: Locate) -> str | None:
    """The place of `key`, or of the nearest key around it (of `a.b` for `a.b[2]` and `a.b.c`)."""
    while not (where := locate(key)) and key:
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
    return where


def _unwrap(annotation: Any) -> tuple[Any, tuple[Rule, ...]]:
    """The type inside `Annotated`, and its rules."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, ()
    inner, *metadata = typing.get_args(annotation)
    return inner, tuple(rule for rule in metadata if isinstance(rule, Range | Check))


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (Union, types.UnionType)


def _is_dataclass_type(annotation: Any) -> TypeGuard[type]:
    return isinstance(annotation, type) and dataclasses.is_dataclass(annotation)
