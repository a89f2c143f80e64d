"""Where the time goes: wall-clock seconds per stage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageTimer:
    """Accumulates seconds per named stage (env, inference, learn, ...) and the total since the start, resumes included.

    Stages are wall-clock seconds. With `overlap`, learning goes on beside the others, so that together they may exceed the total.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._before = 0.0
        self._started: float | None = None

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Time until the next start does not count."""
        self._before, self._started = self.elapsed, None

    @property
    def elapsed(self) -> float:
        """Seconds of training so far, over all resumes."""
        running = 0.0 if self._started is None else time.perf_counter() - self._started
        return self._before + running

    def add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times the block."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - begin)

    def state_dict(self) -> dict[str, float]:
        return {"elapsed": self.elapsed}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self._before = state["elapsed"]


class RateMeter:
    """Training's steps per second and the share of each stage between two readings.

    Time spent on evaluations and checkpoints is left out: it says nothing about how fast the training is.
    """

    ASIDE = ("evaluate", "checkpoint")

    def __init__(self, timer: StageTimer, step: int):
        self._timer, self._last = timer, (step, time.perf_counter(), dict(timer.seconds))

    def read(self, step: int) -> dict[str, float]:
        """`steps_per_second`, and `<stage>_share` in [0, 1] for each training stage, since the last reading.

        Shares of stages that overlap may add up to more than 1.
        """
        now, current = time.perf_counter(), dict(self._timer.seconds)
        last_step, last_time, before = self._last
        self._last = (step, now, current)
        spent = {stage: total - before.get(stage, 0.0) for stage, total in current.items()}
        aside = sum(spent.pop(stage, 0.0) for stage in self.ASIDE)
        span = max(now - last_time - aside, 1e-9)
        shares = {f"{stage}_share": seconds / span for stage, seconds in spent.items()}
        return {"steps_per_second": (step - last_step) / span, **shares}
