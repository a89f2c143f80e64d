"""Versions of what can change a result, and which of them are others now than when a checkpoint was saved."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import types
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rl_training.version import __version__

_PACKAGES = ("torch", "gymnasium", "numpy", "safetensors", "mujoco", "box2d", "ale-py")
_SAME_NUMBERS = frozenset(("safetensors",))
"""They are named in the metadata, and change no number."""


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """By package name."""
    found = {"axiomrl": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_versions(env_id: str, envs: VectorEnv[Any, Any, Any] | None) -> dict[str, str]:
    """Of what a run computes with: the packages above, and those that the environment comes from or uses."""
    found = {name: version for name, version in versions().items() if name not in _SAME_NUMBERS}
    found["python"] = ".".join(platform.python_version_tuple()[:2])
    module = _env_module(env_id, envs)
    names = {name for name in _used_packages(module) if name not in sys.stdlib_module_names}
    if names - {"gymnasium", "numpy", "torch", "mujoco", "Box2D", "rl_training", "__main__"}:
        distributions = _distributions()
        for package in sorted({package for name in names for package in distributions.get(name, ())}):
            if package.lower() not in found:
                found[package] = importlib.metadata.version(package)
    return found


def changed_versions(saved: Any, now: Mapping[str, str]) -> list[str]:
    """What is not as it was, such as "numpy 2.4.6, saved with 2.3.0"; a checkpoint that does not say is taken at its word."""
    if not isinstance(saved, Mapping):
        return []
    return [
        f"{name} {now.get(name, 'is missing')}, saved with {saved.get(name, 'none')}"
        for name in sorted({**saved, **now})
        if saved.get(name) != now.get(name)
    ]


def _env_module(env_id: str, envs: VectorEnv[Any, Any, Any] | None) -> str:
    """The module of the environment's class."""
    single = getattr(getattr(envs, "unwrapped", None), "envs", None)
    if single:
        return type(single[0].unwrapped).__module__
    spec = gym.registry.get(env_id)
    entry_point = None if spec is None else spec.entry_point
    return (
        entry_point.partition(":")[0] if isinstance(entry_point, str) else str(getattr(entry_point, "__module__", ""))
    )


def _used_packages(module: str) -> Iterator[str]:
    """The top-level packages of the module and of what it has imported."""
    yield module.partition(".")[0]
    for value in list(vars(sys.modules.get(module, types)).values()):
        if isinstance(value, types.ModuleType):
            yield value.__name__.partition(".")[0]
        elif isinstance(value, type | types.FunctionType):
            yield value.__module__.partition(".")[0]


@lru_cache(maxsize=1)
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()
