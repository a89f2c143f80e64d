"""What the parity tests of the continuous one-file references share."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import runpy
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer, TransitionBatch
from rl_training.experiment.config.loader import resolve
from rl_training.experiment.run.build import build_algorithm, complete_config

EXAMPLES = Path(__file__).parents[2] / "examples"
OBS_SPACE = gym.spaces.Box(-10.0, 10.0, (3,))
ACTION_SPACE = gym.spaces.Box(-2.0, 2.0, (2,))


def load_reference(name: str) -> ModuleType:
    """A script in examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run_script(path: Path, *arguments: str) -> str:
    """What a script prints, run as from the command line but in this process, which has torch already."""
    threads, argv, printed = torch.get_num_threads(), sys.argv, io.StringIO()
    sys.argv = [str(path), *arguments]
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = argv
        torch.set_num_threads(threads)
    return printed.getvalue()


def packages_of(source: str) -> set[str]:
    """What a script imports beyond the standard library."""
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    return imported - set(sys.stdlib_module_names)


class EndingPendulum(gym.Wrapper[Any, Any, Any, Any]):
    """Pendulum that ends when it spins fast, driven by the mean of two torques: ends of both kinds, more than one action."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1", max_episode_steps=12))
        self.action_space = ACTION_SPACE

    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = self.env.step(action.mean(keepdims=True))
        terminated = bool(abs(obs[2]) > 3.0)
        return obs, reward, terminated, truncated and not terminated, info


def both_replays(reference: ModuleType, steps: int) -> tuple[Any, ReplayBuffer, np.ndarray]:
    """The same random episodes in the reference's replay and in the package's, and which steps a time limit ended."""
    rng = np.random.default_rng(0)
    env = EndingPendulum()
    plain = reference.Replay(1000, 3, 2, rng)
    ours = ReplayBuffer(1000, 1, (3,), (2,), gamma=reference.Config.gamma)
    cut = np.zeros(steps, np.bool_)
    obs, _ = env.reset(seed=3)
    for step in range(steps):
        action = rng.uniform(-1.0, 1.0, 2).astype(np.float32)
        next_obs, reward, terminated, truncated, _ = env.step(action * ACTION_SPACE.high)
        plain.add(obs, action, reward, next_obs, terminated)
        ours.add(
            obs=torch.as_tensor(obs)[None],
            actions=torch.as_tensor(action)[None],
            rewards=torch.tensor([reward], dtype=torch.float32),
            next_obs=torch.as_tensor(next_obs)[None],
            terminated=torch.tensor([terminated]),
            truncated=torch.tensor([truncated]),
            valid=torch.tensor([True]),
        )
        cut[step] = truncated
        obs = env.reset()[0] if terminated or truncated else next_obs
    assert plain.terminated.sum() > 5 and cut.sum() > 5
    return plain, ours, cut


def same_batch(reference: ModuleType, plain: Any, batch: TransitionBatch) -> Any:
    """The transitions of a batch of the package's, taken from the reference's replay; they must be the same."""
    rows = batch.indices  # one environment: the index is the number of the step
    columns = (plain.obs, plain.actions, plain.rewards, plain.next_obs, plain.terminated)
    same = reference.Batch(*(torch.from_numpy(column[rows]) for column in columns))
    for name in ("obs", "actions", "rewards", "next_obs"):
        assert torch.equal(getattr(same, name), getattr(batch, name)), name
    assert torch.allclose(reference.Config.gamma * (~same.terminated).float(), batch.discounts)
    return same


def rows_of(batch: TransitionBatch, mask: np.ndarray) -> TransitionBatch:
    columns = {field.name: getattr(batch, field.name) for field in fields(batch)}
    rows = torch.from_numpy(mask)
    return TransitionBatch(**{name: own[rows if isinstance(own, Tensor) else mask] for name, own in columns.items()})


def algorithm_of_preset(preset: str, **changes: Any) -> Any:
    """The algorithm as the preset sets it up, for the spaces of `EndingPendulum`."""
    config, hyperparams = complete_config(resolve(preset).config)
    return build_algorithm(config, replace(hyperparams, **changes), OBS_SPACE, ACTION_SPACE, torch.device("cpu"))


def assert_same(ours: list[Tensor], plain: list[Tensor], tolerance: float) -> None:
    assert len(ours) == len(plain) > 0
    for one, other in zip(ours, plain):
        torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


def run_loop(reference: ModuleType, monkeypatch: pytest.MonkeyPatch, config: Any) -> tuple[Any, Any, list[Any]]:
    """The trained agent, the replay it filled, and what each update returned."""
    replays: list[Any] = []
    updates: list[Any] = []
    update, kind = reference.update, reference.Replay

    class Recorded(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            replays.append(self)

    monkeypatch.setattr(reference, "Replay", Recorded)
    monkeypatch.setattr(reference, "update", lambda *args: updates.append(update(*args)))
    threads = torch.get_num_threads()
    try:
        agent = reference.train(config)
    finally:
        torch.set_num_threads(threads)
    (replay,) = replays
    return agent, replay, updates


def assert_is_what_happened(replay: Any, steps: int) -> None:
    """Takes the remembered actions again, times 2, in an environment of its own."""
    assert replay.count == steps and np.abs(replay.actions).max() <= 1
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    limits = 0
    for row in range(steps):
        assert np.array_equal(replay.obs[row], obs), row
        obs, reward, _, truncated, _ = env.step(2 * replay.actions[row])
        assert np.array_equal(replay.next_obs[row], obs) and replay.rewards[row] == np.float32(reward), row
        if truncated:
            limits += 1
            obs, _ = env.reset()
    assert limits == steps // 200
    assert not replay.terminated.any(), "a time limit is not an end"
