"""docs/compatibility.md names every private function of torch that the package uses."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRIVATE = re.compile(
    r"torch\.(?:utils\.)?_\w+(?:\.\w+)*|(?<=\.)_schema\b|(?<=\.)_op\b|_should_skip_dynamo|RemovableHandle\.next_id"
    r"|\"(?:_parameters|_buffers|_modules|_\w+_hooks)\"|(?<=\.)_parameters\b"
)


def test_the_list_is_complete() -> None:
    documented = (ROOT / "docs" / "compatibility.md").read_text()
    used = {
        found.strip('"')
        for path in (ROOT / "src").rglob("*.py")
        for found in PRIVATE.findall(re.sub(r"from (torch\.utils\._\w+) import (\w+)", r"\1.\2", path.read_text()))
    }
    assert {"torch._fused_adam_", "_schema"} <= used, "the pattern finds something"
    assert not {name for name in used if name not in documented}
