"""Q-networks: each head's output by hand, greedy and exploring actions."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from helpers.acting import acted
from rl_training.policies.policy_config import PolicyConfig
from rl_training.policies.q_network import ACTING_TAUS, HeadConfig, QNetwork, midpoints
from rl_training.policies.spec import PolicySpec
from rl_training.utils.errors import SpaceError

STATES = torch.tensor([0, 1])
HEADS: list[dict[str, Any]] = [
    {"distribution": "none"},
    {"distribution": "categorical", "num_atoms": 7},
    {"distribution": "quantile", "num_quantiles": 5},
    {"distribution": "implicit"},
]


def linear(num_actions: int = 3, **head: Any) -> QNetwork:
    """A table over two states: without hidden layers, the weights are the outputs."""
    config = PolicyConfig(hidden_sizes=())
    return QNetwork(PolicySpec(spaces.Discrete(2), spaces.Discrete(num_actions), config), HeadConfig(**head))


def deep(normalize_observations: bool = False, **head: Any) -> QNetwork:
    space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    config = PolicyConfig(hidden_sizes=(8, 6))
    spec = PolicySpec(space, spaces.Discrete(3), config, normalize_observations=normalize_observations)
    return QNetwork(spec, HeadConfig(**head))


def fill(parameter: Any, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).reshape(parameter.shape))


def set_rows(stream: Any, rows: list[list[float]]) -> None:
    """Gives a stream the outputs rows[s] in state s."""
    fill(stream.output.weight, np.transpose(np.array(rows, np.float32)).tolist())
    fill(stream.output.bias, [0.0] * len(rows[0]))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def taus_for(network: QNetwork, batch: int, count: int = 4) -> Tensor | None:
    return network.sample_taus(batch, count, seeded())


def test_plain_values_by_hand() -> None:
    network = linear()
    set_rows(network.head.advantage, [[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]])
    assert network(STATES).tolist() == [[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]]
    assert torch.equal(network.q_values(STATES), network(STATES))
    assert acted(network, STATES).tolist() == [2, 0]


def test_dueling_subtracts_the_mean_advantage() -> None:
    network = linear(dueling=True)
    assert network.head.value is not None
    set_rows(network.head.value, [[10.0], [0.0]])
    set_rows(network.head.advantage, [[1.0, 2.0, 6.0], [3.0, 3.0, 3.0]])
    assert network(STATES).tolist() == [[8.0, 9.0, 13.0], [0.0, 0.0, 0.0]]


def test_categorical_by_hand() -> None:
    network = linear(2, distribution="categorical", num_atoms=3, v_min=-1.0, v_max=3.0)
    quarter, half = math.log(0.25), math.log(0.5)
    rows = [[half, quarter, quarter, quarter, half, quarter], [0.0, 0.0, 0.0, quarter, quarter, half]]
    set_rows(network.head.advantage, rows)
    probs = network(STATES).exp()
    expected = [[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]], [[1 / 3, 1 / 3, 1 / 3], [0.25, 0.25, 0.5]]]
    torch.testing.assert_close(probs, torch.tensor(expected))
    assert network.support.tolist() == [-1.0, 1.0, 3.0]
    # −0.5 + 0.25 + 0.75; −0.25 + 0.5 + 0.75; 1; −0.25 + 0.25 + 1.5
    torch.testing.assert_close(network.q_values(STATES), torch.tensor([[0.5, 1.0], [1.0, 1.5]]))


def test_dueling_works_on_each_atom_before_the_softmax() -> None:
    network = linear(2, distribution="categorical", num_atoms=2, dueling=True)
    assert network.head.value is not None
    set_rows(network.head.value, [[1.0, 2.0]] * 2)
    set_rows(network.head.advantage, [[1.0, 0.0, 3.0, 4.0]] * 2)
    # Mean advantages [2, 2]: logits [0, 0] and [2, 4].
    expected = torch.tensor([[0.0, 0.0], [2.0, 4.0]]).log_softmax(-1)
    torch.testing.assert_close(network(STATES)[0], expected)


def test_quantiles_by_hand_with_dueling() -> None:
    network = linear(2, distribution="quantile", num_quantiles=2, dueling=True)
    assert network.head.value is not None
    set_rows(network.head.value, [[1.0, 5.0], [0.0, 0.0]])
    set_rows(network.head.advantage, [[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, -1.0, -3.0]])
    # Mean advantages [1, 2] and [0, −1].
    expected = torch.tensor([[[0.0, 4.0], [2.0, 6.0]], [[1.0, 2.0], [-1.0, -2.0]]])
    assert torch.equal(network(STATES), expected)
    assert network.q_values(STATES).tolist() == [[2.0, 4.0], [1.5, -1.5]]
    assert network.taus.tolist() == [0.25, 0.75]


def test_midpoints() -> None:
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_implicit_quantiles_by_hand() -> None:
    network = linear(2, distribution="implicit")
    assert network.embedding is not None
    weight = torch.zeros(2, 64)
    weight[0, 1] = 1.0  # state 0: φ = ReLU(cos(π τ)); state 1: φ = ReLU(cos(0) + 1) = 2
    weight[1, 0] = 1.0
    fill(network.embedding.linear.weight, weight.tolist())
    fill(network.embedding.linear.bias, [0.0, 1.0])
    set_rows(network.head.advantage, [[4.0, -2.0], [3.0, 1.0]])
    taus = torch.tensor([[0.0, 1 / 3, 1.0], [0.1, 0.5, 0.9]])
    expected = torch.tensor([[[4.0, 2.0, 0.0], [-2.0, -1.0, 0.0]], [[6.0, 6.0, 6.0], [2.0, 2.0, 2.0]]])
    torch.testing.assert_close(network(STATES, taus), expected)
    torch.testing.assert_close(network.q_values(STATES, taus), torch.tensor([[2.0, -1.0], [6.0, 2.0]]))


def test_implicit_dueling_is_per_fraction() -> None:
    network = linear(3, distribution="implicit", dueling=True)
    taus = torch.rand(2, 5, generator=seeded())
    assert network.head.value is not None and network.embedding is not None
    outputs = network(STATES, taus)
    features = torch.eye(2).unsqueeze(1) * network.embedding(taus)
    value = network.head.value(features, noisy=True).squeeze(-1)
    torch.testing.assert_close(outputs.mean(dim=1), value)  # advantages average to 0 at each τ
    assert outputs.std(dim=1).max().item() > 0.1


def test_taus_are_for_implicit_heads_only() -> None:
    with pytest.raises(ValueError, match="taus"):
        linear()(STATES, torch.rand(2, 3))
    with pytest.raises(ValueError, match="taus"):
        linear(distribution="implicit")(STATES)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dueling", [False, True])
def test_the_last_hidden_layer_belongs_to_the_head(head: dict[str, Any], dueling: bool) -> None:
    network = deep(dueling=dueling, **head)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters() if p.dim() == 2}
    size = {"none": 1, "categorical": 7, "quantile": 5, "implicit": 1}[head["distribution"]]
    expected = {
        "body.0.weight": (8, 4),
        "head.advantage.hidden.weight": (6, 8),
        "head.advantage.output.weight": (3 * size, 6),
    }
    if dueling:
        expected |= {"head.value.hidden.weight": (6, 8), "head.value.output.weight": (size, 6)}
    if head["distribution"] == "implicit":
        expected["embedding.linear.weight"] = (8, 64)
    assert shapes == expected


@pytest.mark.parametrize("head", HEADS)
def test_every_layer_learns(head: dict[str, Any]) -> None:
    network = deep(dueling=True, noisy_sigma=0.5, **head)
    network.sample_noise(seeded())
    obs = torch.randn(5, 4, generator=seeded())
    network.q_values(obs, taus_for(network, 5)).square().sum().backward()
    for name, parameter in network.named_parameters():
        # A constant added to all logits of an action does not change its distribution; nothing else is without effect.
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_without_orthogonal_weights_pytorchs_own_are_kept() -> None:
    torch.manual_seed(3)
    space = spaces.Box(-1, 1, (4,))
    network = QNetwork(PolicySpec(space, spaces.Discrete(2), PolicyConfig(hidden_sizes=(8,), orthogonal_init=False)))
    bias = network.head.advantage.output.bias
    assert isinstance(bias, Tensor) and (bias != 0).all()
    orthogonal = QNetwork(PolicySpec(space, spaces.Discrete(2), PolicyConfig(hidden_sizes=(8,))))
    weight: Any = orthogonal.head.advantage.output.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(2))


def test_observations_are_normalised_inside() -> None:
    network = deep(normalize_observations=True)
    plain = deep()
    plain.load_state_dict(network.state_dict(), strict=False)
    data = 5 + 3 * torch.randn(200, 4, generator=seeded())
    assert network.encoder.normalizer is not None
    network.encoder.normalizer.update(data)
    standard = (data - data.mean(0)) / data.std(0, correction=0)
    torch.testing.assert_close(network.q_values(data), plain.q_values(standard), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", HEADS)
def test_acting_takes_the_best_action(head: dict[str, Any]) -> None:
    network, obs = deep(**head), torch.randn(50, 4, generator=seeded())
    best = network.q_values(obs).argmax(-1)
    assert len(best.unique()) > 1
    assert torch.equal(acted(network, obs, deterministic=True), best)
    if head["distribution"] != "implicit":
        assert torch.equal(acted(network, obs, generator=seeded()), best)


def test_epsilon_is_the_share_of_uniform_actions() -> None:
    network = linear(4)
    set_rows(network.head.advantage, [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    obs = torch.zeros(40_000, dtype=torch.int64)
    shares = torch.bincount(network.explore(obs, 0.4, seeded())) / len(obs)
    # Standard deviation of a share: at most √(0.25 / 40000) = 0.0025.
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.7, 0.1, 0.1]), atol=0.01, rtol=0)
    uniform = torch.bincount(network.explore(obs, 1.0, seeded())) / len(obs)
    torch.testing.assert_close(uniform, torch.full((4,), 0.25), atol=0.01, rtol=0)


def test_each_environment_explores_by_itself() -> None:
    network = linear(2)
    set_rows(network.head.advantage, [[1.0, 0.0], [1.0, 0.0]])
    actions = network.explore(torch.zeros(64, dtype=torch.int64), 0.8, seeded())
    assert 0 < actions.sum() < 64


def test_greedy_actions_draw_nothing() -> None:
    generator = seeded()
    before, global_before = generator.get_state(), torch.get_rng_state()
    linear_net, implicit = linear(), linear(distribution="implicit")
    global_before = torch.get_rng_state()
    acted(linear_net, STATES, generator=generator)
    acted(implicit, STATES, generator=generator, deterministic=True)
    assert torch.equal(generator.get_state(), before) and torch.equal(torch.get_rng_state(), global_before)


def test_the_generator_decides_what_is_drawn() -> None:
    network, obs = linear(4), torch.zeros(64, dtype=torch.int64)
    first = network.explore(obs, 1.0, seeded())
    assert torch.equal(network.explore(obs, 1.0, seeded()), first)
    assert not torch.equal(network.explore(obs, 1.0, seeded(1)), first)


def test_implicit_acting_averages_over_drawn_fractions() -> None:
    network, obs = deep(distribution="implicit"), torch.randn(200, 4, generator=seeded(5))
    taus = torch.rand(200, ACTING_TAUS, generator=seeded())
    expected = network(obs, taus).mean(-1).argmax(-1)
    assert torch.equal(acted(network, obs, generator=seeded()), expected)
    even = network(obs, midpoints(32).expand(200, -1)).mean(-1).argmax(-1)
    assert torch.equal(acted(network, obs, deterministic=True), even)


def test_noisy_acting() -> None:
    network, obs = deep(noisy_sigma=5.0), torch.randn(100, 4, generator=seeded())
    mean = network.q_values(obs, noisy=False).argmax(-1)
    first = acted(network, obs, generator=seeded())
    assert not torch.equal(first, mean)
    assert torch.equal(acted(network, obs, generator=seeded()), first)
    assert not torch.equal(acted(network, obs, generator=seeded(1)), first), "new noise for every call"
    assert torch.equal(acted(network, obs, deterministic=True), mean)
    generator = seeded()
    assert torch.equal(acted(network.train(False), obs, generator=generator), mean)
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_a_copy_has_noise_of_its_own() -> None:
    network = deep(noisy_sigma=0.5)
    twin, obs = copy.deepcopy(network), torch.randn(3, 4, generator=seeded())
    network.sample_noise(seeded())
    kept = network(obs)
    twin.sample_noise(seeded(1))
    assert torch.equal(network(obs), kept) and not torch.equal(twin(obs), kept)
    twin.sample_noise(seeded())
    assert torch.equal(twin(obs), kept)


def test_state_dict_holds_weights_only() -> None:
    for head in HEADS:
        network = deep(noisy_sigma=0.5, **head)
        assert set(network.state_dict()) == {name for name, _ in network.named_parameters()}


def test_dict_observations() -> None:
    space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})
    obs = {"a": torch.rand(4, 2, generator=seeded()), "b": torch.tensor([0, 1, 2, 0])}
    flat = torch.cat([obs["a"], torch.eye(3)[obs["b"]]], dim=-1)
    for head in HEADS:
        network = QNetwork(PolicySpec(space, spaces.Discrete(2), PolicyConfig()), HeadConfig(**head))
        same = QNetwork(PolicySpec(spaces.Box(-1, 1, (5,)), spaces.Discrete(2), PolicyConfig()), HeadConfig(**head))
        same.load_state_dict(network.state_dict())
        torch.testing.assert_close(network.q_values(obs), same.q_values(flat))
        assert torch.equal(network.explore(obs, 0.5, seeded()), same.explore(flat, 0.5, seeded()))


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(SpaceError, match="Discrete"):
        QNetwork(PolicySpec(spaces.Discrete(2), spaces.Box(-1, 1, (2,)), PolicyConfig()))
