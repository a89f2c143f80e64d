"""Environment workers that die or fail."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from helpers.envs import CounterEnv, RaisingEnv
from rl_training import PPO
from rl_training.envs.async_env import AsyncEnvs
from rl_training.envs.contract import EnvStepper
from rl_training.envs.factory import EnvFactory
from rl_training.runtime.callbacks import Callback
from rl_training.utils.errors import EnvFailure, EnvWorkerError

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]
ACTIONS = np.zeros(3, dtype=np.int64)


def stepper_with(
    make: Any = CounterEnv, mode: AutoresetMode = AutoresetMode.SAME_STEP, restarts: int = 0
) -> EnvStepper:
    stepper = EnvStepper(AsyncEnvs([EnvFactory("counter", custom=make)] * 3, mode, restart_workers=restarts))
    stepper.reset(seed=0)
    return stepper


def kill(stepper: EnvStepper, *indices: int) -> None:
    for index in indices:
        process = stepper.envs.unwrapped.processes[index]
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def closes_quickly(stepper: EnvStepper) -> bool:
    begin = time.perf_counter()
    stepper.close()
    return time.perf_counter() - begin < 2.0


class SuicidalEnv(CounterEnv):
    """Kills its own process in its third step, in the middle of the call."""

    def step(self, action: Any) -> Any:
        if self.count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def test_a_killed_worker_is_named_at_once() -> None:
    stepper = stepper_with()
    stepper.step(ACTIONS)
    kill(stepper, 1)
    begin = time.perf_counter()
    with pytest.raises(EnvWorkerError, match=r"worker 1 of 3 died \(killed by SIGKILL, exit code -9\)") as caught:
        stepper.step(ACTIONS)
    assert time.perf_counter() - begin < 2.0
    assert "env.restart_workers" in str(caught.value)
    assert closes_quickly(stepper)


def test_a_worker_that_dies_within_the_step_is_named() -> None:
    stepper = stepper_with(SuicidalEnv)
    with pytest.raises(EnvWorkerError, match=r"worker 0 of 3 died \(killed by SIGKILL"):
        for _ in range(3):
            stepper.step(ACTIONS)
    assert closes_quickly(stepper)


@pytest.mark.parametrize("call", ["reset", "state_dict"])
def test_a_dead_worker_is_named_in_other_calls_too(call: str) -> None:
    stepper = stepper_with()
    kill(stepper, 2)
    with pytest.raises(EnvWorkerError, match="worker 2 of 3 died"):
        stepper.reset(seed=1) if call == "reset" else stepper.state_dict()
    assert closes_quickly(stepper)


def test_an_exit_code_is_named() -> None:
    class Leaving(CounterEnv):
        def step(self, action: Any) -> Any:
            os._exit(7)

    stepper = stepper_with(Leaving)
    with pytest.raises(EnvWorkerError, match=r"worker 0 of 3 died \(exit code 7\)"):
        stepper.step(ACTIONS)
    assert closes_quickly(stepper)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_replaced_worker_starts_a_fresh_episode_and_its_step_is_invalid(mode: AutoresetMode) -> None:
    stepper = stepper_with(mode=mode, restarts=1)
    for _ in range(4):
        stepper.step(ACTIONS)
    kill(stepper, 1)
    record = stepper.step(ACTIONS)
    assert record.valid.tolist() == [True, False, True]
    assert record.obs[:, 0].tolist() == [4, 4, 4]
    assert record.rewards.tolist() == [5.0, 0.0, 5.0]
    assert not (record.terminated | record.truncated).any()
    assert stepper.obs[:, 0].tolist() == [5, 0, 5]
    record = stepper.step(ACTIONS)
    assert record.valid.all()
    assert record.next_obs[:, 0].tolist() == [6, 1, 6]
    kill(stepper, 2)
    with pytest.raises(EnvWorkerError, match="worker 2 of 3 died"):
        stepper.step(ACTIONS)
    assert closes_quickly(stepper)


def test_two_deaths_in_one_step_are_two_restarts() -> None:
    stepper = stepper_with(restarts=1)
    kill(stepper, 0, 2)
    with pytest.raises(EnvWorkerError, match="worker 2 of 3 died"):
        stepper.step(ACTIONS)
    assert closes_quickly(stepper)
    stepper = stepper_with(restarts=2)
    kill(stepper, 0, 2)
    assert stepper.step(ACTIONS).valid.tolist() == [False, True, False]
    assert closes_quickly(stepper)


def test_the_state_of_replaced_workers_can_be_saved() -> None:
    stepper, other = stepper_with(restarts=1), stepper_with()
    stepper.step(ACTIONS)
    kill(stepper, 0)
    stepper.step(ACTIONS)
    stepper.step(ACTIONS)
    other.load_state_dict(stepper.state_dict(), fallback_seed=0)
    assert other.resume_grade == "exact"
    assert other.obs[:, 0].tolist() == [1, 3, 3]
    stepper.close()
    other.close()


def test_an_env_that_raises_in_a_worker_raises_here() -> None:
    stepper = stepper_with(partial(RaisingEnv, fail_at=2))
    stepper.step(ACTIONS)
    with pytest.raises(
        EnvFailure, match=r"step 2\) failed in step\(\): ZeroDivisionError: the simulator broke at step 2"
    ):
        stepper.step(ACTIONS)
    assert closes_quickly(stepper)


def test_a_replacement_that_fails_to_start_raises_its_own_error(tmp_path: Path) -> None:
    licence = tmp_path / "licence"
    licence.touch()

    class Licensed(CounterEnv):
        def reset(self, **kwargs: Any) -> Any:
            if not licence.exists():
                raise FileNotFoundError("the licence is gone")
            return super().reset(**kwargs)

    stepper = stepper_with(Licensed, restarts=1)
    licence.unlink()
    kill(stepper, 1)
    with pytest.raises(EnvFailure, match="FileNotFoundError: the licence is gone"):
        stepper.step(ACTIONS)
    assert closes_quickly(stepper)


def test_making_workers_leaves_the_signals_of_this_process_alone() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stepper = stepper_with()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    pids = [process.pid for process in stepper.envs.unwrapped.processes]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)  # for the run, not for its workers
    assert stepper.step(ACTIONS).valid.all()
    stepper.close()


def test_training_goes_on_after_a_restart_and_counts_no_lost_step() -> None:
    class Killer(Callback):
        def on_iteration_end(self, trainer: Any) -> None:
            if trainer.iterations == 1:
                kill(trainer.collector.stepper, 1)

    agent = PPO(
        lambda: CounterEnv(((10, "terminated"),)),
        num_envs=2,
        num_steps=16,
        env={"backend": "async", "restart_workers": 1},
    )
    agent.learn(total_timesteps=60, callbacks=[Killer()])
    statistics = agent._session.trainer.collector.statistics
    agent.close()
    assert agent.num_timesteps == 32 + 31, "the step in which the worker died is not counted"
    assert set(statistics.lengths) == {10}, "the episode that was cut off has no length"
    assert set(statistics.returns) == {55.0}
