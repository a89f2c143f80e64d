"""The panel as text, at the widths people have, with and without colours and Unicode."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from rl_training.experiment.console.panel import duration, plain_evaluation, plain_line, resample, run_panel
from rl_training.experiment.run.reference import Reference
from rl_training.experiment.run.view import RunView

REFERENCE = Reference(
    preset="ppo/cartpole",
    last_mean=450.0,
    last_interval=(420.0, 480.0),
    last_scores=(400.0, 500.0),
    curves=(((250, 100.0), (1000, 400.0)), ((250, 300.0), (1000, 500.0))),
)
METRICS = {
    "episode_return": 50.0,
    "time/elapsed": 10.0,
    "time/steps_per_second": 1234.4,
    "time/env_share": 0.5,
    "time/inference_share": 0.1,
    "time/learn_share": 0.3,
}
EVALUATION = {"mean": 90.0, "ci_low": 80.0, "ci_high": 95.0, "episodes": 20, "deterministic": True}


def a_view(reference: Reference | None = REFERENCE) -> RunView:
    view = RunView("PPO on CartPole-v1, seed 0", 1000, reference)
    view.add_metrics(100, {"episode_return": 0.0, "time/elapsed": 4.0})
    view.add_metrics(500, METRICS)
    view.add_evaluation(250, {**EVALUATION, "mean": 99.0})
    view.add_evaluation(500, EVALUATION)
    return view


def draw(view: RunView, width: int, footer: str = "", encoding: str = "utf-8", colour: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    console = Console(file=file, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    console.print(run_panel(view, footer))
    file.seek(0)
    return file.read()


def test_a_curve_is_resampled_onto_the_whole_run() -> None:
    # Parts (0, 25], (25, 50], (50, 75], (75, 100]: two points in the first, one in the third, none after.
    assert resample([(10, 1.0), (25, 3.0), (60, 6.0)], 4, 100) == [2.0, 4.0, 6.0, None]
    assert resample([(100, 5.0)], 4, 100) == [None, None, None, 5.0]
    assert resample([(0, 5.0)], 2, 100) == [5.0, None], "the start belongs to the first part"
    assert resample([], 3, 100) == [None, None, None]


def test_durations() -> None:
    assert [duration(seconds) for seconds in (None, 0.9, 59, 90, 3661, 100_000)] == [
        "-",
        "0:00:00",
        "0:00:59",
        "0:01:30",
        "1:01:01",
        "27:46:40",
    ]


def test_the_panel_at_80_columns() -> None:
    # 54 columns for 1000 steps, so step 250 is column 13 and step 500 column 26, on one scale of 8 levels from 0 to 450:
    # return 0 -> 50 (level 1 from 32.1 on), evaluation 99 -> 90 (level 2 down to 96.4), reference 200 -> 450 (a new level at
    # 225, 289.3, 353.6 and 417.9).
    # Speed: half of the columns env, then 5.4 of inference, 16.2 of learning, the rest other.
    assert draw(a_view(), 80, "Ctrl-C").splitlines() == [
        "╭───────────────────────── PPO on CartPole-v1, seed 0 ─────────────────────────╮",
        "│ progress        50 %  ━━━━━━━━━━━━━━━━━━━━━━━━━━━─────────────────────────── │",
        "│            500 of 1,000 steps, 0:00:10 so far, ETA 0:00:07                   │",
        "│ return          50.0       ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▂▂▂▂▂▂▂▂                            │",
        "│            last 100 episodes; scale 0.0 to 450.0                             │",
        "│ evaluation      90.0               ▃▃▃▃▂▂▂▂▂▂▂▂▂▂                            │",
        "│            80.0 to 95.0 (95 %, 20 episodes); best 99.0 at step 250           │",
        "│ reference      283.3               ▄▄▄▄▅▅▅▅▅▅▅▅▅▅▅▆▆▆▆▆▆▆▆▆▆▇▇▇▇▇▇▇▇▇▇██████ │",
        "│            2 seeds at step 500: 200.0 to 366.7; this run is below            │",
        "│ speed        1,234/s  ███████████████████████████▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒░░░░░ │",
        "│            █ env 50%  ▓ inference 10%  ▒ learn 30%  ░ other 10%              │",
        "│ Ctrl-C                                                                       │",
        "╰──────────────────────────────────────────────────────────────────────────────╯",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("colour", [False, True])
def test_the_frame_is_whole_at_every_width(width: int, colour: bool) -> None:
    import re

    text = re.sub(r"\x1b\[[0-9;]*m", "", draw(a_view(), width, "Ctrl-C once: save and leave", colour=colour))
    lines = text.splitlines()
    assert {len(line) for line in lines} == {width}
    assert all(line[0] == line[-1] == "│" for line in lines[1:-1])
    words = " ".join(line.strip("│ ") for line in lines)
    for part in (
        "this run is below",
        "other 10%",
        "0:00:10 so far, ETA 0:00:07",
        "best 99.0 at step 250",
        "save and leave",
    ):
        assert re.search(part.replace(" ", r"\s+"), words), part


def test_a_terminal_without_unicode_gets_ascii() -> None:
    text = draw(a_view(), 80, encoding="ascii")
    assert text.isascii()
    assert "###########################..........................." in text  # progress
    assert "# env 50%  = inference 10%  + learn 30%  - other 10%" in text


def test_without_a_reference_it_says_so() -> None:
    text = draw(a_view(None), 80)
    assert "no reference: no shipped result has this config" in text
    assert "this run is" not in text


def test_before_anything_happened() -> None:
    text = draw(RunView("SAC on Pendulum-v1, seed 3", 1000, REFERENCE), 80)
    assert "0 of 1,000 steps, 0:00:00 so far, ETA -" in text
    assert "none yet" in text and "2 seeds, evaluated from step 250 on" in text


def test_a_run_that_ended_has_no_eta() -> None:
    view = a_view()
    view.status = "failed"
    text = draw(view, 80)
    assert "PPO on CartPole-v1, seed 0 (failed)" in text
    assert "500 of 1,000 steps in 0:00:10" in text and "ETA" not in text


def test_plain_lines() -> None:
    view = a_view()
    assert plain_line(view) == (
        "step       500/1,000  return 50.0  1,234 steps/s (env 50%, inference 10%, learn 30%, other 10%)  ETA 0:00:07"
    )
    assert plain_evaluation(view) == (
        "step       500  evaluation return 90.0 (95 % interval 80.0 to 95.0, 20 deterministic episodes); "
        "reference seeds 200.0 to 366.7: below"
    )
    assert plain_evaluation(a_view(None)).endswith("20 deterministic episodes)")
