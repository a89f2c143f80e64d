"""A binary tree of sums: draws indices in proportion to their priorities in O(log n), a whole batch at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class SumTree:
    """`capacity` leaves, all 0 at first; node i is the sum of nodes 2i and 2i + 1, and node 1 is the total.

    Each node is computed from its two children, never by adding differences, so rounding errors do not pile up and the same
    leaves always make the same tree, whatever their history.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.depth = max(capacity - 1, 1).bit_length()
        self._size = 1 << self.depth
        self._nodes: Floats = np.zeros(2 * self._size, dtype=np.float64)

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    @property
    def nbytes(self) -> int:
        return self._nodes.nbytes

    def get(self, indices: Ints) -> Floats:
        """The priorities (B,) of the leaves `indices` (B,)."""
        return self._nodes.take(indices + self._size)

    def set(self, indices: Ints, priorities: Floats | float) -> None:
        """Sets the leaves `indices` (B,) to `priorities` (B,), finite and ≥ 0; of a repeated index the last one counts."""
        nodes = self._nodes
        index = indices + self._size
        nodes[index] = priorities
        sums = nodes.take(index)
        for _ in range(self.depth):
            # Both children are final before any parent is written, and a parent reached twice gets the same sum twice.
            sums = sums + nodes.take(index ^ 1)
            index >>= 1
            nodes[index] = sums

    def sample(self, masses: Floats) -> Ints:
        """The leaf (B,) under each mass (B,) in [0, total): the first whose running sum of priorities exceeds it.

        Never a leaf of priority 0, even where rounding pushes a mass past the end of its subtree.
        """
        nodes = self._nodes
        index = np.ones(len(masses), dtype=np.int64)
        remaining = masses
        for _ in range(self.depth):
            index <<= 1
            left = nodes.take(index)
            right = nodes.take(index + 1)
            go_right = (remaining >= left) & (right > 0.0)
            remaining = remaining - left * go_right
            index += go_right
        return index - self._size

    def leaves(self) -> Floats:
        """A copy of all priorities (capacity,)."""
        return self._nodes[self._size : self._size + self.capacity].copy()

    def load_leaves(self, priorities: Floats) -> None:
        """Sets all priorities (capacity,) at once."""
        self._nodes[self._size : self._size + self.capacity] = priorities
        for level in range(self.depth - 1, -1, -1):
            children = self._nodes[2 << level : 4 << level]
            self._nodes[1 << level : 2 << level] = children[0::2] + children[1::2]
