"""HTML in which text is always escaped."""

from __future__ import annotations

import json

from rl_training.zoo.report.markup import Html, code_text, figures, join, json_script, table, tag


def test_text_is_escaped_and_markup_is_not() -> None:
    assert tag("p", "<b>", tag("i", 'a & "b"')) == "<p>&lt;b&gt;<i>a &amp; &quot;b&quot;</i></p>"
    assert join("<", Html("<wbr>"), None, 5) == "&lt;<wbr>5"


def test_attributes_are_escaped_and_named_as_in_html() -> None:
    made = tag("a", "x", href='"><script>', class_="run", data_s=0, aria_label="it's", hidden=True, open=False, id=None)
    assert made == ('<a href="&quot;&gt;&lt;script&gt;" class="run" data-s="0" aria-label="it&#x27;s" hidden>x</a>')


def test_characters_that_no_page_may_hold_are_replaced() -> None:
    assert tag("p", "a\x00b\x1bc\ud800d\n") == "<p>a\ufffdb\ufffdc?d\n</p>"


def test_data_for_the_script_cannot_end_its_element() -> None:
    value = {"label": "</script><!--&\u2028"}
    made = json_script("x", value)
    inside = made.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert not set("<>&\u2028") & set(inside)
    assert json.loads(inside) == value


def test_backquotes_mark_code() -> None:
    assert code_text("try `a<b` now") == 'try <code class="short">a&lt;b</code> now'


def test_a_table_has_scopes_and_a_caption() -> None:
    made = table("Runs", [("Name", False), ("Score", True)], [["a<", 1]], class_="dense")
    assert "<caption>Runs</caption>" in made and '<th scope="col" class="n">Score</th>' in made
    assert '<th scope="row">a&lt;</th><td class="n">1</td>' in made


def test_numbers_get_a_minus_sign_and_names_keep_their_hyphens() -> None:
    assert figures("-1.5 on CartPole-v1, run 2026-01 (-3 to 4 %)") == (
        "\N{MINUS SIGN}1.5 on CartPole-v1, run 2026-01 (\N{MINUS SIGN}3 to 4\N{NO-BREAK SPACE}%)"
    )
    assert figures("-") == "\N{EN DASH}"


def test_marks_that_turn_text_round_do_not_reach_the_page() -> None:
    assert tag("p", "a\u202eb\u2066c\x9bd") == "<p>a\ufffdb\ufffdc\ufffdd</p>"
