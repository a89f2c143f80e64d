"""PackedInts: three bytes hold what they must, four where three would not."""

import numpy as np
import pytest

from rl_training.data.packed_ints import PackedInts


@pytest.mark.parametrize(("limit", "size"), [(1 << 24, 3), ((1 << 24) + 1, 4), (1 << 31, 4)])
def test_bytes_and_extremes(limit: int, size: int) -> None:
    numbers = PackedInts(8, limit)
    assert numbers.nbytes == 8 * size and numbers.take(np.arange(8)).tolist() == [0] * 8
    values = np.array([0, 1, 0xFFFF, 0x10000, limit - 1])
    numbers.put(np.array([0, 2, 3, 5, 7]), values)
    assert numbers.take(np.arange(8)).tolist() == [0, 0, 1, 0xFFFF, 0, 0x10000, 0, limit - 1]
    assert numbers.take(np.array([[7, 5], [3, 0]])).tolist() == [[limit - 1, 0x10000], [0xFFFF, 0]]
    numbers.put(np.array([7, 5]), 0)
    assert numbers.take(np.array([7, 5, 3])).tolist() == [0, 0, 0xFFFF]
    numbers.clear()
    assert not numbers.take(np.arange(8)).any()
