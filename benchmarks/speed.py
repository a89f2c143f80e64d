"""Our own speed relative to a plain inner loop of about the same work, in the same process: what the regression test looks at.

    python -m benchmarks.speed           # prints the ratios beside the stored ones
    python -m benchmarks.speed --write   # stores them in speed_bounds.json, after a change that is meant to alter them

Both parts are timed by the processor time of this process, in turn, so that a busy or slow machine changes the ratio little.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from benchmarks.cases import find_case
from rl_training.api.agent import Agent, agent_class

BOUNDS = Path(__file__).with_name("speed_bounds.json")
ALTERNATIONS = 5


@dataclass(frozen=True)
class Loop:
    """One case of `benchmarks.cases`, its chunk of training, and how many plain operations to hold against it."""

    case: str
    algo: str
    hyperparams: dict[str, Any]
    steps: int
    """Environment steps of ours per measurement."""
    updates: int
    """Forward, backward and optimiser steps of a plain network per measurement."""
    batch: int


LOOPS = (
    Loop(
        "ppo-cartpole",
        "ppo",
        {"num_steps": 128, "num_minibatches": 4, "update_epochs": 4, "ent_coef": 0.0},
        steps=2_048,
        updates=32,
        batch=256,
    ),
    Loop(
        "dqn-cartpole",
        "dqn",
        {"batch_size": 128, "buffer_size": 10_000, "learning_starts": 200, "train_frequency": 1},
        steps=150,
        updates=150,
        batch=128,
    ),
    Loop(
        "sac-pendulum",
        "sac",
        {"batch_size": 256, "buffer_size": 10_000, "learning_starts": 300},
        steps=30,
        updates=90,
        batch=256,
    ),
)


def make_agent(loop: Loop) -> Agent:
    """Our side, warmed up: past its random steps and its first updates."""
    work = find_case(loop.case).work
    agent = agent_class(loop.algo)(
        work["env"],
        num_envs=work["num_envs"],
        seed=0,
        policy={"hidden_sizes": work["hidden"], "activation": work["activation"]},
        **loop.hyperparams,
    )
    agent.learn(total_timesteps=max(loop.steps, loop.hyperparams.get("learning_starts", 0)) + loop.steps)
    return agent


def make_plain_loop(loop: Loop) -> Callable[[], None]:
    """The calibration: as many environment steps, each with a small inference, and plain updates of one network."""
    work = find_case(loop.case).work
    env, rng = gym.make(work["env"]), np.random.default_rng(0)
    first, _ = env.reset(seed=0)
    actions = [env.action_space.sample() for _ in range(16)]
    sizes = [len(first), *work["hidden"]]
    layers = [layer for pair in pairwise(sizes) for layer in (nn.Linear(*pair), nn.ReLU())]
    network = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
    memory = rng.normal(size=(10_000, len(first))).astype(np.float32)

    def run() -> None:
        for step in range(loop.steps):
            obs, _, terminated, truncated, _ = env.step(actions[step % len(actions)])
            if terminated or truncated:
                obs, _ = env.reset()
            if step % work["num_envs"] == 0:  # one inference for all environments
                with torch.no_grad():
                    network(torch.from_numpy(np.repeat(obs[None], work["num_envs"], axis=0)))
        for _ in range(loop.updates):
            batch = torch.from_numpy(memory[rng.integers(0, len(memory), loop.batch)])
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()

    return run


def relative_seconds(loop: Loop, agent: Agent | None = None) -> float:
    """Median over several turns of: processor time of our chunk divided by that of the plain loop before and after it."""
    with one_thread(), untraced():
        agent, plain = agent or make_agent(loop), make_plain_loop(loop)
        plain()
        before, ratios = processor_seconds(plain), []
        for _ in range(ALTERNATIONS):
            ours = processor_seconds(partial(agent.learn, agent.num_timesteps + loop.steps))
            after = processor_seconds(plain)
            ratios.append(2 * ours / (before + after))
            before = after
        agent.close()
    return median(ratios)


def processor_seconds(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def untraced() -> Iterator[None]:
    """Without a coverage tracer, which would slow our package down and not the plain loop."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def load_bounds() -> tuple[dict[str, float], float]:
    """(stored ratio of each case, factor by which a ratio may exceed it)."""
    stored = json.loads(BOUNDS.read_text())
    return dict(stored["ratios"]), float(stored["allowed_factor"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store what is measured")
    options = parser.parse_args()
    stored, factor = load_bounds() if BOUNDS.exists() else ({}, 2.0)
    measured = {}
    for loop in LOOPS:
        measured[loop.case] = round(relative_seconds(loop), 3)
        print(f"{loop.case:<16} {measured[loop.case]:.3f} times the plain loop's time, stored {stored.get(loop.case)}")
    if options.write:
        content = {"allowed_factor": factor, "ratios": measured, "torch": torch.__version__}
        BOUNDS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
