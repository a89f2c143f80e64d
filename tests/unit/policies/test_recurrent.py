"""Recurrent cores: against numbers by hand and against torch's own, with resets inside sequences, and as a policy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rl_training.execution.batches import mapped
from rl_training.policies.encoder_registry import ENCODERS
from rl_training.policies.policy import restarted
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.recurrent import RecurrentActorCritic, gru_step, lstm_step, unrolled
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import ConfigError

T, B = 7, 3


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def make_policy(
    obs_space: spaces.Space[Any] | None = None,
    action_space: spaces.Space[Any] | None = None,
    *,
    core: Any = "lstm",
    layers: int = 1,
    shared_core: bool = False,
    **policy: Any,
) -> RecurrentActorCritic:
    torch.manual_seed(0)
    observed = spaces.Box(-1, 1, (4,)) if obs_space is None else obs_space
    acted = spaces.Discrete(3) if action_space is None else action_space
    spec = PolicySpec(observed, acted, PolicyConfig(**{"hidden_sizes": (8,), **policy}))
    return RecurrentActorCritic(spec, kind=core, size=5, layers=layers, shared_core=shared_core)


def test_one_step_of_an_lstm_by_hand() -> None:
    # Gates i, f, g, o of one core, one row and one number: W x + b = (1, 2, 3, 4), U = (0.5, -1, 2, 0), h = 0.2, c = -0.4.
    inputs, weight = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), torch.tensor([[[0.5], [-1.0], [2.0], [0.0]]])
    hidden, cell = lstm_step(inputs, (torch.tensor([[[0.2]]]), torch.tensor([[[-0.4]]])), weight)
    expected_cell = sigmoid(2 - 0.2) * -0.4 + sigmoid(1 + 0.1) * math.tanh(3 + 0.4)
    assert cell.item() == pytest.approx(expected_cell, abs=1e-6)
    assert hidden.item() == pytest.approx(sigmoid(4.0) * math.tanh(expected_cell), abs=1e-6)


def test_one_step_of_a_gru_by_hand() -> None:
    inputs, weight = torch.tensor([[[1.0, -2.0, 0.5]]]), torch.tensor([[[0.5], [-1.0], [2.0]]])
    (hidden,) = gru_step(inputs, (torch.tensor([[[0.2]]]),), weight, torch.tensor([[[0.1, 0.2, 0.3]]]))
    reset, update = sigmoid(1.0 + 0.1 + 0.1), sigmoid(-2.0 - 0.2 + 0.2)
    new = math.tanh(0.5 + reset * (0.4 + 0.3))
    assert hidden.item() == pytest.approx((1 - update) * new + update * 0.2, abs=1e-6)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_without_starts_it_is_what_torch_computes(kind: type[nn.LSTM] | type[nn.GRU], layers: int) -> None:
    torch.manual_seed(1)
    cores = [kind(4, 5, layers) for _ in range(2)]
    inputs = torch.randn(T, B, 4)
    parts = 2 if kind is nn.LSTM else 1
    state = torch.randn(B, 2, layers, 5 * parts)
    outputs, states = unrolled(inputs, torch.zeros(T, B, dtype=torch.bool), state, cores)
    for index, core in enumerate(cores):
        first = tuple(part.contiguous() for part in state[:, index].transpose(0, 1).split(5, dim=-1))
        expected, last = core(inputs, first if kind is nn.LSTM else first[0])
        torch.testing.assert_close(outputs[index], expected, atol=1e-6, rtol=0)
        last = torch.cat(last if kind is nn.LSTM else (last,), dim=-1)
        torch.testing.assert_close(states[-1, :, index], last.transpose(0, 1), atol=1e-6, rtol=0)
    ours = torch.autograd.grad(outputs[1].square().sum(), list(cores[1].parameters()))
    first = tuple(part.contiguous() for part in state[:, 1].transpose(0, 1).split(5, dim=-1))
    theirs = torch.autograd.grad(
        cores[1](inputs, first if kind is nn.LSTM else first[0])[0].square().sum(), list(cores[1].parameters())
    )
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


STARTS = torch.tensor([[0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool)


@pytest.mark.parametrize("shared_core", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_a_sequence_with_starts_equals_one_step_after_the_other(core: str, layers: int, shared_core: bool) -> None:
    policy = make_policy(core=core, layers=layers, shared_core=shared_core)
    obs, state = torch.randn(T, B, 4), torch.randn_like(policy.initial_state(B))
    actions = torch.randint(3, (T, B))
    distribution, values, states = policy.unroll(obs, STARTS, state)
    log_probs = distribution.log_prob(actions)
    kept: Any = state
    for t in range(T):
        kept = restarted(kept, policy.initial_state(B), STARTS[t])
        one, value = policy(obs[t], kept)
        torch.testing.assert_close(one.log_prob(actions[t]), log_probs[t], atol=1e-6, rtol=0)
        torch.testing.assert_close(value, values[t], atol=1e-6, rtol=0)
        torch.testing.assert_close(policy.value(obs[t], kept), values[t], atol=1e-6, rtol=0)
        chosen, kept = policy.act(obs[t], kept, deterministic=True)
        assert torch.equal(chosen, one.mode())
        torch.testing.assert_close(kept, states[t], atol=1e-6, rtol=0)


def test_nothing_of_before_a_start_is_left() -> None:
    """Neither numbers nor gradients."""
    policy = make_policy()
    obs, starts = torch.randn(T, 1, 4), torch.zeros(T, 1, dtype=torch.bool)
    starts[4] = True
    early = obs.clone()
    early[:4] = 100 * torch.randn(4, 1, 4)
    _, values, _ = policy.unroll(obs, starts, policy.initial_state(1))
    _, others, _ = policy.unroll(early, starts, 9 * torch.randn_like(policy.initial_state(1)))
    assert torch.equal(values[4:], others[4:]) and not torch.allclose(values[:4], others[:4])
    watched = obs.clone().requires_grad_()
    _, values, _ = policy.unroll(watched, starts, policy.initial_state(1))
    (gradient,) = torch.autograd.grad(values[-1].sum(), watched)
    assert (gradient[:4] == 0).all() and (gradient[4:] != 0).any(dim=-1).all()


def test_what_it_remembers_matters_and_begins_with_zeros() -> None:
    policy = make_policy()
    obs = torch.randn(B, 4)
    assert (policy.initial_state(B) == 0).all() and policy.initial_state(B).shape == (B, 2, 1, 10)
    assert torch.equal(policy.value(obs), policy.value(obs, policy.initial_state(B)))
    assert not torch.allclose(policy.value(obs), policy.value(obs, torch.ones(B, 2, 1, 10)))
    assert make_policy(core="gru", layers=3, shared_core=True).initial_state(2).shape == (2, 1, 3, 5)


def test_the_critic_has_a_memory_of_its_own_unless_shared() -> None:
    obs, action = torch.randn(B, 4), torch.zeros(B, dtype=torch.int64)
    for shared in (False, True):
        policy = make_policy(shared_core=shared)
        state = policy.initial_state(B)
        state[:, -1] = 1.0  # the critic's
        one, other = policy(obs), policy(obs, state)
        assert torch.equal(one[0].log_prob(action), other[0].log_prob(action)) is not shared
        assert not torch.allclose(one[1], other[1])
        own = {id(weight) for part in policy.critic_parts() for weight in part.parameters()}
        others = {id(weight) for part in policy.actor_parts() for weight in part.parameters()}
        assert not own & others and len(own | others) == len(list(policy.parameters()))
        assert (id(policy.cores[-1].weight_hh_l0) in own) is not shared


def test_a_common_body_needs_a_common_core() -> None:
    with pytest.raises(ConfigError, match=r"policy.shared .* set hyperparams.shared_core: true"):
        make_policy(shared=True)
    policy = make_policy(shared=True, shared_core=True)
    assert policy.critic_body is None and policy.critic_core is None


def test_orthogonal_weights_or_torchs_own() -> None:
    core = make_policy().actor_core
    torch.testing.assert_close(core.weight_hh_l0.T @ core.weight_hh_l0, torch.eye(5), atol=1e-5, rtol=0)
    assert (core.bias_ih_l0 == 0).all() and (core.bias_hh_l0 == 0).all()
    assert (make_policy(orthogonal_init=False).actor_core.bias_ih_l0 != 0).all()


class SmallConv(nn.Module):
    features = 6

    def __init__(self, observation_space: Any):
        super().__init__()
        self.network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 6))

    def forward(self, obs: Tensor) -> Tensor:
        return self.network(obs.float() / 255)


OBSERVATIONS: dict[str, tuple[spaces.Space[Any], str | type]] = {
    "images": (spaces.Box(0, 255, (3, 6, 6), np.uint8), SmallConv),
    "dict": (spaces.Dict({"a": spaces.Box(-1, 1, (2, 2)), "b": spaces.Discrete(4, start=1)}), "auto"),
    "discrete": (spaces.Discrete(3, start=2), "auto"),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_whatever_the_encoder_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space, encoder = OBSERVATIONS[name]
    monkeypatch.setattr(ENCODERS, "things", dict(ENCODERS.things))
    policy = make_policy(space, encoder=encoder)
    space.seed(0)
    samples = [[space.sample() for _ in range(B)] for _ in range(T)]
    if isinstance(space, spaces.Dict):
        obs: Any = {key: torch.tensor(np.array([[s[key] for s in row] for row in samples])) for key in space}
    else:
        obs = torch.tensor(np.array(samples))
    _, values, states = policy.unroll(obs, STARTS, policy.initial_state(B))
    assert values.shape == (T, B) and states.shape == (T, B, 2, 1, 10)
    state: Any = policy.initial_state(B)
    for t in range(T):
        state = restarted(state, policy.initial_state(B), STARTS[t])
        now = mapped(lambda rows, t=t: rows[t], obs)
        torch.testing.assert_close(policy.value(now, state), values[t], atol=1e-6, rtol=0)
        _, state = policy.act(now, state)


def test_in_bfloat16_what_is_remembered_stays_float32() -> None:
    policy = make_policy()
    with torch.autocast("cpu", torch.bfloat16):
        _, values, states = policy.unroll(torch.randn(T, B, 4), STARTS, policy.initial_state(B))
    assert states.dtype == values.dtype == torch.float32
