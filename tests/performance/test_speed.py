"""Our training loops do not become slower relative to a plain inner loop of the same kind (see benchmarks/speed.py)."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.speed import LOOPS, Loop, load_bounds, make_agent, relative_seconds


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.case)
def test_training_keeps_its_speed_relative_to_a_plain_loop(loop: Loop) -> None:
    ratios, factor = load_bounds()
    measured = relative_seconds(loop)
    assert measured <= factor * ratios[loop.case], (
        f"{loop.case} takes {measured:.2f} times the plain loop's time, stored are {ratios[loop.case]:.2f}. "
        "If that is meant to be so: python -m benchmarks.speed --write"
    )


def test_a_slower_update_is_noticed() -> None:
    (loop,) = (loop for loop in LOOPS if loop.case == "dqn-cartpole")
    ratios, factor = load_bounds()
    agent = make_agent(loop)
    update = agent.algorithm.update

    def slow_update(batch: Any, progress: float) -> Any:
        for _ in range(5):
            metrics = update(batch, progress)
        return metrics

    agent.algorithm.update = slow_update  # type: ignore[method-assign]
    assert relative_seconds(loop, agent) > factor * ratios[loop.case]
