"""differing_paths: what counts as a difference, and where it is reported."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch

from rl_training.utils.trees import differing_paths


def test_identical_trees_of_every_kind() -> None:
    def tree() -> dict:
        return {
            "tensor": torch.tensor([1.0, math.nan, -0.0]),
            "scalar": torch.tensor(3.0),
            "bf16": torch.ones(2, 3, dtype=torch.bfloat16),
            "bool": torch.tensor([True, False]),
            "complex": torch.tensor([1 + 2j]),
            "empty": torch.zeros(0, 4),
            "array": np.array([math.nan, 2.0]),
            "list": [None, True, 7, 2**70, "a", math.nan, math.inf],
            "tuple": (1, {"x": [1.5]}),
            3: "int key",
        }

    assert differing_paths(tree(), tree()) == []
    assert differing_paths(OrderedDict(tree()), tree()) == []


@pytest.mark.parametrize(
    "a, b",
    [
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(1, 2)),
        (torch.zeros(1), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([1.0 + 1e-7])),
        (torch.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.zeros(2), np.zeros(2, dtype=np.float32)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.array([0.0]), np.array([-0.0])),
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (0.0, math.nan),
        ("a", "b"),
        ([1], (1,)),
        ({}, None),
        (torch.zeros(1), [0.0]),
    ],
)
def test_what_differs(a: object, b: object) -> None:
    assert differing_paths({"x": a}, {"x": b}) == ["x"]
    assert differing_paths({"x": b}, {"x": a}) == ["x"]
    assert differing_paths(a, b) == [""]


def test_paths_name_every_difference() -> None:
    a = {"w": {"net.0.weight": torch.zeros(2), "same": 1}, "items": [1, 2, 3], "only_a": 0, 0: "x"}
    b = {"w": {"net.0.weight": torch.ones(2), "same": 1}, "items": [1, 5], "0": "x", "only_b": None}
    assert differing_paths(a, b) == ["w.net.0.weight", "items.1", "items.2", "only_a", "0", "0", "only_b"]


def test_ignore_matches_whole_parts_from_the_front() -> None:
    a = {"runtime": {"timer": {"elapsed": 1.0}, "timers": 1, "opt": {"p": {"lr": 1}, "q": {"lr": 1, "eps": 1}}}, "x": 1}
    b = {"runtime": {"timer": {"elapsed": 2.0}, "timers": 2, "opt": {"p": {"lr": 2}, "q": {"lr": 2, "eps": 2}}}}
    everything = [
        "runtime.timer.elapsed",
        "runtime.timers",
        "runtime.opt.p.lr",
        "runtime.opt.q.lr",
        "runtime.opt.q.eps",
        "x",
    ]
    assert differing_paths(a, b) == everything
    assert differing_paths(a, b, ["runtime.timer"]) == everything[1:]
    assert differing_paths(a, b, ["timer"]) == everything, "a pattern begins at the root"
    assert differing_paths(a, b, ["runtime.opt.*.lr", "x"]) == [*everything[:2], "runtime.opt.q.eps"]
    assert differing_paths(a, b, ["runtime", "x"]) == []
