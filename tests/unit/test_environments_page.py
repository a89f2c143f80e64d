"""The table of environments from other packages says what was measured."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ENTRIES: list[dict[str, Any]] = json.loads((ROOT / "results/environments/third_party.json").read_text())["environments"]


def test_the_table_is_the_file() -> None:
    spec = importlib.util.spec_from_file_location("check_environments", ROOT / "scripts/check_environments.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script  # dataclasses look there
    spec.loader.exec_module(script)
    page = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
    assert script.table(ENTRIES) in page, "run python scripts/check_environments.py --table"
    assert {entry["environment"] for entry in ENTRIES} <= {case.env for case in script.CASES}


def test_no_grade_was_false() -> None:
    for entry in ENTRIES:
        if entry.get("grades") == ["exact"]:
            assert entry["identical"] and entry["kills"] >= 1, entry["environment"]
    working = [entry for entry in ENTRIES if entry["trains"] and entry["resumes"] and entry["reports"]]
    assert len(working) >= 10
