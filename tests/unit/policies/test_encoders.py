"""Every supported observation space against vectors written by hand; the others are refused with advice."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.policies.encoders import FlattenEncoder, check_observation_space
from rl_training.utils.errors import SpaceError


def encode(space: spaces.Space, obs: Tensor | dict[str, Tensor]) -> list[list[float]]:
    encoder = FlattenEncoder(space)
    out = encoder(obs)
    assert out.dtype == torch.float32
    assert out.shape[1] == encoder.features
    return out.tolist()


def test_box_is_flattened_in_row_order() -> None:
    obs = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    assert encode(spaces.Box(-9, 9, (2, 2)), obs) == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_box_without_dimensions_is_one_feature() -> None:
    assert encode(spaces.Box(-9, 9, ()), torch.tensor([1.5, -2.0])) == [[1.5], [-2.0]]


def test_bytes_are_divided_by_255_and_other_integers_are_not() -> None:
    pixels = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    assert encode(spaces.Box(0, 255, (3,), dtype=np.uint8), pixels) == [pytest.approx([0.0, 0.2, 1.0])]
    assert encode(spaces.Box(0, 255, (1,), dtype=np.int32), torch.tensor([[51]], dtype=torch.int32)) == [[51]]
    assert encode(spaces.Box(0, 1, (2,), dtype=np.bool_), torch.tensor([[True, False]])) == [[1, 0]]


def test_discrete_is_one_hot() -> None:
    assert encode(spaces.Discrete(3), torch.tensor([2, 0])) == [[0, 0, 1], [1, 0, 0]]


def test_discrete_counts_from_its_start() -> None:
    assert encode(spaces.Discrete(3, start=-1), torch.tensor([-1, 1])) == [[1, 0, 0], [0, 0, 1]]
    assert encode(spaces.Discrete(2, start=5), torch.tensor([6])) == [[0, 1]]


def test_multi_discrete_is_one_hots_side_by_side() -> None:
    obs = torch.tensor([[1, 0, 3], [0, 2, 0]])
    expected = [[0, 1, 1, 0, 0, 0, 0, 0, 1], [1, 0, 0, 0, 1, 1, 0, 0, 0]]
    assert encode(spaces.MultiDiscrete([2, 3, 4]), obs) == expected


def test_multi_discrete_counts_from_its_starts() -> None:
    space = spaces.MultiDiscrete([2, 3], start=[10, -2])
    assert encode(space, torch.tensor([[11, -2], [10, 0]])) == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_multi_discrete_of_two_dimensions() -> None:
    space = spaces.MultiDiscrete([[2, 1], [1, 2]])
    assert encode(space, torch.tensor([[[1, 0], [0, 1]]])) == [[0, 1, 1, 1, 0, 1]]


def test_multi_binary_of_any_shape() -> None:
    assert encode(spaces.MultiBinary(3), torch.tensor([[1, 0, 1]], dtype=torch.int8)) == [[1, 0, 1]]
    assert encode(spaces.MultiBinary((2, 2)), torch.tensor([[[1, 0], [0, 1]]])) == [[1, 0, 0, 1]]


def test_dict_entries_stand_in_the_order_of_the_space() -> None:
    space = spaces.Dict(
        [("z.first", spaces.Discrete(2)), ("items", spaces.Box(-9, 9, (2,))), ("a", spaces.MultiBinary(1))]
    )
    obs = {
        "a": torch.tensor([[1], [0]]),
        "items": torch.tensor([[0.5, -1.0], [2.0, 3.0]]),
        "z.first": torch.tensor([1, 0]),
    }
    assert encode(space, obs) == [[0, 1, 0.5, -1.0, 1], [1, 0, 2.0, 3.0, 0]]


def test_the_encoder_has_no_state_to_save() -> None:
    encoder = FlattenEncoder(spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.Box(-1, 1, (2,))}))
    assert encoder.state_dict() == {} and list(encoder.parameters()) == []


@pytest.mark.parametrize(
    ("space", "advice"),
    [
        (spaces.Tuple([spaces.Discrete(2)]), "Tuple.*named key"),
        (spaces.Text(5), "Text.*character codes"),
        (spaces.Sequence(spaces.Discrete(2)), "Sequence.*fixed length"),
        (spaces.Graph(spaces.Box(-1, 1, (2,)), None), "Graph.*adjacency"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Box(-1, 1, (1,))]), "OneOf.*alternative"),
        (spaces.Dict({"arm": spaces.Dict({"x": spaces.Discrete(2)})}), "'arm'.*Flatten the nested Dict"),
        (spaces.Dict({"note": spaces.Text(3)}), "'note'.*Text"),
        (spaces.Dict({}), "without entries"),
        (spaces.Box(-1, 1, (0,)), "no values"),
    ],
)
def test_other_spaces_are_refused_with_advice(space: spaces.Space, advice: str) -> None:
    for refuse in (check_observation_space, FlattenEncoder):
        with pytest.raises(SpaceError, match=advice):
            refuse(space)
