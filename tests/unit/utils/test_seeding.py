"""One seed, many streams; the process-wide generators are left as they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from helpers.tools import through_codec
from rl_training.utils.global_random import (
    GlobalRandomStream,
    global_rng_state,
    preserved_global_rng,
    seeded_global_rng,
    set_global_rng_state,
)
from rl_training.utils.seeding import derive_seed


def draws() -> tuple[float, float, float]:
    """One number from each process-wide generator."""
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002


def test_derived_seeds_stay_what_they_are() -> None:
    # Published results and checkpoints rest on these: a change here changes every seeded run.
    assert derive_seed(0, "env", 0) == 1375471110
    assert derive_seed(0, "env", 1) == 818642040
    assert derive_seed(7, "training envs") == 2118324757
    assert derive_seed(2**32 - 1, "algorithm") == 2027281070
    assert derive_seed(0) == 1484405855


def test_streams_differ_by_seed_name_and_order() -> None:
    paths = [("a",), ("b",), ("a", 0), ("a", 1), ("a", "b"), ("b", "a"), (0,), (0, "a"), ()]
    seeds = [derive_seed(seed, *path) for seed in range(20) for path in paths]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_preserved_generators_go_on_as_if_nothing_happened() -> None:
    with seeded_global_rng(3):
        np.random.standard_normal()  # noqa: NPY002 - leaves a cached second number behind
        random.gauss(0, 1)
        start = global_rng_state()
        expected = [draws() for _ in range(3)]
        set_global_rng_state(start)
        with preserved_global_rng():
            random.seed(1)
            torch.manual_seed(1)
            np.random.seed(1)  # noqa: NPY002
            draws()
        assert [draws() for _ in range(3)] == expected


def test_they_are_preserved_after_an_error_too() -> None:
    with seeded_global_rng(3):
        start = global_rng_state()
        expected = draws()
        set_global_rng_state(start)
        with pytest.raises(ZeroDivisionError), preserved_global_rng():
            draws()
            raise ZeroDivisionError
        assert draws() == expected


def test_a_seeded_block_repeats_and_disturbs_nothing() -> None:
    found = []
    for _ in range(2):
        before = global_rng_state()
        with seeded_global_rng(5):
            found.append(draws())
        after = draws()
        set_global_rng_state(before)
        assert draws() == after
    assert found[0] == found[1]


def test_the_global_state_survives_a_checkpoint() -> None:
    with preserved_global_rng():
        random.gauss(0, 1)
        np.random.standard_normal()  # noqa: NPY002
        state = through_codec(global_rng_state())
        expected = draws(), random.gauss(0, 1), np.random.standard_normal()  # noqa: NPY002
        set_global_rng_state(state)
        assert (draws(), random.gauss(0, 1), np.random.standard_normal()) == expected  # noqa: NPY002


def test_a_runs_own_global_stream_is_seeded_resumed_and_apart() -> None:
    outside = global_rng_state()
    whole, split = GlobalRandomStream(1), GlobalRandomStream(1)
    with whole.active():
        first, second = draws(), draws()
    with split.active():
        assert draws() == first
        saved = through_codec(split.state_dict())
        draws()
    resumed = GlobalRandomStream(99)
    resumed.load_state_dict(saved)
    with resumed.active():
        assert draws() == second
    assert GlobalRandomStream(2).state_dict()["python"]["internal"].tolist() != saved["python"]["internal"].tolist()
    expected = draws()
    set_global_rng_state(outside)
    assert draws() == expected, "the program around the runs keeps its own generators"
