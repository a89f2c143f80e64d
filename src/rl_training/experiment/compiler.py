"""Whether a run's updates are compiled, and what stands in the way if they cannot be."""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms.base import Algorithm
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.errors import ConfigError

WORTH_IT = 50_000
"""Updates from which on compiling pays for itself, by a wide margin."""
NEEDED_TORCH = (2, 13)
"""The first release seen to compile gradients and optimiser together with the loss."""


def wants_compiling(
    config: TrainConfig, algorithm_class: type[Algorithm[Any, Any]], hyperparams: Any, device: torch.device
) -> bool:
    """What `compile` comes to here. Warns if the config asks for it and it is not possible; the run then goes on without."""
    if config.compile is False:
        return False
    if config.compile is True and not algorithm_class.can_compile:
        raise ConfigError(f"{config.algo} cannot be compiled: leave out `compile`, or set it to false or auto.")
    problem = compiling_problem(device)
    if config.compile == "auto":
        updates = config.total_timesteps * algorithm_class.updates_per_step(hyperparams, config.num_envs)
        return problem is None and algorithm_class.can_compile and updates >= WORTH_IT
    if problem is not None:
        warnings.warn(f"compile: true, but {problem} The run goes on without compiling.", stacklevel=2)
    return problem is None


def compiling_problem(device: torch.device) -> str | None:
    """Why nothing can be compiled for this device on this machine, and what would help; None if it can."""
    # On a GPU updates are recorded as CUDA graphs anyway, and compiled ones were seen not to repeat bit for bit.
    if device.type != "cpu":
        return f"updates are compiled for a CPU only, and this run uses the device {device.type}."
    release = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if release < NEEDED_TORCH:
        return f"PyTorch {torch.__version__} cannot compile a whole update: install 2.13 or newer."
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"the C++ compiler {compiler} is not there: install g++ (apt install g++), or name another in CXX."
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "Python's header files are not there: install python3-dev."
    return None
