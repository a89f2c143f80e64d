"""Masked distributions, encoders and Q-networks, with numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.policies.actor_critic import ActionHead, ActorCritic
from rl_training.policies.distributions import INVALID, Categorical, MultiCategorical, valid_only
from rl_training.policies.encoders import make_encoder
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.q_network import HeadConfig, QNetwork, pick_valid
from rl_training.policies.spec import PolicySpec
from rl_training.utils.action_masks import ActionMask

LOGITS = torch.tensor([[0.0, math.log(3.0), 50.0, 0.0]])
MASK = torch.tensor([[True, True, False, False]])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def masked_obs(mask: Tensor, seen: Tensor) -> dict[str, Tensor]:
    return {"action_mask": mask.to(torch.int8), "observation": seen}


def spec(sizes: tuple[int, ...], seen: Any = None, **settings: Any) -> PolicySpec:
    space = spaces.Dict({"observation": seen or spaces.Box(-1, 1, (2,)), "action_mask": ActionMask(sizes)})
    actions = spaces.Discrete(sizes[0]) if len(sizes) == 1 else spaces.MultiDiscrete(sizes)
    return PolicySpec(space, actions, PolicyConfig(hidden_sizes=(8,)), **settings)


class TestCategorical:
    def test_probabilities_and_entropy_are_of_the_valid_choices(self) -> None:
        masked = Categorical(valid_only(LOGITS, MASK))
        # ¼ and ¾ of what is valid; the rest is exactly 0, however large its logit.
        torch.testing.assert_close(masked.probs, torch.tensor([[0.25, 0.75, 0.0, 0.0]]))
        assert masked.probs[0, 2:].tolist() == [0.0, 0.0]
        torch.testing.assert_close(masked.log_prob(torch.tensor([1])), torch.tensor([math.log(0.75)]))
        torch.testing.assert_close(masked.entropy(), torch.tensor([2 * math.log(2) - 0.75 * math.log(3)]))
        assert masked.mode().tolist() == [1]

    def test_the_divergence_is_that_of_the_valid_choices(self) -> None:
        masked = Categorical(valid_only(LOGITS, MASK))
        even = Categorical(valid_only(torch.zeros(1, 4), MASK))
        expected = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
        torch.testing.assert_close(masked.kl(even), torch.tensor([expected]))
        assert masked.kl(masked).item() == 0.0

    def test_one_valid_choice_is_certain(self) -> None:
        only = Categorical(valid_only(LOGITS, torch.tensor([[False, False, False, True]])))
        assert only.entropy().item() == 0.0 and only.log_prob(torch.tensor([3])).item() == 0.0

    def test_samples_are_valid_and_as_frequent_as_they_should_be(self) -> None:
        masked = Categorical(valid_only(LOGITS, MASK).expand(8000, 4))
        shares = torch.bincount(masked.sample(seeded()), minlength=4) / 8000
        assert shares[2:].tolist() == [0.0, 0.0]
        assert shares[0].item() == pytest.approx(0.25, abs=0.02)

    def test_gradients_are_finite_and_none_reaches_what_is_ruled_out(self) -> None:
        logits = LOGITS.clone().requires_grad_()
        masked = Categorical(valid_only(logits, MASK))
        (masked.log_prob(torch.tensor([0])) + masked.entropy() + masked.kl(masked)).sum().backward()
        assert logits.grad is not None and logits.grad.isfinite().all()
        assert logits.grad[0, 2:].tolist() == [0.0, 0.0] and logits.grad[0, 0] != 0

    def test_without_a_mask_nothing_is_done(self) -> None:
        assert valid_only(LOGITS, None) is LOGITS


def test_several_choices_are_masked_one_by_one() -> None:
    mask = torch.tensor([[True, False, True, True, False, True]])
    logits = torch.tensor([[0.0, 9.0, 0.0, 0.0, 9.0, 0.0]])
    masked = MultiCategorical(valid_only(logits, mask), (3, 1, 2))
    # Uniform over 2, 1 and 1 choices.
    torch.testing.assert_close(masked.entropy(), torch.tensor([math.log(2)]))
    torch.testing.assert_close(masked.log_prob(torch.tensor([[2, 0, 1]])), torch.tensor([-math.log(2)]))
    drawn = MultiCategorical(valid_only(logits, mask).expand(500, 6), (3, 1, 2)).sample(seeded())
    assert {tuple(row) for row in drawn.tolist()} == {(0, 0, 1), (2, 0, 1)}
    even = MultiCategorical(valid_only(torch.zeros(1, 6), mask), (3, 1, 2))
    torch.testing.assert_close(even.kl(masked), torch.tensor([0.0]))


def test_the_action_head_is_where_masks_enter() -> None:
    head = ActionHead(2, spaces.Discrete(4), log_std_init=0.0, squash=False)
    distribution = head(torch.ones(1, 2), MASK)
    assert isinstance(distribution, Categorical)
    assert distribution.probs[0, 2:].tolist() == [0.0, 0.0]
    assert (head(torch.ones(1, 2)).probs > 0).all()


class TestEncoder:
    def test_the_mask_is_no_input(self) -> None:
        encoder = make_encoder(spec((3,)))
        seen = torch.tensor([[0.5, -0.5]])
        assert encoder.features == 2
        for mask in ([[1, 0, 0]], [[1, 1, 1]]):
            torch.testing.assert_close(encoder(masked_obs(torch.tensor(mask), seen)), seen)
        found = encoder.action_mask(masked_obs(torch.tensor([[1, 0, 1]]), seen))
        assert found is not None and found.tolist() == [[True, False, True]]

    def test_other_entries_stay_a_dict(self) -> None:
        space = spaces.Dict({"a": spaces.Discrete(2), "action_mask": ActionMask((3,)), "b": spaces.Discrete(3)})
        encoder = make_encoder(PolicySpec(space, spaces.Discrete(3), PolicyConfig()))
        obs = {"a": torch.tensor([1]), "action_mask": torch.ones(1, 3, dtype=torch.int8), "b": torch.tensor([2])}
        assert encoder(obs).tolist() == [[0, 1, 0, 0, 1]]

    def test_the_normaliser_sees_no_mask(self) -> None:
        encoder = make_encoder(spec((3,), normalize_observations=True))
        assert encoder.normalizer is not None and len(encoder.normalizer.moments) == 1
        encoder.update_statistics(masked_obs(torch.ones(2, 3), torch.tensor([[1.0, 0.0], [3.0, 0.0]])))
        assert encoder.normalizer.moments[0].mean.tolist() == [2.0, 0.0]  # type: ignore[union-attr, operator]

    def test_without_a_mask_there_is_none(self) -> None:
        encoder = make_encoder(PolicySpec(spaces.Box(-1, 1, (2,)), spaces.Discrete(3), PolicyConfig()))
        assert encoder.action_mask(torch.zeros(1, 2)) is None

    def test_a_plain_entry_of_that_name_is_an_input(self) -> None:
        space = spaces.Dict({"action_mask": spaces.MultiBinary(3), "observation": spaces.Box(-1, 1, (2,))})
        encoder = make_encoder(PolicySpec(space, spaces.Discrete(3), PolicyConfig()))
        assert encoder.features == 5 and encoder.action_mask(masked_obs(torch.ones(1, 3), torch.zeros(1, 2))) is None


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_actor_critic_takes_valid_actions_only(deterministic: bool) -> None:
    policy = ActorCritic(spec((3, 4)))
    torch.nn.init.normal_(policy.action_head.linear.weight, std=9.0)
    masks = torch.rand(200, 7, generator=seeded()) < 0.4
    masks[:, [1, 5]] = True
    actions, _ = policy.act(masked_obs(masks, torch.randn(200, 2)), generator=seeded(), deterministic=deterministic)
    assert ActionMask((3, 4)).allowed(masks.numpy(), actions.numpy()).all()
    assert policy(masked_obs(masks, torch.zeros(200, 2)))[0].entropy().isfinite().all()


def test_a_valid_choice_is_picked_uniformly() -> None:
    mask = torch.tensor([[True, False, True, False, True]])
    edges = torch.tensor([0.0, 0.33, 0.34, 0.66, 0.67, 0.99999994])
    assert pick_valid(mask.expand(6, 5), edges).tolist() == [0, 0, 2, 2, 4, 4]
    assert pick_valid(mask.roll(1, 1), torch.tensor([0.99999994])).tolist() == [3]


HEADS = [HeadConfig(kind) for kind in ("none", "categorical", "quantile", "implicit")]
HEADS += [HeadConfig(dueling=True), HeadConfig(noisy_sigma=0.5)]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.distribution}-{head.dueling}-{head.noisy_sigma}")
def test_a_q_network_takes_valid_actions_only(head: HeadConfig) -> None:
    network = QNetwork(spec((5,)), head)
    masks = torch.rand(300, 5, generator=seeded()) < 0.4
    masks[:, 3] = True
    obs = masked_obs(masks, torch.randn(300, 2, generator=seeded(1)))
    best = network.valid_values(network.q_values(obs, noisy=False), obs)
    assert (best[~masks] == INVALID).all()
    chosen = network.choose(obs, seeded(), deterministic=True)
    torch.testing.assert_close(chosen, best.argmax(dim=-1))
    for actions in (chosen, network.choose(obs, seeded(), False), network.explore(obs, 0.5, seeded())):
        assert masks.gather(1, actions.unsqueeze(-1)).all()


def test_random_actions_are_uniform_over_the_valid_ones() -> None:
    network = QNetwork(spec((5,)))
    masks = torch.tensor([[True, False, True, True, False]]).expand(9000, 5)
    obs = masked_obs(masks, torch.zeros(9000, 2))
    shares = torch.bincount(network.explore(obs, 1.0, seeded()), minlength=5) / 9000
    np.testing.assert_allclose(shares, [1 / 3, 0, 1 / 3, 1 / 3, 0], atol=0.02)
    greedy = int(network.choose(obs, seeded(), True)[0])
    some = torch.bincount(network.explore(obs, 0.3, seeded()), minlength=5) / 9000
    expected = masks[0] * 0.1 + 0.7 * (torch.arange(5) == greedy)
    np.testing.assert_allclose(some, expected, atol=0.02)
