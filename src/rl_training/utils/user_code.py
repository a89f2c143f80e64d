"""Code of the user's that we import or call: how it is imported, and where in it something failed."""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

from rl_training.utils.errors import UserError
from rl_training.utils.printable import quoted

PACKAGE = Path(__file__).parents[1]
_LIBRARIES = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")})


def import_modules(names: Iterable[str]) -> None:
    """Imports what the user named on the command line: modules, also from the current folder, and files. Configs cannot do that."""
    names = tuple(names)
    if names and "" not in sys.path:
        sys.path.insert(0, "")  # as `python` itself does; an installed command does not
    for name in names:
        _import(name)


def _import(name: str) -> None:
    is_file = name.endswith(".py")
    if not is_file and not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        hint = f"; did you mean {name}.py?" if Path(f"{name}.py").is_file() else ""
        raise UserError(
            f"--import {quoted(name)}: give a module such as my_package.envs, or a file that ends in .py{hint}"
        )
    try:
        if is_file:
            _import_file(Path(name).resolve())
        else:
            importlib.import_module(name)
    except (UserError, KeyboardInterrupt):
        raise
    except OSError as error:
        raise UserError(f"--import {quoted(name)}: {error.strerror or error}") from error
    except BaseException as error:  # whatever that code raises, sys.exit() too
        place = user_place(error)
        if place is None and isinstance(error, ImportError):
            raise UserError(f"--import {name}: {error}") from error
        raise UserError(f"--import {name}: {place or any_place(error)}: {summary(error)}") from error


def _import_file(path: Path) -> None:
    """As `python FILE` does: its folder is searched for modules from then on. So other processes can import it by its name too."""
    if not path.is_file():
        raise UserError(f"--import {path}: no such file")
    if not path.stem.isidentifier():
        raise UserError(f"--import {path}: the name of the file must be a module's, such as my_env.py: rename it")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if module.__file__ is None or Path(module.__file__).resolve() != path:
        raise UserError(
            f"--import {path}: another module is called {path.stem!r} ({module.__file__ or 'built in'}); rename the file"
        )


def source_of(name: str) -> Path:
    """The file of something that `import_modules` has imported."""
    return Path(name) if name.endswith(".py") else Path(str(sys.modules[name].__file__))


def user_place(error: BaseException) -> str | None:
    """`file.py:12` of the innermost line that is neither ours nor of an installed package; None if no such code took part."""
    if isinstance(error, SyntaxError) and error.filename is not None and _is_users(error.filename):
        return f"{_short(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_users(frame.filename):
            return f"{_short(frame.filename)}:{frame.lineno}"
    return None


def any_place(error: BaseException) -> str:
    """The innermost line of all, in whosever code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{_short(frames[-1].filename)}:{frames[-1].lineno}" if frames else "unknown place"


def summary(error: BaseException) -> str:
    """`ValueError: what it says`, on one line."""
    text = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, SyntaxError):
        text = error.msg
    name = type(error).__name__
    return f"{name}: {text[:200]}" if text else name


def _is_users(filename: str) -> bool:
    if filename.startswith("<"):  # <frozen importlib>, <string>
        return False
    path = Path(filename).resolve()
    installed = str(path).startswith(_LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return not installed and not path.is_relative_to(PACKAGE)


def _short(filename: str) -> str:
    """Relative to the current folder where it lies in it."""
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
