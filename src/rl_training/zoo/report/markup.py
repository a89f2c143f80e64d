"""HTML built so that text is always escaped: only what `tag` returns counts as markup."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import Any

_NOT_IN_A_PAGE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Html(str):
    """Text that is markup already."""


Child = str | int | float | None


def tag(name: str, /, *children: Child, **attributes: Any) -> Html:
    """One element. `class_` and `data_x` stand for `class` and `data-x`; None and False leave an attribute out."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None and value is not False:
            attribute = key.rstrip("_").replace("_", "-")
            parts.append(attribute if value is True else f'{attribute}="{escape(value)}"')
    opening = f"<{' '.join(parts)}>"
    return Html(opening if name in ("meta", "br", "img") else f"{opening}{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Children one after the other; those that are not markup are escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children if child is not None))


def escape(value: object) -> str:
    """Text safe in an element and in a quoted attribute; characters that no page may hold or that turn text round become U+FFFD."""
    text = _NOT_IN_A_PAGE.sub("\ufffd", str(value))
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))


def json_script(identifier: str, value: Any) -> Html:
    """Data for the page's script; `<` and `&` are written so that no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return tag("script", Html(text), type="application/json", id=identifier)


def code_text(text: str) -> Html:
    """Text in which `backquotes` mark code, of which a short piece stays on one line and a long one may break."""
    parts: list[str] = text.split("`")
    parts[1::2] = [tag("code", code, class_="short" if len(code) <= 36 else None) for code in parts[1::2]]
    return join(*parts)


def table(caption: str, header: Sequence[tuple[str, bool]], rows: Sequence[Sequence[Child]], **attributes: Any) -> Html:
    """A table whose columns are (name, numeric); the first cell of each row heads it. It scrolls sideways by itself."""
    head = tag("tr", *(tag("th", name, scope="col", class_="n" if numeric else None) for name, numeric in header))
    body = []
    for row in rows:
        cells = [tag("td", cell, class_="n" if numeric else None) for cell, (_, numeric) in zip(row[1:], header[1:])]
        body.append(tag("tr", tag("th", row[0], scope="row"), *cells))
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), **attributes)
    return tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption)


def figures(text: str) -> str:
    """Numbers as shown on the page: a true minus sign, no line break before %, and a longer dash for none."""
    if text == "-":
        return "\N{EN DASH}"
    return re.sub(r"(?<![\w-])-(?=\d)", "\N{MINUS SIGN}", text).replace(" %", "\N{NO-BREAK SPACE}%")
