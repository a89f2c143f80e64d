"""What every peer script needs: the work as JSON in, one JSON line out, and a clock for the steady state."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
Work = Mapping[str, Any]
Result = dict[str, Any]
"""`values` (the metrics of the case) and whatever explains them."""


COUNTING = bool(os.environ.get("BENCH_COUNT"))
"""Count optimiser steps too: a check that all libraries do the same work, off while speed is measured."""


class Measured(Exception):
    """Raised from a library's callback to leave its training loop."""


class Stopwatch:
    """Times the part of a training run that follows its warm-up.

    `tick(steps)` is called with the environment steps so far whenever the loop is at the same point of its iteration, so that
    whole iterations are timed. It says when enough has been seen.
    """

    def __init__(self, work: Work, *, clock: Callable[[], float] = time.perf_counter):
        self._warmup, self._timed, self._max_seconds = work["warmup"], work["timed"], work["max_seconds"]
        self._clock, self._created = clock, clock()
        self._begin: tuple[int, float, int] | None = None
        self._end: tuple[int, float, int] | None = None
        self.count_updates: Callable[[], int] = count_optimizer_steps() if COUNTING else lambda: 0
        self.on_start: Callable[[], None] = lambda: None

    def tick(self, steps: int) -> bool:
        """True once the timed part is complete."""
        if self._end is not None:
            return True
        if self._begin is None:
            if steps >= self._warmup:
                self.on_start()
                self._begin = (steps, self._clock(), self.count_updates())
            return False
        begin_steps, begin_time, _ = self._begin
        now = self._clock()
        if steps > begin_steps and (steps - begin_steps >= self._timed or now - begin_time >= self._max_seconds):
            self._end = (steps, now, self.count_updates())
            return True
        return False

    def result(self, **more: Any) -> Result:
        assert self._begin is not None and self._end is not None, "the run ended before its timed part"
        steps, seconds = self._end[0] - self._begin[0], self._end[1] - self._begin[1]
        return {
            "values": {"steps_per_second": steps / seconds},
            "steps": steps,
            "seconds": seconds,
            "warmup_seconds": self._begin[1] - self._created,
            **({"optimizer_steps": self._end[2] - self._begin[2]} if COUNTING else {}),
            **more,
        }


class FirstTick:
    """Stands in for a Stopwatch where only the end of the first iteration matters: seconds since the process was started."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.count_updates: Callable[[], int] = lambda: 0
        self.on_start: Callable[[], None] = lambda: None

    def tick(self, steps: int) -> bool:
        if steps > 0 and self.seconds is None:
            self.seconds = time.time() - float(os.environ["BENCH_STARTED"])
        return self.seconds is not None

    def result(self, **more: Any) -> Result:
        assert self.seconds is not None, "the run ended before its first iteration"
        return {"values": {"seconds": self.seconds}}


Watch = Stopwatch | FirstTick


def watch_for(work: Work) -> Watch:
    """The clock of a training run: for its steady state, or for its start."""
    return FirstTick() if work["kind"] == "startup" else Stopwatch(work)


def evaluated(work: Work, act: Callable[[Any], Any]) -> Result:
    """The mean return of `work["episodes"]` episodes with the actions that `act` chooses for single observations."""
    from benchmarks.peers.tasks import make_task

    env, returns = make_task(work["env"]), []
    for episode in range(work["episodes"]):
        obs, _ = env.reset(seed=100_000 + 1_000 * work["seed"] + episode)
        total, over = 0.0, False
        while not over:
            action = act(obs)
            action = action.item() if getattr(action, "shape", None) == () else action  # environments look them up
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return {"values": {"mean_return": sum(returns) / len(returns)}}


def masked_return(work: Work, act: Callable[[Any, Any], Any]) -> float:
    """The mean return of `work["episodes"]` episodes of the masked task with the actions of `act(observation, mask)`; without masks
    in training there are none here either."""
    from sb3_contrib.common.envs import InvalidActionEnvDiscrete

    env, total = InvalidActionEnvDiscrete(**work["env"]), 0.0
    for episode in range(work["episodes"]):
        obs, _ = env.reset(seed=100_000 + 1_000 * work["seed"] + episode)
        over = False
        while not over:
            mask = env.action_masks() if work["masks"] else None
            obs, reward, terminated, truncated, _ = env.step(int(act(obs, mask)))
            total, over = total + float(reward), terminated or truncated
    return total / work["episodes"]


def count_optimizer_steps() -> Callable[[], int]:
    """From here on counts the steps of all torch optimisers."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1

    register_optimizer_step_post_hook(counted)
    return lambda: count


def timed_calls(call: Callable[[], object], repeats: int) -> float:
    """Calls per second, after a tenth as many calls to warm up."""
    for _ in range(max(1, repeats // 10)):
        call()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return repeats / (time.perf_counter() - begin)


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """(seconds that the call took, its value)."""
    begin = time.perf_counter()
    value = call()
    return time.perf_counter() - begin, value


def seconds_of(call: Callable[[], object]) -> float:
    return timed(call)[0]


def gae_inputs(work: Work) -> dict[str, Any]:
    """Float32 arrays (T, N) of rewards and values, values after the last step (N,), and bool ends, one step in a hundred."""
    import numpy as np

    rng, shape = np.random.default_rng(0), (int(work["steps"]), int(work["envs"]))
    return {
        "rewards": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "last_values": rng.normal(size=shape[1]).astype(np.float32),
        "ended": rng.random(shape) < 0.01,
    }


EPISODE = 1_000


def transitions(work: Work, steps: int, num_envs: int = 1, seed: int = 0) -> Iterator[tuple[Any, Any, Any, Any, Any]]:
    """`steps` times (obs, action, reward, next_obs, truncated), each (num_envs, ...), in episodes of a thousand steps."""
    import numpy as np

    rng = np.random.default_rng(seed)
    shape = (EPISODE + 1, num_envs)
    obs = rng.normal(size=(*shape, work["obs"])).astype(np.float32)
    actions = rng.uniform(-1, 1, size=(*shape, work["action"])).astype(np.float32)
    rewards = rng.normal(size=shape).astype(np.float32)
    inside, ended = np.zeros(num_envs, dtype=bool), np.ones(num_envs, dtype=bool)
    for step in range(steps):
        t = step % EPISODE
        yield obs[t], actions[t], rewards[t], obs[t + 1], ended if t == EPISODE - 1 else inside


def main(functions: Mapping[str, Callable[[Work], Result]]) -> None:
    """Runs the function that the work on the command line names and prints its result as the last line."""
    work = json.loads(sys.argv[1])
    result = functions[work["kind"]](work)
    if "torch" in sys.modules:
        result["torch_threads"] = sys.modules["torch"].get_num_threads()
    sys.stdout.flush()
    print("BENCH " + json.dumps(result), flush=True)
    # Some libraries leave threads or processes behind that would keep this one alive.
    sys.stderr.flush()
    os._exit(0)
