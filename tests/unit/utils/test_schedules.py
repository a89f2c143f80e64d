"""Linear schedules."""

import pytest

from rl_training.utils.errors import ConfigError
from rl_training.utils.schedules import Schedule, schedule_value


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 1.0), (0.25, 0.75), (0.5, 0.5), (1.0, 0.0), (-0.1, 1.0), (1.2, 0.0)]
)
def test_a_schedule_moves_linearly_over_all_of_training(progress: float, expected: float) -> None:
    assert schedule_value(Schedule(1.0, 0.0), progress) == expected


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.75)])
def test_a_fraction_ends_it_earlier(progress: float, expected: float) -> None:
    assert schedule_value(Schedule(0.25, 0.75, fraction=0.5), progress) == expected


def test_the_end_is_reached_without_rounding() -> None:
    assert schedule_value(Schedule(0.1, 0.3, fraction=0.7), 0.7) == 0.3


def test_a_number_is_the_same_always() -> None:
    assert [schedule_value(0.2, progress) for progress in (0.0, 0.5, 1.0)] == [0.2, 0.2, 0.2]


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, float("nan")])
def test_a_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="fraction"):
        Schedule(1.0, 0.0, fraction)


def test_whole_numbers_become_floats() -> None:
    assert repr(Schedule(1, 0)) == "Schedule(start=1.0, end=0.0, fraction=1.0)"
