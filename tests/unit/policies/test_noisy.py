"""Noisy linear layers: factorised noise, drawn on demand only, and mean weights without it."""

from __future__ import annotations

import copy
import math

import torch

from rl_training.policies.noisy import NoisyLinear


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand() -> NoisyLinear:
    layer = NoisyLinear(2, 2, 0.5)
    with torch.no_grad():
        layer.weight_mean.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        layer.weight_sigma.copy_(torch.tensor([[0.1, 0.2], [0.3, 0.4]]))
        layer.bias_mean.copy_(torch.tensor([1.0, -1.0]))
        layer.bias_sigma.copy_(torch.tensor([0.5, 0.25]))
        layer.noise_in.copy_(torch.tensor([2.0, -1.0]))
        layer.noise_out.copy_(torch.tensor([3.0, -2.0]))
    return layer


def test_forward_by_hand() -> None:
    # ε_w = [[6, −3], [−4, 2]]: weights [[1.6, 1.4], [1.8, 4.8]], biases [1 + 1.5, −1 − 0.5].
    x = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
    torch.testing.assert_close(by_hand()(x), torch.tensor([[5.5, 5.1], [5.7, 2.1]]))


def test_mean_weights_outside_training_mode_and_on_request() -> None:
    layer, x = by_hand(), torch.tensor([[1.0, 1.0]])
    mean = torch.tensor([[4.0, 6.0]])
    assert torch.equal(layer(x, noisy=False), mean)
    assert torch.equal(layer.train(False)(x), mean)
    assert not torch.equal(layer.train()(x), mean)


def test_noise_is_the_signed_root_of_normals_from_the_generator() -> None:
    layer = NoisyLinear(3, 2, 0.5)
    layer.sample_noise(seeded())
    source = seeded()
    for noise, size in ((layer.noise_in, 3), (layer.noise_out, 2)):
        drawn = torch.randn(size, generator=source)
        torch.testing.assert_close(noise, torch.tensor([math.copysign(abs(x) ** 0.5, x) for x in drawn.tolist()]))


def test_only_sample_noise_changes_the_noise() -> None:
    layer, x = NoisyLinear(3, 2, 0.5), torch.ones(1, 3)
    assert torch.equal(layer(x), layer(x, noisy=False)), "no noise before the first draw"
    layer.sample_noise(seeded())
    first = layer(x)
    assert torch.equal(layer(x), first) and not torch.equal(first, layer(x, noisy=False))
    layer.sample_noise(seeded(1))
    assert not torch.equal(layer(x), first)


def test_the_global_generator_is_left_alone() -> None:
    layer = NoisyLinear(3, 2, 0.5)
    before = torch.get_rng_state()
    layer.sample_noise(seeded())
    layer(torch.ones(1, 3))
    assert torch.equal(torch.get_rng_state(), before)


def test_initial_values() -> None:
    layer = NoisyLinear(16, 200, 0.5)
    bound = 1 / 4
    for mean in (layer.weight_mean, layer.bias_mean):
        assert mean.abs().max().item() <= bound and mean.abs().max().item() > 0.9 * bound
        assert abs(mean.mean().item()) < 0.05
    for sigma in (layer.weight_sigma, layer.bias_sigma):
        assert (sigma == 0.5 / 4).all()


def test_noise_is_not_saved_and_not_shared_by_copies() -> None:
    layer = NoisyLinear(3, 2, 0.5)
    layer.sample_noise(seeded())
    assert set(layer.state_dict()) == {"weight_mean", "weight_sigma", "bias_mean", "bias_sigma"}
    twin = copy.deepcopy(layer)
    before = layer.noise_in.clone()
    twin.sample_noise(seeded(1))
    assert torch.equal(layer.noise_in, before) and not torch.equal(twin.noise_in, before)


def test_gradients_reach_sigma_scaled_by_the_noise() -> None:
    layer = by_hand()
    layer(torch.tensor([[1.0, 1.0]])).sum().backward()
    assert layer.weight_sigma.grad is not None and layer.bias_sigma.grad is not None
    assert layer.weight_sigma.grad.tolist() == [[6.0, -3.0], [-4.0, 2.0]]
    assert layer.bias_sigma.grad.tolist() == [3.0, -2.0]
