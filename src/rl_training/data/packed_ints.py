"""Arrays of whole numbers that need more than two bytes but less than four."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class PackedInts:
    """`size` numbers below `limit` ≤ 2³¹, all 0 at first, in three bytes each where that is enough and four otherwise."""

    def __init__(self, size: int, limit: int):
        self._low = np.zeros(size, dtype=np.uint16)
        self._high: NDArray[Any] = np.zeros(size, dtype=np.uint8 if limit <= 1 << 24 else np.uint16)

    @property
    def nbytes(self) -> int:
        return self._low.nbytes + self._high.nbytes

    def take(self, rows: Any) -> NDArray[np.int32]:
        """The numbers in these rows, in the shape of `rows`."""
        numbers = self._high.take(rows).astype(np.int32)
        numbers <<= 16
        numbers |= self._low.take(rows)
        return numbers

    def take_low(self, rows: Any) -> NDArray[np.uint16]:
        """Their lowest 16 bits, in a third of the time."""
        return self._low.take(rows)

    def put(self, rows: Any, numbers: Any) -> None:
        """Sets the numbers in these rows."""
        self._low[rows] = np.bitwise_and(numbers, 0xFFFF)
        self._high[rows] = np.right_shift(numbers, 16)

    def clear(self) -> None:
        """Sets all to 0."""
        self._low[:] = 0
        self._high[:] = 0
