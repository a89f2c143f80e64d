"""The page on speed says what the data files say."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _script():
    spec = importlib.util.spec_from_file_location("page", ROOT / "scripts" / "make_performance_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_made_from_the_data_files():
    text = (ROOT / "docs" / "performance.md").read_text()
    assert _script().updated(text) == text, "run: python scripts/make_performance_page.py"


def test_no_stage_grows_faster_than_linearly():
    record = json.loads((ROOT / "results" / "performance" / "growth.json").read_text())
    for study in ("envs", "widths", "batches"):
        for stage, slopes in record[study]["slopes"].items():
            assert max(slopes) <= 1.05, (study, stage, slopes)


def test_the_page_and_the_benchmarks_mean_the_same_untuned_cases():
    cases = (ROOT / "benchmarks" / "cases.py").read_text(encoding="utf-8")
    listed = cases.split("UNTUNED = (")[1].split(")")[0].replace('"', "").replace(",", " ").split()
    assert tuple(listed) == _script().UNTUNED
