"""TQC: the truncation and the loss by hand, and the parts it leaves to SAC."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.algorithms.sac_variants import DroQAlgorithm, DroQConfig, REDQAlgorithm, REDQConfig
from rl_training.algorithms.tqc import TQCAlgorithm, TQCConfig, truncated
from rl_training.data.replay_buffer import TransitionBatch
from rl_training.policies.policy_config import PolicyConfig
from rl_training.utils.errors import ConfigError

OBS, ACT = spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))


def a_batch(size: int = 4) -> TransitionBatch:
    generator = torch.Generator().manual_seed(5)
    return TransitionBatch(
        obs=torch.randn(size, 3, generator=generator),
        actions=torch.rand(size, 2, generator=generator) * 2 - 1,
        rewards=torch.randn(size, generator=generator),
        next_obs=torch.randn(size, 3, generator=generator),
        discounts=torch.full((size,), 0.9),
        weights=torch.ones(size),
        indices=np.arange(size),
    )


def tqc(**settings: object) -> TQCAlgorithm:
    return TQCAlgorithm(OBS, ACT, TQCConfig(**settings), PolicyConfig(hidden_sizes=(8,), activation="relu"))  # type: ignore[arg-type]


def test_the_largest_of_all_pooled_atoms_are_dropped_not_the_largest_of_each_critic() -> None:
    # Two critics, one state, three atoms each; dropping one per critic drops 9 and 8, both of the first critic.
    quantiles = torch.tensor([[[9.0, 1.0, 8.0]], [[2.0, 3.0, 0.0]]])
    assert truncated(quantiles, 1).tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert truncated(quantiles, 0).tolist() == [[0.0, 1.0, 2.0, 3.0, 8.0, 9.0]]


def test_states_are_pooled_apart() -> None:
    quantiles = torch.tensor([[[1.0, 2.0], [10.0, 20.0]], [[3.0, 4.0], [30.0, 40.0]]])  # (N=2, B=2, K=2)
    assert truncated(quantiles, 1).tolist() == [[1.0, 2.0], [10.0, 20.0]]


def test_the_loss_by_hand() -> None:
    algorithm, batch = tqc(num_critics=1, num_quantiles=2, drop_quantiles=1, ent_coef=0.5), a_batch(1)
    # Critics with constant outputs: the online one predicts quantiles 0 and 2, the target 1 and 5, of which 5 is dropped.
    for critics, values in ((algorithm.policy.critics, [0.0, 2.0]), (algorithm.target_critics, [1.0, 5.0])):
        with torch.no_grad():
            critics.output.weight.zero_()  # type: ignore[union-attr]
            critics.output.bias.copy_(torch.tensor([[values]]))  # type: ignore[union-attr]
    before = algorithm.generator.get_state()
    features, next_features = algorithm.policy.encoder(batch.obs), algorithm.policy.encoder(batch.next_obs)
    loss = algorithm._critic_loss(batch, features, algorithm.generator)
    algorithm.generator.set_state(before)
    _, log_probs = algorithm.policy.actor(next_features).rsample_with_log_prob(algorithm.generator)
    target = float(batch.rewards + 0.9 * (1.0 - 0.5 * log_probs.detach()))

    def huber(u: float) -> float:
        return 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5

    expected = 0.0
    for tau, prediction in ((0.25, 0.0), (0.75, 2.0)):
        u = target - prediction
        expected += abs(tau - (u < 0)) * huber(u)
    assert float(loss.loss.detach()) == pytest.approx(expected / 2, rel=1e-5)
    assert loss.q.tolist() == [[1.0]]
    assert float(loss.errors) == pytest.approx(abs(1.0 - target), rel=1e-5)


def test_the_actor_climbs_the_mean_of_all_quantiles() -> None:
    algorithm, batch = tqc(num_critics=3, num_quantiles=4, drop_quantiles=1), a_batch()
    features = algorithm.policy.encoder(batch.obs)
    value = algorithm._actor_value(features, batch.actions)
    pairs = torch.cat([features, batch.actions], dim=1)
    assert torch.allclose(value, algorithm.policy.critics(pairs).sum(dim=(0, 2)) / 12)


def test_weights_scale_each_transition() -> None:
    algorithm = tqc(num_critics=2, num_quantiles=3, drop_quantiles=1)
    batch = a_batch(2)
    features = algorithm.policy.encoder(batch.obs)

    def loss(weights: list[float]) -> float:
        algorithm.generator.manual_seed(0)
        weighted = TransitionBatch(
            batch.obs,
            batch.actions,
            batch.rewards,
            batch.next_obs,
            batch.discounts,
            torch.tensor(weights),
            batch.indices,
        )
        return float(algorithm._critic_loss(weighted, features, algorithm.generator).loss.detach())

    assert loss([1.0, 1.0]) == pytest.approx(loss([1.0, 0.0]) + loss([0.0, 1.0]), rel=1e-5)
    assert loss([0.5, 0.0]) == pytest.approx(loss([1.0, 0.0]) / 2, rel=1e-5)


def test_dropping_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing is left of 3"):
        TQCAlgorithm.check_config(TQCConfig(num_quantiles=3, drop_quantiles=3), 1)


def test_a_terminal_step_has_no_future() -> None:
    algorithm, batch = tqc(num_critics=2, num_quantiles=3, drop_quantiles=0), a_batch(2)
    ended = TransitionBatch(
        batch.obs, batch.actions, batch.rewards, batch.next_obs, torch.zeros(2), batch.weights, batch.indices
    )
    features = algorithm.policy.encoder(batch.obs)
    found = algorithm._critic_loss(ended, features, algorithm.generator)
    q = algorithm.policy.critics(torch.cat([features, batch.actions], dim=1)).mean(dim=-1)
    assert torch.allclose(found.errors, (q - batch.rewards).abs().mean(dim=0))


def test_redq_and_droq_are_sac_with_other_settings() -> None:
    redq, droq = REDQConfig(), DroQConfig()
    assert (redq.num_critics, redq.critic_subset, redq.actor_value) == (10, 2, "mean")
    assert redq.gradient_steps == 20
    assert (droq.num_critics, droq.layer_norm, droq.dropout, droq.actor_value) == (2, True, 0.01, "mean")
    assert droq.gradient_steps == 20
    policy = REDQAlgorithm(OBS, ACT, redq, PolicyConfig(hidden_sizes=(8,))).policy
    assert policy.critics(torch.zeros(1, 5)).shape == (10, 1, 1)
    assert len(DroQAlgorithm(OBS, ACT, droq, PolicyConfig(hidden_sizes=(8, 8))).policy.critics.norms) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "delay"),
    [
        ({}, 20),
        ({"gradient_steps": 3}, 3),
        ({"gradient_steps": 32, "train_frequency": 32}, 1),
        ({"gradient_steps": 16, "train_frequency": 32}, 1),
        ({"gradient_steps": 3, "policy_delay": 7}, 7),
    ],
)
@pytest.mark.parametrize("kind", [REDQAlgorithm, DroQAlgorithm])
def test_the_actor_of_redq_and_droq_moves_once_per_environment_step(
    kind: Any, settings: dict[str, int], delay: int
) -> None:
    algorithm = kind(OBS, ACT, kind.config_class(**settings), PolicyConfig(hidden_sizes=(8,)))
    assert algorithm.policy_delay == delay
