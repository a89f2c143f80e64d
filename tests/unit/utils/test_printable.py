import pytest

from rl_training.utils.errors import CheckpointError, ConfigError
from rl_training.utils.printable import MAX_MESSAGE, csv_cell, one_line, printable, quoted


def test_what_could_steer_a_terminal_is_written_out():
    hostile = "a\x1b[2J\x07b\u202ec\ud800d\x9be\r\u2066"
    assert printable(hostile) == "a\\x1b[2J\\x07b\\u202ec\\ud800d\\x9be\\x0d\\u2066"
    assert printable("Über 中文 €\n\tx") == "Über 中文 €\n\tx"
    assert one_line("a\nb\tc\x1b") == "a b c\\x1b"
    printable(hostile).encode("utf-8")


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1+cmd|' /C calc'!A0", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_a_spreadsheet_gets_no_formula(value):
    assert not str(csv_cell(value)).startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_numbers_stay_numbers_in_a_spreadsheet():
    assert [csv_cell(value) for value in (-1.5, None, True, "ppo")] == [-1.5, None, True, "ppo"]


def test_quoted_values_are_short_and_never_fail():
    within = []
    within.append(within)
    for value in ("x" * 10**7, "\x1b" * 10**7, b"y" * 10**7, 10**5000, list(range(10**5)), within, "short"):
        assert len(quoted(value)) <= 60 and quoted(value).isprintable()
    assert quoted("short") == "'short'" and quoted(12) == "12"


@pytest.mark.parametrize("error", [CheckpointError, ConfigError])
def test_no_error_has_a_message_of_megabytes_or_escapes(error):
    text = str(error("cause: " + "\x1b]0;x\x07" * 10**6 + " the end"))
    assert len(text) < 5 * MAX_MESSAGE
    assert "\x1b" not in text and text.startswith("cause: ") and text.endswith("the end")
    assert str(error("line 1\nline 2")) == "line 1\nline 2"
