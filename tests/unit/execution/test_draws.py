"""Random numbers on request: what is drawn into memory that is there is what would have been drawn anew."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from rl_training.execution.draws import Draw, Kind

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
