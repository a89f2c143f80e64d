"""Random numbers for policies and updates: from a generator, or from a tape that was filled beforehand.

A recorded step does not draw from a generator. It gets a tape with the same numbers, so that it computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["normal", "uniform", "exponential", "permutation"]


@dataclass(frozen=True, slots=True)
class Draw:
    """One request for random numbers."""

    kind: Kind
    shape: tuple[int, ...]
    device: torch.device
    dtype: torch.dtype

    def take(self, generator: torch.Generator | None) -> Tensor:
        # Drawn where the generator lives, which need not be where the numbers are wanted.
        source = self.device if generator is None else generator.device
        numbers = torch.empty(self.shape, device=source, dtype=self.dtype)
        self.fill(numbers, generator)
        return numbers.to(self.device)

    def fill(self, numbers: Tensor, generator: torch.Generator | None) -> None:
        """Writes what `take` would give over numbers of this shape and dtype, on the generator's device."""
        if self.kind == "permutation":
            torch.randperm(*self.shape, generator=generator, out=numbers)
        elif self.kind == "normal":
            numbers.normal_(generator=generator)
        elif self.kind == "exponential":
            numbers.exponential_(generator=generator)
        else:
            numbers.uniform_(generator=generator)


class Tape:
    """Numbers handed out in the order in which they lie on the tape."""

    def __init__(self, numbers: Sequence[Tensor]):
        self._numbers, self._next = numbers, 0

    def take(self, draw: Draw) -> Tensor:
        self._next += 1
        return self._numbers[self._next - 1]


class Recorder(Tape):
    """Draws from a generator and remembers what was asked for."""

    def __init__(self, generator: torch.Generator | None):
        super().__init__(())
        self._generator = generator
        self.draws: list[Draw] = []
        self.around: Callable[[], AbstractContextManager[None]] = nullcontext
        """What each draw happens inside of."""

    def take(self, draw: Draw) -> Tensor:
        self.draws.append(draw)
        with self.around():
            return draw.take(self._generator)


RandomSource = torch.Generator | Tape | None
"""None means torch's global generator."""


def normal(
    shape: Sequence[int], source: RandomSource, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal numbers."""
    return _take(Draw("normal", tuple(shape), device, dtype), source)


def uniform(
    shape: Sequence[int], source: RandomSource, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return _take(Draw("uniform", tuple(shape), device, dtype), source)


def exponential(
    shape: Sequence[int], source: RandomSource, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Exponential numbers with mean 1; 0 may be among them."""
    return _take(Draw("exponential", tuple(shape), device, dtype), source)


def permutation(size: int, source: RandomSource, device: torch.device) -> Tensor:
    """(size,) int64: 0 … size − 1 in random order."""
    return _take(Draw("permutation", (size,), device, torch.int64), source)


def _take(draw: Draw, source: RandomSource) -> Tensor:
    return source.take(draw) if isinstance(source, Tape) else draw.take(source)
