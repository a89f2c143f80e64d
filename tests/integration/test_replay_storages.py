"""Where the replay buffer lies decides nothing about what is learned from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.gpu import needs_gpu
from rl_training import SAC, TrainConfig
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.trees import differing_paths


@pytest.mark.parametrize(
    ("device", "storage"), [("cpu", "disk"), pytest.param("cuda", "device", marks=needs_gpu)], ids=["disk", "gpu"]
)
def test_the_same_is_learned_wherever_the_replay_lies(tmp_path: Path, device: str, storage: str) -> None:
    weights = []
    for place in ("ram", storage):
        config = TrainConfig(
            algo="sac",
            env_id="Pendulum-v1",
            num_envs=2,
            total_timesteps=500,
            device=device,
            output_dir=str(tmp_path / place),
            policy=PolicyConfig(hidden_sizes=(16,)),
            # Episodes end after 200 steps, and 150 rows are overwritten three times.
            hyperparams={"replay_storage": place, "learning_starts": 50, "batch_size": 32, "buffer_size": 150},
        )
        agent = SAC(config)
        agent.learn()
        weights.append({name: tensor.clone() for name, tensor in agent.policy.state_dict().items()})
        agent.close()
    assert weights[0] and differing_paths(*weights) == []
