"""The codec gives back exactly what it was given, or refuses with the place in the tree."""

import json
import math
from collections import OrderedDict, namedtuple
from enum import IntEnum

import numpy as np
import pytest
import torch

from helpers.gpu import needs_gpu
from rl_training.experiment.checkpoint.codec import ARRAY_DTYPES, TENSOR_DTYPES, decode, encode
from rl_training.experiment.checkpoint.files import parse_json, read_tensors, write_tensors
from rl_training.utils.errors import CheckpointError


def round_trip(tree, folder):
    """Through strict JSON text and a real tensor file."""
    value, tensors = encode(tree)
    text = json.dumps(value, allow_nan=False).encode()
    write_tensors(folder / "t.safetensors", tensors)
    return decode(parse_json(text, "state.json"), read_tensors(folder / "t.safetensors"))


def raw(tensor):
    return tensor.reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize(
    "tree",
    [
        None,
        True,
        0,
        -(2**53) + 1,
        2**53,
        -(2**53),
        2**127 - 1,
        0.1,
        -0.0,
        5e-324,
        math.inf,
        -math.inf,
        "text ü \ud800 \x00",
        [],
        (),
        {},
        [1, (2, [3, ()])],
        {"a": {"b": [None, False]}, "": 1, "ordered": {"z": 1, "a": 2}},
        {0: "int", "0": "str", -5: 1, 2**70: 2},
    ],
)
def test_plain_values_round_trip_with_their_types(tree, tmp_path):
    result = round_trip(tree, tmp_path)
    assert repr(result) == repr(tree)  # tells 1 from 1.0 and True, 0.0 from -0.0, a tuple from a list


def test_an_integer_with_more_digits_than_python_converts_from_text(tmp_path):
    assert round_trip([-(10**5000)], tmp_path) == [-(10**5000)]


def test_key_order_is_kept(tmp_path):
    assert list(round_trip({"b": 1, "a": 2, "c": 3}, tmp_path)) == ["b", "a", "c"]


def test_key_order_is_kept_with_int_keys(tmp_path):
    assert list(round_trip({7: 1, "a": 2, 1: 3}, tmp_path)) == [7, "a", 1]


def test_nan_round_trips(tmp_path):
    result = round_trip([math.nan, {"x": math.nan}], tmp_path)
    assert math.isnan(result[0])
    assert math.isnan(result[1]["x"])


@pytest.mark.parametrize("dtype", sorted(TENSOR_DTYPES))
def test_every_tensor_dtype_keeps_its_bits(dtype, tmp_path):
    bits = torch.arange(48, dtype=torch.uint8)
    tensor = bits % 2 == 1 if dtype == "bool" else bits.view(getattr(torch, dtype))
    tensor = tensor.reshape(2, -1)
    result = round_trip({"x": tensor}, tmp_path)["x"]
    assert result.dtype is tensor.dtype
    assert result.shape == tensor.shape
    assert raw(result) == raw(tensor)


@pytest.mark.parametrize("dtype", sorted(ARRAY_DTYPES))
def test_every_array_dtype_keeps_its_bits_and_stays_an_array(dtype, tmp_path):
    bits = np.arange(48, dtype=np.uint8)
    array = (bits % 2).astype(bool) if dtype == "bool" else bits.view(dtype)
    result = round_trip([array.reshape(2, -1)], tmp_path)[0]
    assert isinstance(result, np.ndarray)
    assert result.dtype == array.dtype
    assert result.tobytes() == array.tobytes()
    assert result.flags.writeable


def test_scalars_and_empty_shapes_are_kept(tmp_path):
    tree = {
        "t0": torch.tensor(2.5),
        "a0": np.array(7, dtype=np.uint64),
        "t_empty": torch.empty(0, 3, dtype=torch.int16),
        "a_empty": np.empty((2, 0), dtype=np.float64),
    }
    result = round_trip(tree, tmp_path)
    assert result["t0"].shape == () and result["t0"].item() == 2.5
    assert result["a0"].shape == () and result["a0"] == 7 and result["a0"].dtype == np.uint64
    assert result["t_empty"].shape == (0, 3) and result["t_empty"].dtype == torch.int16
    assert result["a_empty"].shape == (2, 0) and result["a_empty"].dtype == np.float64


def test_views_are_saved_as_the_values_they_show(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    array = np.arange(6)
    array.flags.writeable = False
    tree = {
        "base": base,
        "transposed": base.T,
        "column": base[:, 1],
        "expanded": torch.tensor([1.0]).expand(3),
        "expanded to one": torch.tensor(1.0).expand(1),
        "spread to one": np.broadcast_to(np.float32(2.0), (1, 1)),
        "conjugate": torch.tensor([1 + 2j], dtype=torch.complex64).conj(),
        "reversed": array[::-1],
        "fortran": np.asfortranarray(array.reshape(2, 3)),
        "read_only": array,
    }
    result = round_trip(tree, tmp_path)
    assert result["base"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert result["transposed"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert result["column"].tolist() == [1, 4]
    assert result["expanded"].tolist() == [1, 1, 1]
    assert result["expanded to one"].tolist() == [1] and result["spread to one"].tolist() == [[2]]
    assert result["conjugate"].tolist() == [1 - 2j]
    assert result["reversed"].tolist() == [5, 4, 3, 2, 1, 0]
    assert result["fortran"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert result["read_only"].tolist() == [0, 1, 2, 3, 4, 5]


def test_names_that_collide_or_are_reserved_stay_apart(tmp_path):
    tree = {
        "a": {"b": torch.tensor(1)},
        "a.b": torch.tensor(2),
        "a.b~1": torch.tensor(3),
        "__metadata__": torch.tensor(4),
        "\ud800": torch.tensor(5),
    }
    result = round_trip(tree, tmp_path)
    assert result["a"]["b"] == 1
    assert [result[key].item() for key in list(tree)[1:]] == [2, 3, 4, 5]


def test_optimiser_and_module_state_load_again(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimiser = torch.optim.Adam(model.parameters())
    model(torch.randn(5, 3)).square().sum().backward()
    optimiser.step()
    restored = round_trip({"model": model.state_dict(), "optimiser": optimiser.state_dict()}, tmp_path)
    fresh = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    fresh_optimiser = torch.optim.Adam(fresh.parameters())
    fresh.load_state_dict(restored["model"])
    fresh_optimiser.load_state_dict(restored["optimiser"])
    for name, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)
    for index, state in optimiser.state_dict()["state"].items():
        for name, value in state.items():
            assert torch.equal(fresh_optimiser.state_dict()["state"][index][name], value)


def test_generator_states_continue_where_they_were(tmp_path):
    rng = np.random.default_rng(3)
    torch_rng = torch.Generator().manual_seed(3)
    saved = round_trip({"numpy": rng.bit_generator.state, "torch": torch_rng.get_state()}, tmp_path)
    expected = rng.random(4).tolist(), torch.rand(4, generator=torch_rng).tolist()
    other, torch_other = np.random.default_rng(9), torch.Generator()
    other.bit_generator.state = saved["numpy"]
    torch_other.set_state(saved["torch"])
    assert (other.random(4).tolist(), torch.rand(4, generator=torch_other).tolist()) == expected


class Colour(IntEnum):
    RED = 1


Point = namedtuple("Point", "x y")
itself: list = []
itself.append(itself)


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"a": {"b": object()}}, "state.a.b"),
        ({"a": [1, len]}, "state.a.1"),
        ({"a": {1, 2}}, "state.a"),
        ({"a": b"bytes"}, "state.a"),
        ({"a": np.float64(1)}, r"state.a: numpy.float64 .*\.item\(\)"),
        ({"a": np.int32(1)}, "state.a"),
        ({"a": Colour.RED}, "state.a"),
        ({"a": Point(1, 2)}, "state.a"),
        ({"a": np.array([object()])}, "state.a"),
        ({"a": np.array(["text"])}, "state.a"),
        ({"a": np.array([1], dtype=">i4")}, "state.a"),
        ({"a": np.zeros(2, dtype=np.complex128)}, "state.a"),
        ({"a": np.ma.masked_array([1])}, "state.a"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "state.a"),
        ({"a": torch.zeros(2).to_sparse()}, "state.a"),
        ({"a": torch.zeros(2, device="meta")}, "state.a"),
        ({"a": {True: 1}}, "state.a: key True"),
        ({"a": {1.5: 1}}, "state.a: key 1.5"),
        ({"a": {"$tensor": 1}}, r"state.a: key '\$tensor'"),
        ({"a": {"$other": 1, 3: 4}}, r"state.a: key '\$other'"),
        (itself, "deeper than 100"),
    ],
)
def test_what_cannot_be_kept_exactly_is_refused_by_place(tree, named):
    with pytest.raises(CheckpointError, match=named):
        encode(tree)


def test_depth_limit_is_the_same_both_ways(tmp_path):
    tree: object = 1
    for _ in range(100):
        tree = [tree]
    assert round_trip(tree, tmp_path) == tree
    with pytest.raises(CheckpointError, match="deeper"):
        encode([tree])
    with pytest.raises(CheckpointError, match="deeper"):
        decode([tree], {})


T = {"x": torch.zeros(2)}
X = {"$tensor": "x", "dtype": "float32", "shape": [2]}


@pytest.mark.parametrize(
    ("value", "tensors", "named"),
    [
        ({"$object": 1}, {}, r"\$object"),
        ({"$tuple": [1], "more": 1}, {}, "beside other keys"),
        ({"more": 1, "$tuple": [1]}, {}, "beside other keys"),
        ({"$tuple": {"a": 1}}, {}, "malformed"),
        ({"$dict": [[1, 2, 3]]}, {}, "pairs"),
        ({"$dict": [[1, 2], [1, 3]]}, {}, "repeated"),
        ({"$dict": [[True, 2]]}, {}, "neither"),
        ({"$dict": [[[], 2]]}, {}, "neither"),
        ({"$dict": [[1.0, 2]]}, {}, "neither"),
        ({"$float": "1.5"}, {}, "malformed"),
        ({"$float": ["nan"]}, {}, "malformed"),
        ({"$int": "12"}, {}, "malformed"),
        ({"$int": 12}, {}, "malformed"),
        (10**400, {}, "plain integer"),
        (math.inf, {}, "not finite"),
        ({1: 2}, {}, "malformed"),
        (b"x", {}, "not JSON"),
        (X, {}, "'x' is missing"),
        ([X, X], T, "used twice"),
        ([], T, "not part of the state"),
        (X | {"dtype": "int32"}, T, "float32"),
        (X | {"shape": [1, 2]}, T, "state says"),
        (X | {"shape": "2"}, T, "malformed"),
        ({"$tensor": "x"}, T, "malformed"),
        ({"$tensor": 1, "dtype": "float32", "shape": [2]}, T, "malformed"),
        (X | {"more": 1}, T, "malformed"),
        (
            {"$array": "x", "dtype": "bfloat16", "shape": [2]},
            {"x": torch.zeros(2, dtype=torch.bfloat16)},
            "not allowed",
        ),
    ],
)
def test_decoding_refuses_what_encoding_never_writes(value, tensors, named):
    with pytest.raises(CheckpointError, match=named):
        decode(value, tensors)


def test_an_ordered_dict_and_a_parameter_are_kept_as_plain_ones(tmp_path):
    result = round_trip(OrderedDict(w=torch.nn.Parameter(torch.tensor([1.5]))), tmp_path)
    assert type(result) is dict
    assert result["w"].tolist() == [1.5]
    assert not result["w"].requires_grad


@needs_gpu
def test_tensors_on_a_gpu_come_back_on_the_cpu(tmp_path):
    result = round_trip({"w": torch.tensor([1.5, 2.5], device="cuda")}, tmp_path)["w"]
    assert result.device.type == "cpu"
    assert result.tolist() == [1.5, 2.5]
