"""Things by name: our own, the user's, and those of installed packages."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rl_training.utils.coerce import did_you_mean
from rl_training.utils.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name.

    A thing may be registered as the text "module:attribute", which is imported when it is first asked for. Installed packages
    offer theirs as entry points of the group "axiomrl.KINDs"; those are looked for only when a name is not among the known ones,
    or all are listed.
    """

    def __init__(self, kind: str, accept: Callable[[str, Any], T]):
        """`accept(name, thing)` returns what is kept, or raises for a thing of another kind."""
        self.kind, self.group = kind, f"axiomrl.{kind}s"
        self.things: dict[str, T | str] = {}
        """What was registered, by name."""
        self._accept = accept
        self._loaded: dict[str, T] = {}  # by "module:attribute"

    @property
    def way_out(self) -> str:
        """What the error for an unknown name ends with."""
        return (
            f"\n{_a(self.kind).capitalize()} of your own must be registered first (rl_training.register_{self.kind}); on the "
            "command line, name the module or file that does it: --import MODULE_OR_FILE"
        )

    def register(self, name: str, thing: Any) -> None:
        """Makes a thing known. The same one may be registered again, another one under a name that is taken may not."""
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
            raise ConfigError(f"{name!r} cannot be the name of {_a(self.kind)}: use letters, digits and underscores")
        kept = checked_reference(thing) if isinstance(thing, str) else self._accept(name, thing)
        known = self.things.get(name)
        if known is not None and not self._origins(known) & self._origins(kept):
            raise ConfigError(
                f"{_a(self.kind)} named {name!r} is registered already: {_origin(known)}. Choose another name for {_origin(kept)}"
            )
        self.things[name] = kept

    def find(self, name: str) -> T | None:
        """The thing of that name, imported if need be; None if there is none."""
        thing = self.things.get(name)
        if thing is None:
            if (entry := self._entry_points().get(name)) is None:
                return None
            loaded = self._imported(name, entry.load, f"the installed package {_package(entry)}")
            if name not in self.things:  # a module may register what is in it by itself
                self.register(name, loaded)
            return self.find(name)
        if isinstance(thing, str):
            if thing not in self._loaded:
                reference = thing
                loaded = self._imported(name, lambda: import_reference(reference), reference)
                self._loaded[reference] = self._accept(name, loaded)
            return self._loaded[thing]
        return thing

    def __getitem__(self, name: str) -> T:
        thing = self.find(name)
        if thing is None:
            hint = did_you_mean(name, self.names()) or f"; known: {', '.join(self.names())}"
            raise ConfigError(f"unknown {self.kind} {name!r}{hint}{self.way_out}")
        return thing

    def __contains__(self, name: str) -> bool:
        return name in self.things or name in self._entry_points()

    def names(self) -> list[str]:
        """All names, sorted, those of installed packages too. Nothing is imported."""
        return sorted({*self.things, *self._entry_points()})

    def _origins(self, thing: T | str) -> set[str]:
        """The "module:attribute"s that a thing goes by: a module that is loaded anew gives other objects of the same origin."""
        loaded = self._loaded.get(thing) if isinstance(thing, str) else None
        return {_origin(one) for one in (thing, loaded) if one is not None}

    def _entry_points(self) -> dict[str, importlib.metadata.EntryPoint]:
        return {entry.name: entry for entry in importlib.metadata.entry_points(group=self.group)}

    def _imported(self, name: str, load: Callable[[], Any], source: str) -> Any:
        try:
            return load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{self.kind} {name!r} cannot be imported from {source}: {error}") from error


def checked_reference(text: str) -> str:
    """The text itself, if it has the form "module:attribute"."""
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise ConfigError(f'expected a class or the text "module:Class", got {text!r}')
    return text


def import_reference(text: str) -> Any:
    """What "module:attribute" stands for; ImportError or AttributeError if it is not there."""
    module, _, path = text.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def _origin(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}" if isinstance(thing, type) else str(thing)


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
