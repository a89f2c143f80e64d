"""Which device a run uses."""

from __future__ import annotations

import torch

from rl_training.utils.errors import ConfigError


def select_device(name: str) -> torch.device:
    """`auto` takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(name.split(":")[0], True):
        raise ConfigError(f"device {name!r} is not available here; use device: auto, or see `axiomrl doctor`")
    if name.startswith("cuda:") and int(name[5:]) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r} does not exist: there are {torch.cuda.device_count()} CUDA devices")
    return torch.device(name)
