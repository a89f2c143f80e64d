"""docs/config-schema.md."""

from pathlib import Path

from rl_training.experiment.config.docs import config_schema_markdown


def test_the_page_in_the_repository_is_up_to_date() -> None:
    page = Path(__file__).parents[4] / "docs" / "config-schema.md"
    assert page.read_text(encoding="utf-8") == config_schema_markdown(), "run python scripts/make_config_schema.py"


def test_rows_show_type_default_range_and_description() -> None:
    lines = config_schema_markdown().splitlines()
    assert "| `seed` | integer | `0` | >= 0 and < 4294967296 | Seed of every random generator of the run. |" in lines
    assert any(line.startswith("| `hidden_sizes` | list of integers | `[64, 64]` | >= 1 | Width") for line in lines)
    assert any(line.startswith("| `learning_rate` | number or schedule |") for line in lines)
    assert any(line.startswith("| `start` | number | required |") for line in lines)
