"""Whether this machine can hold what a config asks for: said before anything is allocated, with the way out."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.experiment import registry
from rl_training.experiment.checkpoint.snapshot import Spaces, meta_policy
from rl_training.experiment.config.train_config import TrainConfig
from rl_training.utils.errors import ConfigError, OutOfMemoryError
from rl_training.utils.spaces import ActionAdapter, obs_layout

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_ENV_BYTES = {"sync": 8 << 10, "async": 16 << 20, "native": 64, "tensor": 64}
"""What an environment takes at least, by backend; in a worker it brings a whole interpreter along."""

_WEIGHT_COPIES = 4
"""Weights, their gradient, and the optimiser's two memories of them."""


def memory_limit(device: torch.device | None = None) -> int:
    """Bytes that this process may use at most: of the GPU, or of the machine and the container around it."""
    if device is not None and device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    except (AttributeError, ValueError, OSError):  # a system that does not tell
        limits = [sys.maxsize]
    for path in _CGROUP_LIMITS:
        try:
            limits.append(int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(limits)


def check_environments(config: TrainConfig) -> None:
    """Refuses a number of environments that cannot be made, before any is."""
    for key, count, backend in (
        ("num_envs", config.num_envs, config.env.backend),
        ("evaluation.num_envs", min(config.evaluation.num_envs, config.evaluation.episodes), "sync"),
    ):
        needed, limit = count * _ENV_BYTES[backend], memory_limit()
        if needed > limit:
            raise ConfigError(
                f"{key} is {count:,}: {backend} environments take {size_text(needed)} at least, and this machine has "
                f"{size_text(limit)}. Choose a smaller number."
            )


def check_networks(config: TrainConfig, hyperparams: Any, env_spaces: Spaces, device: torch.device) -> None:
    """Refuses networks that are larger than the memory they go into."""
    weights = _weight_count(config, hyperparams, env_spaces)
    if weights is not None:
        _require(
            weights * 4 * _WEIGHT_COPIES,
            device,
            f"the networks have {weights:,} weights, which take",
            "with gradients and the optimiser's memory",
            "Choose smaller ones: policy.hidden_sizes, policy.actor_hidden_sizes, policy.critic_hidden_sizes.",
        )


def check_buffers(config: TrainConfig, hyperparams: Any, env_spaces: Spaces, device: torch.device) -> None:
    """Refuses rollouts and replay buffers that are larger than the memory they go into."""
    kind = registry.algorithm_info(config.algo).trainer
    if kind == "on_policy":
        steps = hyperparams.num_steps * config.num_envs
        _require(
            steps * (_obs_bytes(env_spaces) + _action_bytes(env_spaces) + 27),
            device,
            f"a rollout has num_steps × num_envs = {steps:,} steps, which take",
            f"{_obs_bytes(env_spaces):,} bytes of each for the observation",
            "Choose smaller ones.",
        )
    elif kind == "off_policy":
        _check_replay(config, hyperparams, env_spaces, device)


def _check_replay(config: TrainConfig, hyperparams: Any, env_spaces: Spaces, device: torch.device) -> None:
    storage, count = hyperparams.replay_storage, hyperparams.buffer_size
    obs_bytes = _obs_bytes(env_spaces) // config.env.stacked_frames
    stored = obs_bytes + _action_bytes(env_spaces)
    beside = 8 + (8 if hyperparams.prioritized else 0)
    row = beside if storage == "disk" else stored + beside
    place = device if storage == "device" else torch.device("cpu")
    fits = _rounded(memory_limit(place) // 2 // max(row, 1))
    fits = min(fits, config.total_timesteps) if config.total_timesteps >= 1000 else fits
    elsewhere = ", or hyperparams.replay_storage: disk" if storage != "disk" else ""
    _require(
        count * row,
        place,
        f"the replay buffer has room for {count:,} transitions, which take",
        f"{obs_bytes:,} bytes of each for the observation",
        f"Choose hyperparams.buffer_size: {fits} or less{elsewhere}.",
    )


def _require(needed: int, device: torch.device, what: str, detail: str, way_out: str) -> None:
    limit = memory_limit(device)
    if needed > limit:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise ConfigError(f"{what} {size_text(needed)} ({detail}), and {where} has {size_text(limit)}.\n{way_out}")


def _weight_count(config: TrainConfig, hyperparams: Any, env_spaces: Spaces) -> int | None:
    try:
        policy = meta_policy(config, hyperparams, env_spaces)
    except (
        Exception
    ):  # an encoder of the user's may need real numbers; a mistake in it shows when it is made in earnest
        return None
    return sum(parameter.numel() for parameter in policy.parameters())


def _obs_bytes(env_spaces: Spaces) -> int:
    shapes, dtypes = obs_layout(env_spaces.observation)
    if not isinstance(shapes, Mapping):
        shapes, dtypes = {"": shapes}, {"": dtypes}
    return sum(math.prod(shape) * np.dtype(dtypes[key]).itemsize for key, shape in shapes.items())


def _action_bytes(env_spaces: Spaces) -> int:
    adapter = ActionAdapter(env_spaces.action)
    return math.prod(adapter.shape) * np.dtype(adapter.dtype).itemsize


def _rounded(number: int) -> int:
    """The number with one digit and zeros, below it."""
    scale = 10 ** max(len(str(number)) - 1, 0)
    return number // scale * scale


def size_text(count: int) -> str:
    """Bytes in words."""
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} bytes"


@contextmanager
def memory_named(what: str) -> Iterator[None]:
    """Turns a failed allocation inside it into words."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            raise OutOfMemoryError(
                f"memory ran out while {what}: {_first_line(error)}\n"
                "Smaller networks (policy.hidden_sizes), fewer environments (num_envs) or a smaller buffer "
                "(hyperparams.buffer_size, hyperparams.num_steps) need less."
            ) from error
        raise


def _first_line(error: BaseException) -> str:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return text.rpartition("DefaultCPUAllocator: ")[2][:200]
