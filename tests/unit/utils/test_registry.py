"""Names for things: registered, imported when needed, found in installed packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.registered import install
from rl_training.utils.errors import ConfigError
from rl_training.utils.registry import Registry


class Circle: ...


class Square: ...


def accept(name: str, thing: Any) -> type:
    if not isinstance(thing, type):
        raise ConfigError(f"shape {name!r} must be a class")
    return thing


@pytest.fixture
def shapes() -> Registry[type]:
    registry: Registry[type] = Registry("shape", accept)
    registry.register("circle", Circle)
    return registry


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported and is not yet."""
    (tmp_path / "more_shapes.py").write_text("class Triangle: ...\nnumber = 3\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "more_shapes", raising=False)
    return "more_shapes"


def test_a_thing_is_found_by_its_name(shapes: Registry[type]) -> None:
    assert shapes["circle"] is Circle and shapes.find("circle") is Circle
    assert "circle" in shapes and "square" not in shapes and shapes.find("square") is None


def test_an_unknown_name_comes_with_the_nearest_one_and_a_way_out(shapes: Registry[type]) -> None:
    with pytest.raises(
        ConfigError, match=r"^unknown shape 'cirlce'; did you mean 'circle'\?\nA shape .*register_shape"
    ):
        shapes["cirlce"]
    with pytest.raises(ConfigError, match="^unknown shape 'xyz'; known: circle\nA shape .*register_shape"):
        shapes["xyz"]


def test_the_same_again_is_fine_and_another_one_is_refused(shapes: Registry[type]) -> None:
    shapes.register("circle", Circle)
    with pytest.raises(ConfigError, match=r"a shape named 'circle' is registered already: .*:Circle. Choose .*:Square"):
        shapes.register("circle", Square)
    assert shapes["circle"] is Circle


def test_a_module_that_is_loaded_anew_replaces_its_things(shapes: Registry[type]) -> None:
    again = type("Circle", (), {"__module__": Circle.__module__, "__qualname__": Circle.__qualname__})
    shapes.register("circle", again)
    assert shapes["circle"] is again


def test_text_is_imported_when_it_is_asked_for(shapes: Registry[type], module: str) -> None:
    shapes.register("triangle", f"{module}:Triangle")
    assert shapes.names() == ["circle", "triangle"] and module not in sys.modules
    assert shapes["triangle"].__name__ == "Triangle" and module in sys.modules
    shapes.register("triangle", f"{module}:Triangle")
    shapes.register("triangle", shapes["triangle"])


def test_the_same_under_another_path_is_the_same(shapes: Registry[type], tmp_path: Path, module: str) -> None:
    (tmp_path / "short_path.py").write_text(f"from {module} import Triangle\n", encoding="utf-8")
    shapes.register("triangle", "short_path:Triangle")
    triangle = shapes["triangle"]
    shapes.register("triangle", "short_path:Triangle")
    shapes.register("triangle", triangle)
    assert shapes["triangle"] is triangle
    with pytest.raises(ConfigError, match="registered already"):
        shapes.register("triangle", "short_path:Square")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Triangle", "expected a class or the text \"module:Class\", got 'Triangle'"),
        ("more_shapes:Trapeze", "shape 'x' cannot be imported from more_shapes:Trapeze: .*no attribute 'Trapeze'"),
        ("no_such_module:X", "shape 'x' cannot be imported from no_such_module:X: No module named"),
        ("more_shapes:number", "shape 'x' must be a class"),
    ],
)
def test_text_that_leads_nowhere(shapes: Registry[type], module: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        shapes.register("x", text)
        shapes["x"]


@pytest.mark.parametrize("name", ["", "a.b", "a:b", "a b", "../a"])
def test_names_are_words(shapes: Registry[type], name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a shape"):
        shapes.register(name, Square)


def test_installed_packages_are_asked_last_and_imported_only_for_their_own_names(
    shapes: Registry[type], module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, {"axiomrl.shapes": {"triangle": f"{module}:Triangle", "circle": "no_such_module:X"}})
    assert shapes["circle"] is Circle, "what is known comes first"
    assert shapes.names() == ["circle", "triangle"] and "triangle" in shapes and module not in sys.modules
    assert shapes["triangle"] is sys.modules[module].Triangle
    assert shapes.find("square") is None


def test_known_names_are_found_without_looking_at_installed_packages(
    shapes: Registry[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(**_: Any) -> Any:
        raise AssertionError("looked for entry points")

    monkeypatch.setattr("importlib.metadata.entry_points", forbidden)
    assert shapes["circle"] is Circle and "circle" in shapes


def test_a_package_that_cannot_be_imported_is_named(
    shapes: Registry[type], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, {"axiomrl.shapes": {"triangle": "no_such_module:X"}})
    with pytest.raises(ConfigError, match="shape 'triangle' .* the installed package my-package: No module named"):
        shapes["triangle"]
