"""`--import`: modules and files, and what is said when they are not there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.registered import forgetting
from rl_training.cli.main import main

CODE = """\
import rl_training
from rl_training.experiment import registry
import helper_beside

class CopyAlgorithm(registry.load("a2c")):
    '''A2C again.'''

rl_training.register_algorithm("copied", CopyAlgorithm)
"""

BROKEN = {
    "leaves": "import sys\nsys.exit(0)\n",
    "wrong": "def f(:\n",
    "needs": "import nothing_of_this_name\n",
    "raises": "def f():\n    raise ValueError('of no use\\nat all')\nf()\n",
    "with-dash": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "copied_algorithm.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "code" / "helper_beside.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("copied_algorithm", "helper_beside"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with forgetting():
        yield tmp_path
    for name in ("copied_algorithm", "helper_beside"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    "file", ["code/copied_algorithm.py", "./code/copied_algorithm.py", "code/../code/copied_algorithm.py"]
)
def test_a_file_is_imported_with_its_folder(folder: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ["--set", "hyperparams=null", "--config", str(folder / "x.yaml")]
    (folder / "x.yaml").write_text("algo: copied\n", encoding="utf-8")
    assert main(["train", "--dry-run", *overrides, "--import", file]) == 0
    assert "copied" in capsys.readouterr().out
    assert main(["train", "--dry-run", *overrides, "--import", file]) == 0, "a second time changes nothing"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("code/nothing.py", "nothing.py: no such file"),
        ("no_such_module_here", "--import no_such_module_here: No module named 'no_such_module_here'"),
        ("json.py", "another module is called 'json'"),
        (".", "--import '.': give a module such as my_package.envs, or a file that ends in .py"),
        ("code/", "give a module such as my_package.envs, or a file"),
        ("code/copied_algorithm", "did you mean code/copied_algorithm.py?"),
        ("x" * 300 + ".py", "File name too long"),
        ("code/with-dash.py", "rename it"),
        ("code/leaves.py", "leaves.py:2: SystemExit: 0"),
        ("code/wrong.py", "wrong.py:1: SyntaxError"),
        ("code/needs.py", "needs.py:1: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("code/raises.py", "raises.py:2: ValueError: of no use"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(
    folder: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "json.py").write_text("", encoding="utf-8")
    for file, code in BROKEN.items():
        (folder / "code" / f"{file}.py").write_text(code, encoding="utf-8")
    assert main(["train", "--dry-run", "--import", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_check_algorithm_reports_each_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["check-algorithm", "copied", "--import", "code/copied_algorithm.py", "--total-timesteps", "40"]
    assert main([*command, "--set", "num_steps=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "conformance of 'copied'" and all(line.startswith("ok ") for line in lines[1:])


def test_check_algorithm_fails_with_exit_code_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-algorithm", "a2c", "--total-timesteps", "5", "--json"]) == 1
    assert '"passed": false' in capsys.readouterr().out
    assert main(["check-algorithm", "nothing"]) == 2
    assert "--import MODULE_OR_FILE" in capsys.readouterr().err
