"""Off-policy updates that follow the choice of the next actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import rl_training
from rl_training import Callback, TrainConfig


class Order(Callback):
    """Notes the updates made so far at each iteration's end, and stops early."""

    name = "order"

    def __init__(self, stop_at: int | None = None):
        self.updates: list[int] = []
        self._stop_at = stop_at

    def on_iteration_end(self, trainer: Any) -> None:
        self.updates.append(trainer.algorithm.updates)
        if trainer.global_step == self._stop_at:
            trainer.stop("half-way", interrupted=True)


def config(folder: Path, **settings: Any) -> TrainConfig:
    return TrainConfig(
        algo="td3",
        env_id="Pendulum-v1",
        seed=3,
        num_envs=1,
        device="cpu",
        total_timesteps=30,
        output_dir=str(folder),
        policy={"hidden_sizes": [8], "activation": "relu"},
        hyperparams={
            "learning_starts": 10,
            "batch_size": 4,
            "buffer_size": 100,
            "train_frequency": 2,
            "gradient_steps": 3,
        },
        evaluation={"every": 0},
        logging={"console": "off", "tensorboard": False},
        **settings,
    )


def test_updates_wait_for_the_next_actions_and_none_is_lost(tmp_path: Path) -> None:
    counts = {}
    for overlap in (False, True):
        order = Order()
        rl_training.TD3(config(tmp_path, overlap=overlap)).learn(callbacks=[order])
        counts[overlap] = order.updates
    # Iterations end at 2, 4, … 30; three updates are due at 10 and at each multiple of 2 behind it.
    assert counts[False] == [0] * 4 + [3 * k for k in range(1, 12)]
    assert counts[True] == [0] * 5 + [3 * k for k in range(1, 10)] + [33], "one phase later, and the last in the end"


def test_what_is_due_survives_an_interruption(tmp_path: Path) -> None:
    whole = rl_training.TD3(config(tmp_path / "whole", overlap=True))
    whole.learn()
    first = rl_training.TD3(config(tmp_path / "parts", overlap=True))
    first.learn(callbacks=[Order(stop_at=16)])
    first.save(str(tmp_path / "half"))
    second = rl_training.TD3.load(str(tmp_path / "half"))
    second.learn(total_timesteps=30)
    for (name, ours), theirs in zip(
        whole.algorithm.policy.state_dict().items(), second.algorithm.policy.state_dict().values()
    ):
        assert torch.equal(ours, theirs), name
