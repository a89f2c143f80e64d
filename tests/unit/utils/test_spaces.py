"""Actions reach the environment in its own form, and spaces survive a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from helpers.tools import through_codec
from rl_training.utils.errors import CheckpointError, SpaceError
from rl_training.utils.spaces import (
    ActionAdapter,
    map_obs,
    obs_layout,
    same_tree,
    space_from_tree,
    space_to_tree,
    stored_obs,
)


def test_discrete_actions_count_from_the_start() -> None:
    adapter = ActionAdapter(spaces.Discrete(3, start=-1))
    assert (adapter.shape, adapter.dtype) == ((), "int64")
    actions = adapter.to_env(np.array([0, 1, 2]))
    assert actions.tolist() == [-1, 0, 1]
    assert all(adapter.space.contains(action) for action in actions)


def test_multi_discrete_actions_have_starts_and_a_shape() -> None:
    adapter = ActionAdapter(spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[0, 10], [-2, 1]])))
    assert (adapter.shape, adapter.dtype) == ((4,), "int64")
    actions = adapter.to_env(np.array([[0, 0, 0, 0], [1, 2, 3, 4]]))
    assert actions.tolist() == [[[0, 10], [-2, 1]], [[1, 12], [1, 5]]]
    assert all(adapter.space.contains(action) for action in actions)


def test_multi_binary_actions_have_a_shape_and_int8() -> None:
    adapter = ActionAdapter(spaces.MultiBinary([2, 2]))
    assert (adapter.shape, adapter.dtype) == ((4,), "float32")
    actions = adapter.to_env(np.array([[1.0, 0.0, 0.0, 1.0]], dtype=np.float32))
    assert actions.tolist() == [[[1, 0], [0, 1]]] and actions.dtype == np.int8
    assert adapter.space.contains(actions[0])


def test_box_actions_span_the_bounds() -> None:
    adapter = ActionAdapter(spaces.Box(np.array([[-2.0], [10.0]]), np.array([[2.0], [30.0]]), dtype=np.float64))
    assert (adapter.shape, adapter.dtype) == ((2,), "float32")
    actions = adapter.to_env(np.array([[-1.0, -1.0], [0.0, 0.5], [1.0, 1.0]], dtype=np.float32))
    assert actions.tolist() == [[[-2.0], [10.0]], [[0.0], [25.0]], [[2.0], [30.0]]]
    assert actions.dtype == np.float64


def test_box_actions_are_clipped() -> None:
    adapter = ActionAdapter(spaces.Box(-0.4, 0.4, (2,), np.float32))
    actions = adapter.to_env(np.array([[-5.0, 5.0], [np.inf, -np.inf]], dtype=np.float32))
    low, high = np.float32(-0.4), np.float32(0.4)
    assert actions.tolist() == [[low, high], [high, low]]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rounding_never_leaves_the_bounds_and_the_ends_are_exact(dtype: Any) -> None:
    generator = np.random.default_rng(0)
    ends = generator.normal(size=(2, 500)) * 10.0 ** generator.integers(-3, 4, size=(2, 500))
    low, high = np.sort(ends, axis=0).astype(dtype)
    space = spaces.Box(low, high, dtype=dtype)
    adapter = ActionAdapter(space)
    actions = generator.uniform(-1.2, 1.2, size=(50, 500)).astype(np.float32)
    assert all(space.contains(row) for row in adapter.to_env(actions))
    assert np.array_equal(adapter.to_env(-np.ones((1, 500), np.float32))[0], low)
    top = adapter.to_env(np.ones((1, 500), np.float32))[0]
    assert np.allclose(top, high, rtol=1e-9, atol=0) if dtype == np.float64 else np.array_equal(top, high)


def test_box_dtype_and_huge_finite_bounds() -> None:
    space = spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (1,), np.float32)
    actions = ActionAdapter(space).to_env(np.array([[-1.0], [0.0], [1.0]], dtype=np.float32))
    assert actions.ravel().tolist() == [space.low[0], 0.0, space.high[0]]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), "infinite bounds"),
        (spaces.Box(np.array([0.0, 0.0]), np.array([1.0, np.inf]), dtype=np.float64), "RescaleAction"),
        (spaces.Box(0, 10, (2,), np.int64), "MultiDiscrete"),
        (spaces.Box(0, 255, (2,), np.uint8), "uint8"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "Dict is not supported"),
        (spaces.Tuple((spaces.Discrete(2),)), "Tuple is not supported"),
        (spaces.Text(3), "Text is not supported"),
    ],
)
def test_action_spaces_that_are_refused(space: spaces.Space[Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        ActionAdapter(space)


SPACES = [
    spaces.Box(-1.5, np.inf, (2, 3), np.float32),
    spaces.Box(np.array([0.1, -0.3]), np.array([0.2, 1e300]), dtype=np.float64),
    spaces.Box(0, 255, (4, 4, 1), np.uint8),
    spaces.Box(-1.0, 1.0, (), np.float32),
    spaces.Discrete(5),
    spaces.Discrete(3, start=-7),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, -2], [0, 3]])),
    spaces.MultiBinary(4),
    spaces.MultiBinary([2, 3]),
    spaces.Dict({"b": spaces.Box(0, 1, (2,)), "a.x": spaces.Discrete(2), "c": spaces.MultiBinary(2)}),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_survive_a_checkpoint(space: spaces.Space[Any]) -> None:
    again = space_from_tree(through_codec(space_to_tree(space)))
    assert again == space
    assert again.dtype == space.dtype and again.shape == space.shape
    if isinstance(space, spaces.Dict):
        assert list(again.spaces) == list(space.spaces)


def test_a_space_that_cannot_be_saved_is_refused() -> None:
    with pytest.raises(SpaceError, match="Text"):
        space_to_tree(spaces.Text(3))


@pytest.mark.parametrize(
    "tree",
    [
        None,
        {},
        [],
        {"type": "Tuple", "spaces": []},
        {"type": ["Box"]},
        {"type": "Box", "low": np.zeros(2), "high": np.ones(3), "dtype": "float32"},
        {"type": "Box", "low": np.ones(2), "high": np.zeros(2), "dtype": "float32"},
        {"type": "Box", "low": np.zeros(2), "high": np.ones(2), "dtype": "no dtype"},
        {"type": "Box", "low": np.zeros(2), "high": np.ones(2), "dtype": "object"},
        {"type": "Box", "low": "low", "high": np.ones(2), "dtype": "float32"},
        {"type": "Box", "high": np.ones(2), "dtype": "float32"},
        {"type": "Discrete", "n": 0, "start": 0},
        {"type": "Discrete", "n": "many", "start": 0},
        {"type": "Discrete", "n": 2**70, "start": 0},
        {"type": "Discrete", "n": float("inf"), "start": 0},
        {"type": "MultiDiscrete", "nvec": np.array([2, -1]), "start": np.zeros(2, dtype=np.int64)},
        {"type": "MultiDiscrete", "nvec": np.array([2, 3]), "start": np.zeros(3, dtype=np.int64)},
        {"type": "MultiBinary", "shape": [0]},
        {"type": "MultiBinary", "shape": 4},
        {"type": "Dict", "spaces": [1]},
        {"type": "Dict", "spaces": {"a": {"type": "Discrete"}}},
    ],
    ids=str,
)
def test_malformed_descriptions_are_checkpoint_errors(tree: Any) -> None:
    with pytest.raises(CheckpointError, match="space"):
        space_from_tree(tree)


def test_bitwise_equality_of_observations() -> None:
    nan = np.array([np.nan, 1.0])
    assert same_tree(nan, nan.copy())
    assert not same_tree(np.array([0.0]), np.array([-0.0]))
    assert not same_tree(np.array([1.0]), np.array([1.0], dtype=np.float32))
    assert not same_tree(np.array([1.0]), np.array([[1.0]]))
    assert same_tree({"a": nan}, {"a": nan})
    assert not same_tree({"a": nan}, {"b": nan})
    assert not same_tree({"a": nan}, nan)


def test_observations_are_stored_in_single_precision_and_small_types_stay() -> None:
    stored = stored_obs(
        {"x": np.array([0.1]), "h": np.zeros(1, np.float16), "p": np.zeros(1, np.uint8), "d": np.int64(3)}
    )
    assert {key: value.dtype.name for key, value in stored.items()} == {
        "x": "float32",
        "h": "float32",
        "p": "uint8",
        "d": "int64",
    }
    assert stored["x"][0] == np.float32(0.1)
    space = spaces.Dict({"x": spaces.Box(0, 1, (2,), np.float64), "d": spaces.Discrete(3), "p": spaces.MultiBinary(4)})
    assert obs_layout(space) == ({"x": (2,), "d": (), "p": (4,)}, {"x": "float32", "d": "int64", "p": "int8"})


def test_map_obs_reaches_each_entry() -> None:
    assert map_obs(lambda value: value + 1, 1) == 2
    assert map_obs(lambda value: value + 1, {"a": 1, "b": 2}) == {"a": 2, "b": 3}
