"""For tests that look on while a step is computed, which a recorded one does not do again."""

from __future__ import annotations

from typing import Any, TypeVar

AlgorithmT = TypeVar("AlgorithmT", bound=Any)


def as_written(algorithm: AlgorithmT) -> AlgorithmT:
    """The algorithm, its steps neither recorded nor compiled."""
    algorithm._run_step = lambda batch, variant: algorithm._step(batch, variant, algorithm.generator)
    return algorithm
