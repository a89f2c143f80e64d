"""Random numbers on request: what is drawn into memory that is there is what would have been drawn anew."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch

from rl_training.execution.draws import Draw, Kind, Recorder, Tape, normal, permutation, uniform

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [5, 1000])
@pytest.mark.parametrize("kind", get_args(Kind))
def test_filling_gives_the_numbers_of_taking(kind: Kind, size: int) -> None:
    draw = Draw(kind, (size,), CPU, torch.int64 if kind == "permutation" else torch.float32)
    one, other = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    numbers = torch.zeros(size, dtype=draw.dtype)
    for _ in range(3):
        draw.fill(numbers, other)
        assert torch.equal(numbers, draw.take(one))
    assert torch.equal(one.get_state(), other.get_state())


def test_the_numbers_are_those_of_torch() -> None:
    ours, torchs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    assert torch.equal(Draw("normal", (40,), CPU, torch.float32).take(ours), torch.randn(40, generator=torchs))
    assert torch.equal(Draw("uniform", (40,), CPU, torch.float32).take(ours), torch.rand(40, generator=torchs))
    assert torch.equal(Draw("permutation", (40,), CPU, torch.int64).take(ours), torch.randperm(40, generator=torchs))


def test_a_tape_hands_out_what_was_recorded() -> None:
    def draws(source: Any) -> list[torch.Tensor]:
        return [
            normal((2, 3), source, CPU),
            uniform((4,), source, CPU, torch.float64),
            permutation(5, source, CPU),
            normal((1,), source, CPU),
        ]

    recorder = Recorder(torch.Generator().manual_seed(3))
    recorded = draws(recorder)
    assert recorder.draws[1] == Draw("uniform", (4,), CPU, torch.float64)
    assert sorted(recorded[2].tolist()) == [0, 1, 2, 3, 4] and recorded[1].dtype == torch.float64
    generator = torch.Generator().manual_seed(3)
    again = draws(Tape([draw.take(generator) for draw in recorder.draws]))
    fresh = draws(torch.Generator().manual_seed(3))
    for one, two, three in zip(recorded, again, fresh):
        assert torch.equal(one, two) and torch.equal(one, three)
