from rl_training.utils.sparkline import sparkline


def test_a_sparkline_has_one_character_per_value() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 0, 7) == "▁▂▃▄▅▆▇█"
    assert sparkline([7, None, 0], 0, 7) == "█ ▁"
    assert sparkline([-10, -5, 0], -10, 0, "_#") == "__#"
    assert sparkline([3, 3], 3, 3) == "▁▁"


def test_ranges_that_overflow_or_vanish() -> None:
    assert sparkline([-1.7e308, 0.0, 1.7e308], -1.7e308, 1.7e308) == "▁▅█"
    assert sparkline([-5e-324, 5e-324], -5e-324, 5e-324) == "▁▁"
