"""Where the lines of a chart lie."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from rl_training.experiment.run.reference import Reference
from rl_training.zoo.report.charts import Line, Scale, line_chart, score_axis, sparkline, stage_bar, ticks
from rl_training.zoo.report.curves import Band, Series
from rl_training.zoo.report.model import Score

STEPS = np.array([0.0, 500.0, 1000.0])


def a_band() -> Band:
    return Band(STEPS, np.array([0.0, 10.0, 20.0]), np.array([0.0, 5.0, 10.0]), np.array([0.0, 15.0, 30.0]))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 500, [0, 100, 200, 300, 400, 500]),
        (-1650, -750, [-1600, -1400, -1200, -1000, -800]),
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (3.1, 3.2, [3.1, 3.12, 3.14, 3.16, 3.18, 3.2]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(Scale(low, high)) == pytest.approx(expected)


def test_points_are_placed_on_the_axes() -> None:
    """Values run from 0 to 30 with 5 % of room at each end: 0 lies at 31.5/33, 20 at 11.5/33 of the height."""
    chart = line_chart("c", "Return", "note", [Line("PPO", 0, a_band(), [])])
    assert chart is not None
    (path,) = re.findall(r'<path d="([^"]*)" class="mean">', chart)
    points = [tuple(map(float, point.split())) for point in path[1:].split("L")]
    assert points[0] == pytest.approx((0, 1000 * 31.5 / 33), abs=0.05)
    assert points[2] == pytest.approx((1000, 1000 * 11.5 / 33), abs=0.05)
    assert chart.count('class="band"') == 1 and ">20</span>" in chart and ">1k</span>" in chart


def test_a_chart_says_in_words_what_it_shows_and_carries_its_numbers() -> None:
    chart = line_chart("c", "Return", "note", [Line("PPO <1>", 0, a_band(), [])])
    assert chart is not None
    assert '<title id="c-t">Return</title>' in chart and "PPO &lt;1&gt;: 20.0 at step 1k" in chart
    (data,) = re.findall(r'<script type="application/json" id="c">(.*?)</script>', chart)
    assert json.loads(data) == [
        {
            "s": 0,
            "label": "PPO <1>",
            "x": [0, 500, 1000],
            "y": [0, 10, 20],
            "lo": [0, 5, 10],
            "hi": [0, 15, 30],
            "ref": None,
        }
    ]


def test_single_runs_are_drawn_thin_but_not_when_there_are_too_many() -> None:
    seed = Series(STEPS, np.array([1.0, 2.0, 3.0]))
    few = line_chart("c", "Return", "", [Line("PPO", 0, a_band(), [seed] * 3)])
    many = line_chart("c", "Return", "", [Line("PPO", 0, a_band(), [seed] * 61)])
    assert few is not None and few.count('class="seed"') == 3
    assert many is not None and many.count('class="seed"') == 0


def test_the_reference_is_dotted_and_has_a_range_only_if_it_is_alone() -> None:
    curves = (((0, 0.0), (1000, 10.0)), ((0, 0.0), (1000, 30.0)))
    reference = Reference("ppo/x", 20.0, (10.0, 30.0), (10.0, 30.0), curves)
    alone = line_chart("c", "Return", "", [Line("PPO", 0, a_band(), [], reference), Line("DQN", 1, a_band(), [])])
    both = line_chart("c", "Return", "", [Line(name, i, a_band(), [], reference) for i, name in enumerate("ab")])
    assert alone is not None and both is not None
    assert alone.count('class="reference grey"') == 1 and alone.count('class="range"') == 1
    assert both.count('class="reference"') == 2 and both.count('class="range"') == 0
    (data,) = re.findall(r'<script type="application/json" id="c">(.*?)</script>', alone)
    assert json.loads(data)[0]["ref"] == [0, 10, 20], "the mean of the reference's seeds"


def test_groups_beyond_the_palette_get_dashes() -> None:
    chart = line_chart("c", "Return", "", [Line(str(index), index, a_band(), []) for index in range(6)])
    assert chart is not None and 'class="c0 d0"' in chart and 'class="c0 d1"' in chart


@pytest.mark.parametrize("value", [0.0, 500.0, -1e-300, 1e308])
def test_a_single_value_has_an_axis_around_it(value: float) -> None:
    axis = score_axis([Score([value], value, value, None, None)])
    assert np.isfinite([axis.low, axis.high]).all() and axis.low < axis.high
    assert len(ticks(axis)) <= 7


def test_nothing_to_draw_is_no_chart() -> None:
    assert line_chart("c", "Return", "", [Line("PPO", 0, None, [Series(STEPS[:0], STEPS[:0])])]) is None


def test_a_sparkline_marks_the_step() -> None:
    made = sparkline(Series(STEPS, np.array([0.0, 1.0, 0.0])), 500, "KL")
    assert "<title>KL</title>" in made and re.search(r'd="M500 \d+h.01" class="mark"', made)


def test_the_parts_of_a_stage_bar() -> None:
    made = stage_bar({"env": 0.2, "learn": 0.757, "buffer": 0.04, "other": 0.003})
    assert 'style="flex-grow:0.7570"' in made and "<b>76 %</b>" in made
    assert 'title="buffer: 4 %"' in made and "<b>4 %</b>" not in made, "too narrow for its number"
    assert "stage-other" not in made
