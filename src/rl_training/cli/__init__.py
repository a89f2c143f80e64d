"""The command line `axiomrl`. Importing it loads neither torch nor Gymnasium."""

from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.cli.main import main as main

if TYPE_CHECKING:
    from rl_training.experiment.config.train_config import TrainConfig


def load_config(path: str | Path) -> "TrainConfig":
    """The config in a YAML file."""
    from rl_training.experiment.config.loader import load_config as load

    return load(path)
