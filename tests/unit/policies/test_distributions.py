"""Distributions against torch.distributions, theory, and numbers worked out by hand."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.distributions as td
from torch import Tensor

from rl_training.policies.distributions import (
    Bernoulli,
    Categorical,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    _gauss_hermite,
)

NVEC = (2, 4, 3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def squashed_reference(mean: Tensor, log_std: Tensor) -> td.Distribution:
    base = td.Independent(td.Normal(mean, log_std.exp().expand_as(mean)), 1)
    return td.TransformedDistribution(base, [td.TanhTransform(cache_size=1)])


def every_distribution(batch: int = 5) -> list[Distribution]:
    return [
        Categorical(normal(batch, 4)),
        MultiCategorical(normal(batch, sum(NVEC)), NVEC),
        Bernoulli(normal(batch, 3)),
        DiagGaussian(normal(batch, 3), torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)),
        SquashedGaussian(normal(batch, 3), torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)),
    ]


def name(distribution: Distribution) -> str:
    return type(distribution).__name__


# --- Common behaviour -----------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", every_distribution(), ids=name)
def test_same_generator_seed_gives_the_same_samples(distribution: Distribution) -> None:
    first, again = distribution.sample(seeded(3)), distribution.sample(seeded(3))
    assert torch.equal(first, again)
    generator = seeded(3)
    draws = [distribution.sample(generator) for _ in range(8)]
    assert torch.equal(draws[0], first)
    assert any(not torch.equal(draw, first) for draw in draws[1:])


@pytest.mark.parametrize("distribution", every_distribution(), ids=name)
def test_sampling_with_a_generator_leaves_the_global_one_alone(distribution: Distribution) -> None:
    before = torch.get_rng_state()
    distribution.sample(seeded())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("distribution", every_distribution(), ids=name)
def test_log_prob_and_entropy_have_one_number_per_action(distribution: Distribution) -> None:
    for action in (distribution.sample(seeded()), distribution.mode()):
        assert distribution.log_prob(action).shape == (5,)
    assert distribution.entropy().shape == distribution.kl(distribution).shape == (5,)


FROM_SIX_PARAMETERS: list[Callable[[Tensor], Distribution]] = [
    lambda p: Categorical(p),
    lambda p: MultiCategorical(p, (2, 4)),
    lambda p: Bernoulli(p),
    lambda p: DiagGaussian(p, p),
    lambda p: SquashedGaussian(p, p),
]


@pytest.mark.parametrize("build", FROM_SIX_PARAMETERS)
def test_samples_carry_no_gradient_and_densities_do(build: Callable[[Tensor], Distribution]) -> None:
    params = normal(5, 6).requires_grad_()
    distribution = build(params)
    action = distribution.sample(seeded())
    assert not action.requires_grad
    (log_prob_grad,) = torch.autograd.grad(distribution.log_prob(action).sum(), params, retain_graph=True)
    (entropy_grad,) = torch.autograd.grad(distribution.entropy().sum(), params)
    for grad in (log_prob_grad, entropy_grad):
        assert grad.isfinite().all() and grad.abs().sum() > 0


def test_entropy_first_asked_for_in_inference_mode_still_has_gradients_later() -> None:
    _gauss_hermite.cache_clear()
    mean, log_std = normal(2, 3), normal(3)
    with torch.inference_mode():
        SquashedGaussian(mean, log_std).entropy()
    mean.requires_grad_()
    SquashedGaussian(mean, log_std).entropy().sum().backward()
    assert mean.grad is not None and mean.grad.abs().sum() > 0


# --- KL divergence --------------------------------------------------------------------------------


def test_kl_by_hand() -> None:
    # (1/4, 3/4) against (1/2, 1/2), as one choice, as two at once, and as a yes/no choice.
    forward = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    reverse = 0.5 * math.log(2.0) + 0.5 * math.log(2.0 / 3.0)
    skewed, even = torch.tensor([[0.0, math.log(3.0)]]), torch.zeros(1, 2)
    assert Categorical(skewed).kl(Categorical(even)).item() == pytest.approx(forward)
    assert Categorical(even).kl(Categorical(skewed)).item() == pytest.approx(reverse)
    pairs = torch.cat([skewed, even], -1), torch.cat([even, skewed], -1)
    both = MultiCategorical(pairs[0], (2, 2)).kl(MultiCategorical(pairs[1], (2, 2)))
    assert both.item() == pytest.approx(forward + reverse)
    odds = torch.tensor([[math.log(3.0), 0.0]]), torch.tensor([[0.0, math.log(3.0)]])
    assert Bernoulli(odds[0]).kl(Bernoulli(odds[1])).item() == pytest.approx(forward + reverse)


def test_gaussian_kl_by_hand() -> None:
    narrow = torch.tensor([[1.0]]), torch.tensor([0.0])
    wide = torch.tensor([[-1.0]]), torch.tensor([math.log(2.0)])
    for kind in (DiagGaussian, SquashedGaussian):  # the tanh changes nothing
        # log 2 + (1 + 2²) / (2 · 4) − ½, and −log 2 + (4 + 2²) / 2 − ½ the other way.
        assert kind(*narrow).kl(kind(*wide)).item() == pytest.approx(math.log(2.0) + 0.125)
        assert kind(*wide).kl(kind(*narrow)).item() == pytest.approx(3.5 - math.log(2.0))


@pytest.mark.parametrize("log_std", [normal(3, seed=4), normal(40, 3, seed=5)], ids=["state-independent", "per state"])
def test_gaussian_kl_matches_torch(log_std: Tensor) -> None:
    means, other_log_std = (normal(40, 3), normal(40, 3, seed=2)), normal(3, seed=6)
    ours = DiagGaussian(means[0], log_std).kl(DiagGaussian(means[1], other_log_std))
    normals = (td.Normal(mean, log.exp().expand_as(mean)) for mean, log in zip(means, (log_std, other_log_std)))
    torch.testing.assert_close(ours, td.kl_divergence(*normals).sum(-1))


def test_discrete_kl_matches_torch() -> None:
    a, b = 3 * normal(40, 9), 3 * normal(40, 9, seed=2)
    parts = [[td.Categorical(logits=part) for part in x.split(list(NVEC), dim=-1)] for x in (a, b)]
    expected = sum(td.kl_divergence(p, q) for p, q in zip(*parts))
    torch.testing.assert_close(MultiCategorical(a, NVEC).kl(MultiCategorical(b, NVEC)), expected)
    expected = td.kl_divergence(td.Categorical(logits=a), td.Categorical(logits=b))
    torch.testing.assert_close(Categorical(a).kl(Categorical(b)), expected)
    expected = td.kl_divergence(td.Bernoulli(logits=a), td.Bernoulli(logits=b)).sum(-1)
    torch.testing.assert_close(Bernoulli(a).kl(Bernoulli(b)), expected)


def test_squashed_kl_is_the_mean_difference_of_log_densities() -> None:
    parameters = normal(3), torch.tensor([-1.0, 0.0, 0.5], dtype=torch.float64)
    other = normal(3, seed=2), torch.tensor([-0.8, 0.2, 0.3], dtype=torch.float64)
    (ours, theirs) = (SquashedGaussian(mean.expand(100_000, 3), log_std) for mean, log_std in (parameters, other))
    actions, log_probs = ours.rsample_with_log_prob(seeded())
    differences = log_probs - theirs.log_prob(actions)
    standard_error = (differences.std() / math.sqrt(len(differences))).item()
    assert ours.kl(theirs)[0].item() == pytest.approx(differences.mean().item(), abs=4 * standard_error)


@pytest.mark.parametrize("build", FROM_SIX_PARAMETERS)
def test_kl_to_itself_has_its_minimum_there(build: Callable[[Tensor], Distribution]) -> None:
    params = normal(5, 6)
    moved = params.clone().requires_grad_()
    kl = build(params).kl(build(moved))
    torch.testing.assert_close(kl, torch.zeros_like(kl))
    (gradient,) = torch.autograd.grad(kl.sum(), moved, create_graph=True)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))
    (curvature,) = torch.autograd.grad((gradient * normal(5, 6, seed=2)).sum(), moved)
    assert curvature.isfinite().all() and curvature.abs().sum() > 0.1


def test_kl_of_extreme_distributions_is_finite() -> None:
    # P(1) = 1 − e^-100 against e^-100: log P − log P' is 100.
    certain, opposite = Bernoulli(torch.tensor([[100.0]])), Bernoulli(torch.tensor([[-100.0]]))
    assert certain.kl(opposite).item() == pytest.approx(100.0)
    assert certain.kl(certain).item() == 0.0
    lowest = torch.finfo(torch.float32).min
    ruled_out = Categorical(torch.tensor([[0.0, lowest, 0.0]]))
    assert ruled_out.kl(Categorical(torch.zeros(1, 3))).item() == pytest.approx(math.log(1.5))


def test_kl_of_nearly_equal_gaussians_is_not_lost_to_rounding() -> None:
    # log(σ'/σ) = d gives d² to first order, and a shift of the mean by d gives d² / 2.
    d = 1e-4
    kl = DiagGaussian(torch.zeros(1, 1), torch.zeros(1)).kl(DiagGaussian(torch.full((1, 1), d), torch.full((1,), d)))
    assert kl.item() == pytest.approx(1.5 * d * d, rel=1e-2)


# --- Categorical ----------------------------------------------------------------------------------


def test_categorical_by_hand() -> None:
    # Odds 1 : 3, shifted by a constant that must not matter.
    distribution = Categorical(torch.tensor([[7.0, 7.0 + math.log(3.0)]]))
    assert distribution.probs[0].tolist() == pytest.approx([0.25, 0.75])
    assert distribution.log_prob(torch.tensor([0])).item() == pytest.approx(math.log(0.25))
    assert distribution.entropy().item() == pytest.approx(0.25 * math.log(4) + 0.75 * math.log(4 / 3))
    assert distribution.mode().tolist() == [1]


def test_categorical_matches_torch() -> None:
    logits, actions = 3 * normal(50, 6), torch.arange(50) % 6
    ours, reference = Categorical(logits), td.Categorical(logits=logits)
    torch.testing.assert_close(ours.log_prob(actions), reference.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    assert torch.equal(ours.mode(), reference.mode)


def test_categorical_sampling_frequencies() -> None:
    probs = torch.tensor([0.1, 0.2, 0.65, 0.05])
    samples = Categorical(probs.log().expand(200_000, 4)).sample(seeded())
    frequencies = samples.bincount(minlength=4) / len(samples)
    # Five standard errors of the most uncertain frequency: 5 * sqrt(0.65 * 0.35 / 200000) = 0.0053.
    torch.testing.assert_close(frequencies, probs, atol=0.0053, rtol=0)


def test_categorical_never_samples_a_ruled_out_choice() -> None:
    lowest = torch.finfo(torch.float32).min
    distribution = Categorical(torch.tensor([0.0, lowest, 0.0]).expand(100_000, 3))
    assert distribution.sample(seeded()).bincount(minlength=3)[1] == 0
    torch.testing.assert_close(distribution.entropy()[0].item(), math.log(2))


# --- MultiCategorical -----------------------------------------------------------------------------


@pytest.mark.parametrize("nvec", [NVEC, (3, 3), (5,)])
def test_multi_categorical_is_the_sum_of_torch_categoricals(nvec: tuple[int, ...]) -> None:
    logits = 2 * normal(40, sum(nvec))
    actions = torch.stack([torch.arange(40) % n for n in nvec], dim=-1)
    ours = MultiCategorical(logits, nvec)
    parts = [td.Categorical(logits=part) for part in logits.split(list(nvec), dim=-1)]
    log_probs = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(ours.log_prob(actions), log_probs)
    torch.testing.assert_close(ours.entropy(), sum(part.entropy() for part in parts))
    assert torch.equal(ours.mode(), torch.stack([part.mode for part in parts], dim=-1))


def test_multi_categorical_sampling_frequencies_and_padding() -> None:
    probs = [torch.tensor([0.3, 0.7]), torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([0.5, 0.25, 0.25])]
    logits = torch.cat(probs).log().expand(100_000, -1)
    samples = MultiCategorical(logits, NVEC).sample(seeded())
    assert samples.dtype == torch.int64 and samples.shape == (100_000, 3)
    for i, expected in enumerate(probs):
        # bincount is as long as the largest value drawn + 1: a padded option would lengthen it.
        frequencies = samples[:, i].bincount() / len(samples)
        torch.testing.assert_close(frequencies, expected, atol=0.008, rtol=0)


def test_multi_categorical_padding_gets_no_gradient_trouble() -> None:
    logits = torch.zeros(1, 5, requires_grad=True)
    distribution = MultiCategorical(logits, (2, 3))
    (distribution.entropy() + distribution.log_prob(torch.tensor([[1, 0]]))).sum().backward()
    # The entropy is at its maximum (no gradient); d log p(a) / d logits = onehot(a) - p.
    expected = torch.tensor([[-1 / 2, 1 / 2, 2 / 3, -1 / 3, -1 / 3]])
    torch.testing.assert_close(logits.grad, expected)


# --- Bernoulli ------------------------------------------------------------------------------------


def test_bernoulli_matches_torch() -> None:
    logits = 3 * normal(40, 5)
    actions = (normal(40, 5, seed=2) > 0).double()
    ours, reference = Bernoulli(logits), td.Independent(td.Bernoulli(logits=logits), 1)
    torch.testing.assert_close(ours.log_prob(actions), reference.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    assert torch.equal(ours.mode(), (logits > 0).double())


def test_bernoulli_sampling_frequencies() -> None:
    probs = torch.tensor([0.02, 0.5, 0.9])
    samples = Bernoulli(probs.logit().expand(200_000, 3)).sample(seeded())
    assert set(samples.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(samples.mean(0), probs, atol=0.0056, rtol=0)


def test_bernoulli_entropy_of_a_certain_choice_is_tiny_and_not_negative() -> None:
    # H(p) = -p log p - (1-p) log(1-p) with 1-p = e^-40 is about (40 + 1) e^-40.
    entropy = Bernoulli(torch.tensor([[40.0], [-40.0]])).entropy()
    torch.testing.assert_close(entropy, torch.full((2,), 41 * math.exp(-40)))


# --- DiagGaussian ---------------------------------------------------------------------------------


def test_gaussian_by_hand() -> None:
    distribution = DiagGaussian(torch.tensor([[1.0, -1.0]]), torch.tensor([0.0, math.log(2.0)]))
    # z = (1, 1): log p = -1/2 - 1/2 - log 2 - log(2 pi); H = 1 + log(2 pi) + log 2.
    log_prob = distribution.log_prob(torch.tensor([[2.0, 1.0]])).item()
    assert log_prob == pytest.approx(-1 - math.log(2) - math.log(2 * math.pi))
    assert distribution.entropy().item() == pytest.approx(1 + math.log(2 * math.pi) + math.log(2))


@pytest.mark.parametrize("log_std", [normal(3, seed=4), normal(40, 3, seed=5)], ids=["state-independent", "per state"])
def test_gaussian_matches_torch(log_std: Tensor) -> None:
    mean, actions = normal(40, 3), normal(40, 3, seed=2)
    ours = DiagGaussian(mean, log_std)
    reference = td.Independent(td.Normal(mean, log_std.exp().expand_as(mean)), 1)
    torch.testing.assert_close(ours.log_prob(actions), reference.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), reference.entropy())
    assert torch.equal(ours.mode(), mean)


def test_gaussian_sample_moments() -> None:
    mean, std = torch.tensor([2.0, -3.0]), torch.tensor([0.5, 2.0])
    samples = DiagGaussian(mean.expand(200_000, 2), std.log()).sample(seeded())
    torch.testing.assert_close(samples.mean(0), mean, atol=5 * 2.0 / math.sqrt(200_000), rtol=0)
    torch.testing.assert_close(samples.std(0), std, atol=0, rtol=0.01)
    assert abs(torch.corrcoef(samples.T)[0, 1].item()) < 0.012


def test_gaussian_rsample_gradient_is_one_and_the_scaled_noise() -> None:
    mean = torch.zeros(4, 2, requires_grad=True)
    log_std = torch.full((2,), 0.3, requires_grad=True)
    sample = DiagGaussian(mean, log_std).rsample(seeded())
    sample.sum().backward()
    torch.testing.assert_close(mean.grad, torch.ones(4, 2))
    torch.testing.assert_close(log_std.grad, sample.detach().sum(0))  # d(std * z) / d log std = std * z


# --- SquashedGaussian -----------------------------------------------------------------------------


def test_squashed_gaussian_matches_torch() -> None:
    mean, log_std = normal(40, 3), 0.5 * normal(3, seed=4)
    actions = torch.tanh(normal(40, 3, seed=2))
    ours, reference = SquashedGaussian(mean, log_std), squashed_reference(mean, log_std)
    torch.testing.assert_close(ours.log_prob(actions), reference.log_prob(actions))
    assert torch.equal(ours.mode(), mean.tanh())


def test_squashed_gaussian_by_hand() -> None:
    # At the action 0: u = 0, tanh'(0) = 1, so the density is that of the normal at 0.
    distribution = SquashedGaussian(torch.zeros(1, 1), torch.zeros(1))
    assert distribution.log_prob(torch.zeros(1, 1)).item() == pytest.approx(-0.5 * math.log(2 * math.pi))


def test_squashed_density_integrates_to_one() -> None:
    actions = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1].unsqueeze(-1)
    mean, log_std = torch.full((len(actions), 1), 0.4, dtype=torch.float64), torch.full((1,), -0.5).double()
    density = SquashedGaussian(mean, log_std).log_prob(actions).exp()
    assert torch.trapezoid(density, actions[:, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_rsample_with_log_prob_agrees_with_the_log_prob_of_the_action() -> None:
    distribution = SquashedGaussian(normal(200, 3), torch.full((3,), -0.5, dtype=torch.float64))
    actions, log_probs = distribution.rsample_with_log_prob(seeded())
    torch.testing.assert_close(log_probs, distribution.log_prob(actions))
    torch.testing.assert_close(actions, distribution.rsample(seeded()))


def test_rsample_with_log_prob_stays_exact_where_the_tanh_saturates() -> None:
    # u = 30 + 0.1 z: tanh(u) is exactly 1 in float32, yet log(1 - tanh(u)^2) = log 4 - 2u to within e^-60.
    mean, std = torch.full((8, 1), 30.0), 0.1
    actions, log_probs = SquashedGaussian(mean, torch.tensor([math.log(std)])).rsample_with_log_prob(seeded())
    assert (actions == 1).all()
    z = torch.randn(8, 1, generator=seeded())
    normal_part = -0.5 * z.square() - math.log(std) - 0.5 * math.log(2 * math.pi)
    expected = (normal_part - (math.log(4) - 2 * (mean + std * z))).squeeze(-1)
    torch.testing.assert_close(log_probs, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squashed_gaussian_is_finite_at_the_bounds(dtype: torch.dtype) -> None:
    mean = torch.tensor([[0.0, 50.0], [-50.0, 3.0]], dtype=dtype, requires_grad=True)
    log_std = torch.tensor([-2.0, 1.0], dtype=dtype, requires_grad=True)
    actions = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=dtype, requires_grad=True)
    distribution = SquashedGaussian(mean, log_std)
    log_prob = distribution.log_prob(actions)
    _, sampled_log_prob = distribution.rsample_with_log_prob(seeded())
    (log_prob.sum() + sampled_log_prob.sum() + distribution.entropy().sum()).backward()
    assert log_prob.isfinite().all() and sampled_log_prob.isfinite().all()
    for tensor in (mean, log_std, actions):
        assert tensor.grad is not None and tensor.grad.isfinite().all()
    # The mean of 0 is drawn towards the action 1.
    assert torch.autograd.grad(distribution.log_prob(actions)[0].sum(), mean)[0][0, 0] > 0


def test_squashed_sample_moments() -> None:
    mean, std = 0.3, 0.8
    samples = SquashedGaussian(torch.full((200_000, 1), mean), torch.tensor([math.log(std)])).sample(seeded())
    grid = torch.linspace(-10, 10, 100_001, dtype=torch.float64)
    weight = torch.exp(-0.5 * grid.square()) / math.sqrt(2 * math.pi)
    squashed = torch.tanh(mean + std * grid)
    expected_mean = torch.trapezoid(weight * squashed, grid).item()
    expected_square = torch.trapezoid(weight * squashed.square(), grid).item()
    assert samples.abs().max() <= 1
    assert samples.mean().item() == pytest.approx(expected_mean, abs=0.007)
    assert samples.square().mean().item() == pytest.approx(expected_square, abs=0.004)


@pytest.mark.parametrize("std", [0.05, 0.5, 1.0, 2.0])
def test_squashed_entropy_matches_monte_carlo(std: float) -> None:
    mean = torch.tensor([[0.0, 1.5, -2.0]], dtype=torch.float64)
    log_std = torch.full((3,), math.log(std), dtype=torch.float64)
    entropy = SquashedGaussian(mean, log_std).entropy().item()
    _, log_probs = SquashedGaussian(mean.expand(200_000, 3), log_std).rsample_with_log_prob(seeded())
    standard_error = (log_probs.std() / math.sqrt(len(log_probs))).item()
    assert entropy == pytest.approx(-log_probs.mean().item(), abs=4 * standard_error + 6e-4)


def test_squashed_entropy_gradient_matches_finite_differences() -> None:
    mean = normal(3, 2).requires_grad_()
    log_std = torch.tensor([-1.0, 0.2], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, s: SquashedGaussian(m, s).entropy(), (mean, log_std))


def test_squashed_entropy_never_exceeds_the_uniform_one() -> None:
    log_std = torch.linspace(-3, 0.7, 30).unsqueeze(-1)
    entropy = SquashedGaussian(torch.zeros(30, 1), log_std).entropy()
    # The uniform distribution on [-1, 1] has the largest entropy, log 2; an std of 0.87 comes closest.
    assert entropy.max() < math.log(2)
    assert entropy.max() > 0.65
