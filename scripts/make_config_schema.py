"""Writes docs/config-schema.md from the config dataclasses."""

from pathlib import Path

from rl_training.experiment.config.docs import config_schema_markdown

if __name__ == "__main__":
    path = Path(__file__).parents[1] / "docs" / "config-schema.md"
    path.write_text(config_schema_markdown(), encoding="utf-8")
    print(f"wrote {path}")
