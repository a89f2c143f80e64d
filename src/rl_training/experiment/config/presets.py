"""The presets that come with the package, as names and texts. Listing them imports neither torch nor Gymnasium."""

from __future__ import annotations

import importlib.resources
from itertools import takewhile


def preset_names() -> list[str]:
    """The names of the presets in the package, such as `ppo/cartpole`, in order."""
    root = importlib.resources.files("rl_training") / "zoo" / "presets"
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.yaml')}"
        for folder in root.iterdir()
        if folder.is_dir()
        for file in folder.iterdir()
        if file.name.endswith(".yaml")
    )


def preset_text(name: str) -> str:
    """The YAML text of a preset; `name` is one of `preset_names()`, checked by the caller."""
    return importlib.resources.files("rl_training").joinpath("zoo", "presets", f"{name}.yaml").read_text("utf-8")


def preset_about(name: str) -> str:
    """What a preset is, in its own words: the comment it begins with, on one line."""
    comment = takewhile(lambda line: line.startswith("#"), preset_text(name).splitlines())
    return " ".join(line.removeprefix("#").strip() for line in comment)
