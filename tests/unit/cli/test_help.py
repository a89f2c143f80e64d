"""The help of every command reads well at 80 columns, and so do the errors over wrong values."""

from __future__ import annotations

import re

import pytest

from rl_training.cli import zoo
from rl_training.cli.main import COMMANDS, main

CALLS = [[name] for name in COMMANDS if name != "zoo"] + [["zoo"], *(["zoo", name] for name in zoo.COMMANDS)]


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    output = capsys.readouterr()
    return output.out + output.err


@pytest.mark.parametrize("call", CALLS, ids=" ".join)
def test_help_has_one_heading_for_options_and_says_nothing_of_none(
    call: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown([*call, "--help"], capsys)
    headings = re.findall(r"╭─ (.*?) ─*╮", text)
    assert len(headings) == len(set(headings)) and set(headings) <= {"positional arguments", "options"}
    assert "None" not in text and "default: False" not in text and "default: )" not in text
    assert max(map(len, text.splitlines())) <= 80


WRONG = [
    ["train", "--num-envs", "x"],
    ["train", "--num-envs", "None"],
    ["train", "--seed", "1.5"],
    ["report", "--format", "xml"],
    ["leaderboard", "--format", "xml"],
    ["leaderboard", "--tolerance", "x"],
    ["eval", "run", "--episodes", "many"],
    ["eval", "run", "--seed", "None"],
    ["zoo", "benchmark", "smoke", "--jobs", "None"],
    ["check-env", "CartPole-v1", "--steps", "many"],
]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_value_is_named_without_words_of_python(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(arguments, capsys)
    assert arguments[-2] in text and repr(arguments[-1]) in text
    said = text.replace(repr("None"), "") if arguments[-1] == "None" else text
    assert "None" not in said and "NoneType" not in text and "literal" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_list_of_commands_fits_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"]):
        assert main(arguments) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_an_unknown_preset_is_not_answered_with_a_wall_of_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "xyz/nothing"]) == 2
    assert len(capsys.readouterr().err) < 200
