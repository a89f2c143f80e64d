"""Batch renormalisation: the correction by r and d by hand, its gradient, statistics per member, and when they change."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from rl_training.policies.batch_renorm import BatchRenorm, RenormConfig, batch_statistics

A = math.sqrt(0.249)
X = torch.tensor([[2 - A], [2 + A]])
"""A batch of mean 2 and variance 0.249: with ε = 0.001 its standard deviation is ½."""
NOW = RenormConfig(momentum=0.9, warmup=0)


def layer(mean: float, std: float, config: RenormConfig = NOW, members: int | None = None) -> BatchRenorm:
    """One feature, with running statistics such that √(σ² + ε) is `std`."""
    renorm = BatchRenorm(1, config, members)
    renorm.running_mean.fill_(mean)
    renorm.running_var.fill_(std * std - 0.001)
    return renorm


def learn(network: nn.Module, x: Tensor) -> Tensor:
    with batch_statistics(network):
        return network(x)


@pytest.mark.parametrize(
    "mean, std, expected",
    [
        # r = ½ and d = 1: in effect (x − 1) / 1.
        (1.0, 1.0, [1 - A, 1 + A]),
        # r = 5 becomes 3 and d = 110 becomes 5.
        (-9.0, 0.1, [5 - 3 * 2 * A, 5 + 3 * 2 * A]),
        # r = ¼ becomes ⅓ and d = −6 becomes −5.
        (14.0, 2.0, [-5 - 2 * A / 3, -5 + 2 * A / 3]),
    ],
)
def test_correction_by_hand(mean: float, std: float, expected: list[float]) -> None:
    torch.testing.assert_close(learn(layer(mean, std), X).flatten(), torch.tensor(expected))


def test_scale_and_shift_come_last() -> None:
    renorm = layer(1.0, 1.0)
    with torch.no_grad():
        renorm.weight.fill_(3.0)
        renorm.bias.fill_(7.0)
    frozen = renorm(X)
    torch.testing.assert_close(frozen.flatten(), torch.tensor([7 + 3 * (1 - A), 7 + 3 * (1 + A)]))
    torch.testing.assert_close(learn(renorm, X), frozen)


def test_running_statistics_move_after_use_towards_mean_and_population_variance() -> None:
    renorm = layer(1.0, 1.0)
    learn(renorm, X)
    assert renorm.running_mean.item() == pytest.approx(0.9 * 1 + 0.1 * 2)
    assert renorm.running_var.item() == pytest.approx(0.9 * 0.999 + 0.1 * 0.249)
    assert renorm.batches.item() == 1


def test_warm_up_is_batch_normalisation_for_exactly_that_many_batches() -> None:
    renorm = layer(1.0, 1.0, RenormConfig(momentum=0.9, warmup=2))
    plain = torch.tensor([-2 * A, 2 * A])
    for _ in range(2):
        torch.testing.assert_close(learn(renorm, X).flatten(), plain)
    # By now μ = 1.19 and σ² = 0.8565.
    mean, std = 1 + 0.1 + 0.09, math.sqrt(0.81 * 0.999 + 0.19 * 0.249 + 0.001)
    torch.testing.assert_close(learn(renorm, X).flatten(), (X.flatten() - mean) / std)


def test_r_and_d_carry_no_gradient() -> None:
    x = X.clone().requires_grad_()
    learn(layer(1.0, 1.0), x)[0].sum().backward()
    # With u = (x₁ − x₂) / 2 the first output is r u / √(u² + ε) + d, so its derivative is ± ½ r ε / σ_B³ = ± ½ · ½ · 0.001 · 8.
    assert x.grad is not None
    torch.testing.assert_close(x.grad.flatten(), torch.tensor([0.002, -0.002]), rtol=1e-3, atol=1e-6)


def test_outside_of_learning_each_row_is_normalised_alone_and_nothing_changes() -> None:
    renorm = layer(1.0, 2.0)
    before = {name: value.clone() for name, value in renorm.state_dict().items()}
    for mode in (True, False):
        renorm.train(mode)
        torch.testing.assert_close(renorm(X), (X - 1) / 2)
        torch.testing.assert_close(renorm(X[:1]), (X[:1] - 1) / 2)
    assert all(torch.equal(before[name], value) for name, value in renorm.state_dict().items())


def test_batch_statistics_are_for_one_network_and_end_with_the_block() -> None:
    network, other = nn.Sequential(nn.Identity(), layer(1.0, 2.0)), layer(1.0, 2.0)
    frozen = network(X)
    with pytest.raises(ZeroDivisionError), batch_statistics(network):
        assert torch.equal(other(X), frozen) and other.batches.item() == 0
        network(X)
        raise ZeroDivisionError
    assert network[1].batches.item() == 1
    network(X)
    assert network[1].batches.item() == 1


class TestEnsemble:
    values = torch.tensor([[[1.0, 5.0], [3.0, 9.0], [8.0, 1.0]], [[-2.0, 0.0], [0.5, 0.0], [7.0, 3.0]]])

    def ensemble(self) -> tuple[BatchRenorm, list[BatchRenorm]]:
        """Two members with different statistics and weights, and the same two on their own."""
        both, single = BatchRenorm(2, NOW, members=2), [BatchRenorm(2, NOW) for _ in range(2)]
        generator = torch.Generator().manual_seed(0)
        for index, alone in enumerate(single):
            for mine, theirs in zip(alone.state_dict().values(), both.state_dict().values()):
                if mine.is_floating_point():
                    mine.copy_(torch.rand(mine.shape, generator=generator) + 0.5)
                    theirs[index].copy_(mine)
        return both, single

    def test_every_member_has_its_own_statistics(self) -> None:
        both, single = self.ensemble()
        torch.testing.assert_close(both(self.values), torch.stack([s(x) for s, x in zip(single, self.values)]))
        expected = torch.stack([learn(s, x) for s, x in zip(single, self.values)])
        torch.testing.assert_close(learn(both, self.values), expected)
        for index, alone in enumerate(single):
            torch.testing.assert_close(both.running_mean[index], alone.running_mean)
            torch.testing.assert_close(both.running_var[index], alone.running_var)
        assert not torch.equal(both.running_mean[0], both.running_mean[1])

    def test_one_input_for_all_members(self) -> None:
        both, single = self.ensemble()
        shared = self.values[0]
        torch.testing.assert_close(both(shared), torch.stack([s(shared) for s in single]))
        torch.testing.assert_close(learn(both, shared), torch.stack([learn(s, shared) for s in single]))
        torch.testing.assert_close(both.running_var[1], single[1].running_var)

    @pytest.mark.parametrize("members", [torch.tensor([1]), slice(1, 2)], ids=["indices", "slice"])
    def test_members_left_out_learn_nothing(self, members: Tensor | slice) -> None:
        both, single = self.ensemble()
        torch.testing.assert_close(both(self.values[1:], members), single[1](self.values[1:]))
        with batch_statistics(both):
            torch.testing.assert_close(both(self.values[1:], members)[0], learn(single[1], self.values[1]))
        torch.testing.assert_close(both.running_mean[1], single[1].running_mean)
        assert torch.equal(both.running_mean[0], single[0].running_mean)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_batch_that_is_not_finite_leaves_no_trace(bad: float) -> None:
    renorm = layer(1.0, 2.0)
    learn(renorm, torch.tensor([[2.0], [bad]]))
    assert renorm.running_mean.item() == 1.0 and renorm.running_var.item() == pytest.approx(3.999)


def test_statistics_are_saved_with_the_weights() -> None:
    trained = BatchRenorm(1, RenormConfig(momentum=0.5, warmup=1))
    learn(trained, X)
    assert set(trained.state_dict()) == {"weight", "bias", "running_mean", "running_var", "batches"}
    loaded = BatchRenorm(1, RenormConfig(momentum=0.5, warmup=1))
    loaded.load_state_dict(trained.state_dict())
    assert torch.equal(loaded(X), trained(X))
    assert torch.equal(learn(loaded, X), learn(trained, X)), "the warm-up is over in both"
    assert torch.equal(loaded.running_var, trained.running_var)
