"""DrQ-v2: who trains the encoder, what the targets read, noise by schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.drq_v2 import DrQv2Algorithm, DrQv2Config
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.schedules import Schedule

IMAGES = spaces.Box(0, 255, (3, 12, 12), np.uint8)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def make(**hyperparams: Any) -> DrQv2Algorithm:
    config = DrQv2Config(**{"batch_size": 8, "trunk_size": 5, **hyperparams})
    return DrQv2Algorithm(IMAGES, ACTIONS, config, PolicyConfig(hidden_sizes=(16,)), seed=0, execution="eager")


def batch(seed: int = 0, size: int = 8) -> TransitionBatch:
    rng = np.random.default_rng(seed)

    def images() -> torch.Tensor:
        return torch.from_numpy(rng.integers(0, 256, (size, 3, 12, 12), dtype=np.uint8))

    return TransitionBatch(
        obs=images(),
        actions=torch.from_numpy(rng.uniform(-1, 1, (size, 2)).astype(np.float32)),
        rewards=torch.from_numpy(rng.normal(size=size).astype(np.float32)),
        next_obs=images(),
        discounts=torch.full((size,), 0.9),
        weights=torch.ones(size),
        indices=np.arange(size),
    )


def copied(module: Any) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in module.parameters()]


def moved(before: list[torch.Tensor], module: Any) -> bool:
    return any(not torch.equal(old, new) for old, new in zip(before, module.parameters()))


def test_the_critics_train_the_encoder_and_the_actor_does_not() -> None:
    for critic_rate, actor_rate, expected in ((0.0, 1e-2, (False, True)), (1e-2, 0.0, (True, False))):
        algorithm = make(learning_rate=critic_rate, actor_learning_rate=actor_rate)
        encoder, actor = copied(algorithm.policy.encoder), copied(algorithm.policy.actor)
        algorithm.update(batch(), 0.0)
        assert (moved(encoder, algorithm.policy.encoder), moved(actor, algorithm.policy.actor)) == expected


def test_targets_read_the_online_encoder_and_follow_the_critics_alone() -> None:
    algorithm = make(tau=0.5, learning_rate=1e-2)
    assert [*algorithm.target_networks()] == ["critics"]
    before = copied(algorithm.target_critics)
    algorithm.update(batch(), 0.0)
    for old, target, online in zip(
        before, algorithm.target_critics.parameters(), algorithm.policy.critics.parameters()
    ):
        torch.testing.assert_close(target, 0.5 * old + 0.5 * online.detach())


def test_the_target_by_hand() -> None:
    algorithm = make(random_shift=0, exploration_noise=0.0)
    data = batch()
    features = algorithm.policy.encoder(data.obs)
    found = algorithm._critic_loss(data, features, algorithm.generator)
    with torch.no_grad():
        next_features = algorithm.policy.encoder(data.next_obs)
        actions = algorithm.policy.actor(next_features)
        q = algorithm.target_critics(torch.cat([next_features, actions], dim=-1)).squeeze(-1)
        targets = data.rewards + 0.9 * torch.minimum(q[0], q[1])
    torch.testing.assert_close(found.loss, 0.5 * (found.q - targets).square().mean(dim=1).sum())


def test_noise_follows_its_schedule_and_is_clipped() -> None:
    algorithm = make(exploration_noise=Schedule(1.0, 0.0, 0.5), target_noise_clip=0.3)
    metrics = algorithm.update(batch(), 0.25)
    assert metrics["exploration_noise"].item() == pytest.approx(0.5)
    features = algorithm.policy.encoder(batch().obs)
    plain = algorithm.policy.actor(features)
    differences = (algorithm._noisy_actions(features, algorithm.generator) - plain).abs()
    assert 0.05 < differences.max() <= 0.3 + 1e-6


def test_updates_see_shifted_images() -> None:
    one, other = make(random_shift=0), make(random_shift=4)
    for algorithm in (one, other):
        algorithm.update(batch(), 0.0)
    assert not torch.equal(next(one.policy.encoder.parameters()), next(other.policy.encoder.parameters()))
