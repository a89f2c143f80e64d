"""Environments in worker processes, with dead workers named or replaced."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import wait
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState, _async_worker
from gymnasium.vector.utils import concatenate, iterate

from rl_training.envs.replay import ReplayableEnv
from rl_training.utils.errors import AxiomError, EnvWorkerError
from rl_training.utils.spaces import map_obs
from rl_training.utils.stop_signals import leave_stop_signals_to_main_process

_PIPE_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)


class _WorkerEnvFn:
    """Makes the environment. In a worker, signals meant for the run (Ctrl-C and the like) are left to the main process:

    it needs the workers alive to save their state. The process-wide generators there belong to the environment.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]]):
        self.make = make
        self.main_process = os.getpid()

    def __call__(self) -> gym.Env[Any, Any]:
        if os.getpid() != self.main_process:  # AsyncVectorEnv makes one environment in the main process too
            leave_stop_signals_to_main_process()
            try:
                env = self.make()
            except AxiomError as error:
                # A line instead of a traceback; the main process names the worker.
                sys.exit(f"error in a worker: {error}")
            if isinstance(env, ReplayableEnv):
                env.random.take_process()
            return env
        return self.make()


class AsyncEnvs(AsyncVectorEnv[Any, Any]):
    """Gymnasium's AsyncVectorEnv that says which worker died and how, and can replace it.

    A replaced worker starts a fresh episode; its interrupted step is reported in `infos["worker_restarted"]`, so that the step
    contract marks it invalid. With `restart_workers > 0` observations travel through pipes, not shared memory, because
    a process that dies while writing would leave half an observation there.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        autoreset_mode: AutoresetMode,
        restart_workers: int = 0,
        restart_seed: int = 0,
    ):
        self.restarts_left = restart_workers
        self._restart_seed = restart_seed
        self._dead: set[int] = set()
        try:
            super().__init__(
                [_WorkerEnvFn(make) for make in env_fns],
                shared_memory=restart_workers == 0,
                autoreset_mode=autoreset_mode,
            )
        except _PIPE_ERRORS:
            raise self._first_death() from None

    def step_async(self, actions: Any) -> None:
        self._assert_is_running()
        for index, (pipe, action) in enumerate(zip(self.parent_pipes, iterate(self.action_space, actions))):
            try:
                pipe.send(("step", action))
            except _PIPE_ERRORS:
                self._note_death(index)
        self._state = AsyncState.WAITING_STEP

    def step_wait(self, timeout: float | None = None) -> Any:
        observations: list[Any] = [None] * self.num_envs
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminations, truncations, restarted = (np.zeros(self.num_envs, dtype=np.bool_) for _ in range(3))
        infos: dict[str, Any] = {}
        successes = [True] * self.num_envs
        for index, pipe in enumerate(self.parent_pipes):
            result: Any = None
            if index not in self._dead:
                try:
                    result, successes[index] = pipe.recv()
                except _PIPE_ERRORS:
                    self._note_death(index)
            if index in self._dead:
                observations[index] = self._restart(index)
                restarted[index] = True
            elif successes[index]:
                observations[index], rewards[index], terminations[index], truncations[index], info = result
                infos = self._add_info(infos, info, index)
        self._raise_if_errors(successes)
        self._state = AsyncState.DEFAULT
        if not self.shared_memory:
            self.observations = concatenate(self.single_observation_space, observations, self.observations)
        if restarted.any():
            infos["worker_restarted"] = restarted
        return map_obs(np.copy, self.observations), rewards, terminations, truncations, infos

    def call_each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls the method on every sub-environment, each with its own arguments."""
        self._assert_is_running()
        try:
            for pipe, args in zip(self.parent_pipes, arguments):
                pipe.send(("_call", (name, args, {})))
            results = [pipe.recv() for pipe in self.parent_pipes]
        except _PIPE_ERRORS:
            raise self._first_death() from None
        self._raise_if_errors([success for _, success in results])
        return [value for value, _ in results]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        try:
            return super().reset(seed=seed, options=options)
        except _PIPE_ERRORS:
            raise self._first_death() from None

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Workers hold nothing that needs a farewell, and a dead or busy one must not hang the run: end them."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join()
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raises a worker's own error, without the tracebacks that Gymnasium prints around it."""
        failed = self.num_envs - sum(successes)
        errors = sorted((self.error_queue.get() for _ in range(failed)), key=lambda error: error[0])
        for index, *_ in errors:
            self.parent_pipes[index].close()
            self.parent_pipes[index] = None  # type: ignore[call-overload]
        if errors:
            self._state = AsyncState.DEFAULT
            _, _, error, _ = errors[0]
            raise error

    def _note_death(self, index: int) -> None:
        if self.restarts_left <= len(self._dead):  # those noted in this step are replaced when it is waited for
            raise self._death_error(index)
        self._dead.add(index)

    def _first_death(self) -> EnvWorkerError:
        """The error for the worker whose pipe broke; its process ends within moments."""
        wait([process.sentinel for process in self.processes], timeout=5)
        dead = (index for index, process in enumerate(self.processes) if not process.is_alive())
        return self._death_error(next(dead, 0))

    def _death_error(self, index: int) -> EnvWorkerError:
        self.processes[index].join(timeout=5)
        code = self.processes[index].exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}, exit code {code}"
        return EnvWorkerError(
            f"environment worker {index} of {self.num_envs} died ({how}).\n"
            "If the machine ran out of memory, use fewer workers (num_envs) or backend: sync; "
            "to replace dead workers set env.restart_workers=N."
        )

    def _restart(self, index: int) -> Any:
        """A new process for the dead worker; returns its first observation."""
        self._dead.discard(index)
        self.restarts_left -= 1
        self._restart_seed += 1
        self.parent_pipes[index].close()
        context: Any = multiprocessing.get_context(self.context)
        parent_pipe, child_pipe = context.Pipe()
        process = context.Process(
            target=_async_worker,
            name=f"Worker<{type(self).__name__}>-{index}",
            args=(
                index,
                self.env_fns[index],
                child_pipe,
                parent_pipe,
                None,
                self.error_queue,
                self.autoreset_mode,
                None,
            ),
            daemon=True,
        )
        process.start()
        child_pipe.close()
        self.parent_pipes[index], self.processes[index] = parent_pipe, process
        parent_pipe.send(("reset", {"seed": self._restart_seed, "options": None}))
        try:
            result, success = parent_pipe.recv()
        except _PIPE_ERRORS:
            raise self._death_error(index) from None
        self._raise_if_errors([True] * index + [success] + [True] * (self.num_envs - index - 1))
        return result[0]
