"""Running moments, observation normaliser and reward scaler."""

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_training.policies.normalization import ObservationNormalizer, RewardScaler, RunningMoments


def test_moments_by_hand() -> None:
    moments = RunningMoments((2,))
    assert moments.count == 0
    assert moments.mean.tolist() == [0, 0] and moments.var.tolist() == [1, 1]
    moments.update(torch.tensor([[1.0, 10.0], [3.0, 10.0]]))
    assert moments.count == 2
    assert moments.mean.tolist() == [2, 10] and moments.var.tolist() == [1, 0]
    moments.update(torch.tensor([[8.0, 4.0]]))
    # First column 1, 3, 8: mean 4, squares 9 + 1 + 16; second 10, 10, 4: mean 8, squares 4 + 4 + 16.
    assert moments.count == 3
    assert moments.mean.tolist() == pytest.approx([4, 8])
    assert moments.var.tolist() == pytest.approx([26 / 3, 24 / 3])


def test_moments_match_numpy_over_all_batches_together() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(1e4, 0.01, size=(size, 3, 2)) for size in (1, 7, 64, 2, 500)]
    moments = RunningMoments((3, 2))
    for batch in batches:
        moments.update(torch.as_tensor(batch))
    everything = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean.numpy(), everything.mean(0), rtol=1e-13)
    # A naive sum of squares would lose this variance, 1e-4 next to a squared mean of 1e8.
    np.testing.assert_allclose(moments.var.numpy(), everything.var(0), rtol=1e-6)


def test_an_empty_batch_changes_nothing() -> None:
    moments = RunningMoments((2,))
    moments.update(torch.tensor([[1.0, 2.0], [2.0, 4.0]]))
    before = copy.deepcopy(moments.state_dict())
    moments.update(torch.empty(0, 2))
    assert all(torch.equal(before[key], value) for key, value in moments.state_dict().items())


def test_a_batch_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(4, 3\)"):
        RunningMoments((2,)).update(torch.zeros(4, 3))


def test_observations_are_centred_scaled_and_clipped() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (2,)))
    normalizer.update(torch.tensor([[1.0, 0.0], [5.0, 0.0]]))  # mean 3 and 0, std 2 and 0
    out = normalizer(torch.tensor([[4.0, 0.0], [-1e9, 1.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.5, 0.0], [-10.0, 10.0]]))


def test_before_any_update_observations_pass_but_for_the_clip() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (3,), dtype=np.float64))
    out = normalizer(torch.tensor([[0.5, -2.0, 99.0]], dtype=torch.float64))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, torch.tensor([[0.5, -2.0, 10.0]]))


def test_forward_never_updates() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-1, 1, (2,)))
    scaler = RewardScaler()
    normalizer.update(torch.tensor([[1.0, 0.0], [5.0, 1.0]]))
    scaler.update(torch.tensor([1.0, 5.0]))
    both = torch.nn.ModuleList([normalizer, scaler])
    before = copy.deepcopy(both.state_dict())
    for training in (True, False):
        both.train(training)
        normalizer(torch.full((4, 2), 7.0))
        scaler(torch.full((4,), 7.0))
    after = both.state_dict()
    assert len(before) == 6
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize(
    ("space", "obs"),
    [
        (spaces.Discrete(5), torch.tensor([4, 0])),
        (spaces.MultiDiscrete([20, 30]), torch.tensor([[19, 29]])),
        (spaces.MultiBinary(3), torch.tensor([[0, 1, 1]])),
        (spaces.Box(0, 255, (2, 2), dtype=np.uint8), torch.tensor([[[0, 255], [3, 4]]], dtype=torch.uint8)),
    ],
    ids=["Discrete", "MultiDiscrete", "MultiBinary", "uint8 Box"],
)
def test_other_spaces_are_left_alone(space: spaces.Space, obs: torch.Tensor) -> None:
    normalizer = ObservationNormalizer(space)
    normalizer.update(obs)
    assert normalizer(obs) is obs
    assert normalizer.state_dict() == {}


def test_dict_observations_normalise_their_float_boxes_only() -> None:
    space = spaces.Dict(
        {
            "b.pos": spaces.Box(-np.inf, np.inf, (1,)),  # a dot and a method name are legal keys
            "keys": spaces.Box(-np.inf, np.inf, ()),
            "camera": spaces.Box(0, 255, (1,), dtype=np.uint8),
            "mode": spaces.Discrete(9),
        }
    )
    normalizer = ObservationNormalizer(space)
    raw = {
        "b.pos": torch.tensor([[0.0], [4.0]]),  # mean 2, std 2
        "keys": torch.tensor([10.0, 12.0]),  # mean 11, std 1
        "camera": torch.tensor([[200], [100]], dtype=torch.uint8),
        "mode": torch.tensor([8, 0]),
    }
    normalizer.update(raw)
    out = normalizer(raw)
    torch.testing.assert_close(out["b.pos"], torch.tensor([[-1.0], [1.0]]))
    torch.testing.assert_close(out["keys"], torch.tensor([-1.0, 1.0]))
    assert out["camera"] is raw["camera"] and out["mode"] is raw["mode"]
    assert raw["keys"].tolist() == [10.0, 12.0]


@pytest.mark.parametrize("assign", [False, True])
def test_loaded_statistics_are_used_at_once_and_exactly(assign: bool) -> None:
    space = spaces.Box(-np.inf, np.inf, (3,))
    trained, fresh = ObservationNormalizer(space), ObservationNormalizer(space)
    trained.update(torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 3 + 1)
    obs = torch.linspace(-2, 2, 6).reshape(2, 3)
    assert not torch.equal(fresh(obs), trained(obs))
    state = {key: value.clone() for key, value in trained.state_dict().items()}
    holder = torch.nn.ModuleDict({"policy": fresh})  # loaded as a part of something larger, like the policy
    holder.load_state_dict({f"policy.{key}": value for key, value in state.items()}, assign=assign)
    assert torch.equal(fresh(obs), trained(obs))
    more = torch.full((4, 3), 2.5)
    trained.update(more)
    fresh.update(more)
    assert torch.equal(fresh(obs), trained(obs))
    assert all(torch.equal(v, fresh.state_dict()[k]) for k, v in trained.state_dict().items())


def test_state_holds_the_three_moments_in_double_precision() -> None:
    state = RewardScaler().state_dict()
    assert set(state) == {"moments.mean", "moments.var", "moments.count"}
    assert {value.dtype for value in state.values()} == {torch.float64}


def test_rewards_are_divided_by_the_spread_of_returns_and_not_centred() -> None:
    scaler = RewardScaler()
    torch.testing.assert_close(scaler(torch.tensor([3.0, -50.0])), torch.tensor([3.0, -10.0]))
    scaler.update(torch.tensor([100.0, 108.0]))  # mean 104, std 4
    scaled = scaler(torch.tensor([[8.0, 0.0], [-2.0, 1000.0]], dtype=torch.float64))
    assert scaled.dtype == torch.float32
    torch.testing.assert_close(scaled, torch.tensor([[2.0, 0.0], [-0.5, 10.0]]))
