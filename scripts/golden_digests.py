"""Digests of short seeded runs: what a refactoring must leave as it is, to the bit.

    python scripts/golden_digests.py record FILE   # before a change
    python scripts/golden_digests.py check FILE    # after it; says which runs differ, and in what

A digest covers the weights, the optimisers' memory and the returns of an evaluation. It holds on one kind of processor and one
version of torch, which the file names: elsewhere sums are rounded in another order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rl_training

REPLAY: dict[str, Any] = {"learning_starts": 200, "batch_size": 32, "buffer_size": 2_000, "num_envs": 2}
SMALL: dict[str, Any] = {"policy": {"hidden_sizes": (32, 32)}}
NORMALIZED: dict[str, Any] = {"env": {"normalize_observations": True}}

RUNS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "ppo": ("PPO", "CartPole-v1", 2_048, {}),
    "ppo_continuous": (
        "PPO",
        "Pendulum-v1",
        2_048,
        {"env": {"normalize_observations": True, "normalize_rewards": True}, "policy": {"activation": "relu"}},
    ),
    "a2c": ("A2C", "CartPole-v1", 1_000, {}),
    "trpo": ("TRPO", "Pendulum-v1", 2_048, NORMALIZED),
    "dqn": ("DQN", "CartPole-v1", 1_000, {**REPLAY, **NORMALIZED}),
    "rainbow": ("Rainbow", "CartPole-v1", 800, {**REPLAY, **SMALL}),
    "iqn": ("IQN", "CartPole-v1", 600, {**REPLAY, **SMALL}),
    "sac": ("SAC", "Pendulum-v1", 600, {**REPLAY, **SMALL, **NORMALIZED}),
    "td3": ("TD3", "Pendulum-v1", 600, {**REPLAY, **SMALL}),
    "redq": ("REDQ", "Pendulum-v1", 300, {**REPLAY, **SMALL, "gradient_steps": 4, "policy_delay": 4}),
    "droq": ("DroQ", "Pendulum-v1", 300, {**REPLAY, **SMALL, "gradient_steps": 4, "policy_delay": 4}),
    "crossq": (
        "CrossQ",
        "Pendulum-v1",
        400,
        {**REPLAY, "policy": {"hidden_sizes": (32, 32), "critic_hidden_sizes": (32, 32)}},
    ),
    "tqc": ("TQC", "Pendulum-v1", 400, {**REPLAY, **SMALL}),
    "discrete_sac": ("DiscreteSAC", "CartPole-v1", 600, {**REPLAY, **SMALL}),
}
"""Name: class, environment, steps, settings."""


def digest_of(name: str, mode: str) -> dict[str, str]:
    """The digests of one run."""
    kind, env, steps, settings = RUNS[name]
    if mode == "eager":
        settings = eager(settings)
    agent = getattr(rl_training, kind)(env, seed=7, **{"num_envs": 4, **settings})
    agent.learn(total_timesteps=steps)
    evaluation = agent.evaluate(num_episodes=3, num_envs=3, seed=5)
    state = agent.algorithm.state_dict()
    found = {
        "weights": _digest(agent.policy.state_dict()),
        "optimizers": _digest(state["optimizers"]),
        "targets": _digest(state.get("targets", {})),
        "evaluation": _digest({"returns": np.array(evaluation.returns)}),
    }
    agent.close()
    return found


def eager(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "execution": "eager"}


def _digest(tree: Any) -> str:
    """Of all numbers in a tree, whatever they are called and in whatever order they come."""
    parts = sorted(hashlib.sha256(array.tobytes()).hexdigest() for array in _arrays(tree))
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _arrays(tree: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from _arrays(value)
    elif isinstance(tree, Tensor):
        yield tree.detach().cpu().contiguous().numpy()
    elif isinstance(tree, np.ndarray):
        yield tree


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
    return {"cpu": models[0] if models else platform.processor(), "torch": torch.__version__, "numpy": np.__version__}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", nargs="*", default=[], help="names of runs")
    options = parser.parse_args()
    names = [name for name in RUNS if not options.only or name in options.only]
    torch.set_num_threads(1)
    found = {mode: {name: digest_of(name, mode) for name in names} for mode in ("auto", "eager")}
    if options.action == "record":
        options.file.write_text(json.dumps({"machine": machine(), "digests": found}, indent=1) + "\n")
        return 0
    stored = json.loads(options.file.read_text())
    if stored["machine"] != machine():
        print(f"recorded on {stored['machine']}, this is {machine()}: digests may differ for that alone")
    differences = [
        f"{mode} {name}: {part}"
        for mode, runs in found.items()
        for name, parts in runs.items()
        for part, digest in parts.items()
        if stored["digests"][mode].get(name, {}).get(part) != digest
    ]
    print("\n".join(differences) if differences else f"all {2 * len(names)} runs as recorded")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
