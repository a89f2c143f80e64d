"""SumTree against running sums of NumPy."""

import numpy as np
import pytest

from rl_training.data.sum_tree import SumTree


@pytest.mark.parametrize("capacity", [1, 2, 3, 8, 13, 1000])
def test_samples_agree_with_a_cumulative_sum(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    # Whole numbers and halves: every sum is exact, so the two must agree to the last index, also on the borders.
    priorities = rng.integers(0, 5, capacity) + 0.5 * rng.integers(0, 2, capacity)
    priorities[rng.integers(capacity)] = 2.0
    tree = SumTree(capacity)
    tree.set(np.arange(capacity), priorities)
    sums = priorities.cumsum()
    assert tree.total == sums[-1]
    masses = np.concatenate([rng.random(5000) * sums[-1], sums[sums < sums[-1]], [0.0]])
    np.testing.assert_array_equal(tree.sample(masses), sums.searchsorted(masses, side="right"))


def test_updates_reach_the_total_and_the_last_of_a_repeated_index_counts() -> None:
    tree = SumTree(5)
    tree.set(np.array([0, 1, 4]), np.array([1.0, 2.0, 4.0]))
    assert tree.total == 7.0
    tree.set(np.array([1, 4, 1]), np.array([9.0, 0.0, 3.0]))
    assert tree.total == 4.0
    assert tree.get(np.array([0, 1, 2, 4])).tolist() == [1.0, 3.0, 0.0, 0.0]
    assert tree.sample(np.array([0.0, 0.99, 1.0, 3.99])).tolist() == [0, 0, 1, 1]


def test_the_tree_depends_on_its_leaves_only() -> None:
    rng = np.random.default_rng(0)
    tree, fresh = SumTree(300), SumTree(300)
    for _ in range(200):
        tree.set(rng.integers(0, 300, 32), rng.random(32) ** 8)
    fresh.load_leaves(tree.leaves())
    masses = rng.random(4000) * tree.total
    assert tree.total == fresh.total, "to the last bit"
    np.testing.assert_array_equal(tree.sample(masses), fresh.sample(masses))
    assert tree.total == pytest.approx(tree.leaves().sum(), rel=1e-12)


def test_a_leaf_of_priority_zero_is_never_drawn() -> None:
    """Also for masses that rounding has pushed to the total or past the end of a subtree."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        tree = SumTree(37)
        priorities = rng.random(37) ** 10 * (rng.random(37) < 0.3)
        priorities[rng.integers(37)] = 1e-3
        tree.set(np.arange(37), priorities)
        masses = np.concatenate([[tree.total, np.nextafter(tree.total, 0)], priorities.cumsum()])
        assert (tree.get(tree.sample(masses)) > 0).all()
