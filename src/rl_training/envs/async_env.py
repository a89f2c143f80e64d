"""Environments in worker processes, one or several in each, with dead workers named or replaced."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
)

from rl_training.envs.replay import ReplayableEnv
from rl_training.envs.sync_env import SyncEnvs
from rl_training.utils.errors import AxiomError, EnvFailure, EnvWorkerError
from rl_training.utils.spaces import Array, map_obs
from rl_training.utils.stop_signals import leave_stop_signals_to_main_process

_PIPE_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)
MakeEnv = Callable[[], gym.Env[Any, Any]]


class AsyncEnvs(VectorEnv[Any, Any, Any]):
    """A vector of environments that `workers` processes step, each its share in turn; by default one process for each.

    A replaced worker starts fresh episodes; its interrupted step is reported in `infos["worker_restarted"]`, so that the step
    contract marks it invalid. With `restart_workers > 0` observations travel through pipes, not shared memory, because
    a process that dies while writing would leave half an observation there.
    """

    def __init__(
        self,
        env_fns: Sequence[MakeEnv],
        autoreset_mode: AutoresetMode,
        restart_workers: int = 0,
        restart_seed: int = 0,
        workers: int | None = None,
    ):
        self.env_fns, self.num_envs, self.autoreset_mode = tuple(env_fns), len(env_fns), autoreset_mode
        self.restarts_left, self._restart_seed = restart_workers, restart_seed
        model = env_fns[0]()
        self.metadata = {**model.metadata, "autoreset_mode": autoreset_mode}
        self.spec, self.render_mode = model.spec, model.render_mode
        self.single_observation_space, self.single_action_space = model.observation_space, model.action_space
        model.close()
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        count = min(workers or self.num_envs, self.num_envs)
        bounds = [part * self.num_envs // count for part in range(count + 1)]
        self._shares = [slice(start, stop) for start, stop in pairwise(bounds)]
        # A fork takes along makers of any kind, lambdas included; where there is none they must be importable.
        forks = "fork" in multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("fork" if forks else None)
        self._context = context
        self._shared: Any = None
        self._observations: Any
        if restart_workers == 0 and _is_arrays(self.single_observation_space):
            self._shared = create_shared_memory(self.single_observation_space, self.num_envs, context)
            self._observations = read_from_shared_memory(self.single_observation_space, self._shared, self.num_envs)
        else:
            self._observations = create_empty_array(self.single_observation_space, self.num_envs, fn=np.zeros)
        self._dead: set[int] = set()
        self.processes: list[Any] = [None] * count
        self.parent_pipes: list[Connection] = [None] * count  # type: ignore[list-item]
        # Also if nobody closes them: they do not heed the signal that Python's exit would send, and it would wait for ever.
        self._end_workers = weakref.finalize(self, _end, self.processes)
        for index in range(count):
            self._start(index)
        self._answers(range(count))  # each says that it has made its environments

    def _start(self, index: int) -> None:
        """A process for the worker's share of the environments."""
        pipe, theirs = self._context.Pipe()
        share = self._shares[index]
        job = _Job(self.env_fns[share], self.autoreset_mode, share, self.num_envs, self._shared)
        process = self._context.Process(
            target=_work, args=(job, theirs, pipe), name=f"{type(self).__name__}-{index}", daemon=True
        )
        process.start()
        theirs.close()
        self.parent_pipes[index], self.processes[index] = pipe, process

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seeds = (
            [None if seed is None else seed + i for i in range(self.num_envs)] if not isinstance(seed, list) else seed
        )
        mask = (options or {}).get("reset_mask")
        asked = [i for i, share in enumerate(self._shares) if mask is None or mask[share].any()]
        for index in asked:
            share = self._shares[index]
            part = options if mask is None else {**(options or {}), "reset_mask": mask[share]}
            self._send(index, "reset", (seeds[share], part))
        found = dict(zip(asked, self._answers(asked)))
        for index, (obs, _) in found.items():
            self._take_in(index, obs)
        return map_obs(np.copy, self._observations), self._merged({index: infos for index, (_, infos) in found.items()})

    def step(self, actions: Any) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        single = [*iterate(self.action_space, actions)] if not isinstance(actions, np.ndarray) else actions
        for index, share in enumerate(self._shares):
            try:
                self.parent_pipes[index].send(("step", single[share]))
            except _PIPE_ERRORS:
                self._note_death(index)
        rewards = np.zeros(self.num_envs, dtype=np.float64)
        terminations, truncations, restarted = (np.zeros(self.num_envs, dtype=np.bool_) for _ in range(3))
        infos: dict[int, dict[str, Any]] = {}
        failure: BaseException | None = None
        for index, share in enumerate(self._shares):
            answer: Any = None
            if index not in self._dead:
                try:
                    answer = self.parent_pipes[index].recv()
                except _PIPE_ERRORS:
                    self._note_death(index)
            if index in self._dead:
                self._take_in(index, self._restart(index))
                restarted[share] = True
            elif isinstance(answer, BaseException):
                failure = failure or answer
            else:
                obs, rewards[share], terminations[share], truncations[share], infos[index] = answer
                self._take_in(index, obs)
        if failure is not None:
            raise failure
        merged = self._merged(infos)
        if restarted.any():
            merged["worker_restarted"] = restarted
        return map_obs(np.copy, self._observations), rewards, terminations, truncations, merged

    def call_each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Calls the method on every environment, each with its own arguments."""
        for index, share in enumerate(self._shares):
            self._send(index, "call", (name, list(arguments[share])))
        return [value for part in self._answers(range(len(self._shares))) for value in part]

    def close_extras(self, **kwargs: Any) -> None:
        """Workers hold nothing that needs a farewell, and a dead or busy one must not hang the run: end them."""
        self._end_workers()
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()

    def _take_in(self, index: int, obs: Any) -> None:
        """Puts a worker's observations, single ones, beside the others', unless they lie in shared memory already."""
        if obs is None:
            return
        share = self._shares[index]
        if isinstance(self._observations, np.ndarray | dict):
            empty: Any = create_empty_array(self.single_observation_space, len(obs), fn=np.zeros)
            part: Any = concatenate(self.single_observation_space, obs, empty)
            if isinstance(self._observations, dict):
                for key, rows in self._observations.items():
                    rows[share] = part[key]
            else:
                self._observations[share] = part
        else:  # a space whose batches are no arrays
            rest = [*iterate(self.observation_space, self._observations)]
            rest[share] = obs
            self._observations = concatenate(self.single_observation_space, rest, self._observations)

    def _merged(self, parts: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """The infos of all workers as those of one vector."""
        merged: dict[str, Any] = {}
        for index, infos in parts.items():
            if infos:
                _merge(merged, infos, self._shares[index], self.num_envs)
        return merged

    def _send(self, index: int, command: str, data: Any) -> None:
        try:
            self.parent_pipes[index].send((command, data))
        except _PIPE_ERRORS:
            raise self._first_death() from None

    def _answers(self, indices: Iterable[int]) -> list[Any]:
        try:
            answers = [self.parent_pipes[index].recv() for index in indices]
        except _PIPE_ERRORS:
            raise self._first_death() from None
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _note_death(self, index: int) -> None:
        if self.restarts_left <= len(self._dead):  # those noted in this step are replaced when it is waited for
            raise self._death_error(index)
        self._dead.add(index)

    def _first_death(self) -> EnvWorkerError:
        """The error for the worker whose pipe broke; its process ends within moments."""
        started = [process for process in self.processes if process is not None]
        wait([process.sentinel for process in started], timeout=5)
        dead = (index for index, process in enumerate(started) if not process.is_alive())
        return self._death_error(next(dead, 0))

    def _death_error(self, index: int) -> EnvWorkerError:
        self.processes[index].join(timeout=5)
        code = self.processes[index].exitcode
        how = f"exit code {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}, exit code {code}"
        return EnvWorkerError(
            f"environment worker {index} of {len(self.processes)} died ({how}).\n"
            "If the machine ran out of memory, use fewer workers (env.workers or num_envs) or backend: sync; "
            "to replace dead workers set env.restart_workers=N."
        )

    def _restart(self, index: int) -> Any:
        """A new process for the dead worker; returns the first observations of its environments."""
        self._dead.discard(index)
        self.restarts_left -= 1
        self._restart_seed += 1
        self.parent_pipes[index].close()
        self._start(index)
        try:
            self._raise_if_failed(self.parent_pipes[index].recv())
            share = self._shares[index]
            seeds = [self._restart_seed + 1_000 * place for place in range(share.stop - share.start)]
            self.parent_pipes[index].send(("reset", (seeds, None)))
            return self._raise_if_failed(self.parent_pipes[index].recv())[0]
        except _PIPE_ERRORS:
            raise self._death_error(index) from None

    @staticmethod
    def _raise_if_failed(answer: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer


@dataclass(frozen=True)
class _Job:
    """What a worker is for."""

    makers: Sequence[MakeEnv]
    """Those of its environments."""
    mode: AutoresetMode
    share: slice
    num_envs: int
    shared: Any
    """Memory for the observations of all environments; None if they travel through the pipe."""


def _end(processes: list[Any]) -> None:
    running = [process for process in processes if process is not None]
    for process in running:
        if process.is_alive():
            process.kill()
    for process in running:
        process.join()


def _work(job: _Job, pipe: Connection, other_end: Connection) -> None:
    """A worker: steps its environments as it is told to, until the pipe is closed.

    Signals meant for the run (Ctrl-C and the like) are left to the main process: it needs the workers alive to save their state.
    """
    other_end.close()
    leave_stop_signals_to_main_process()
    try:
        envs = SyncEnvs(job.makers, autoreset_mode=job.mode, copy=False)
    except AxiomError as error:
        # A line instead of a traceback; the main process names the worker.
        sys.exit(f"error in a worker: {error}")
    if len(envs.envs) == 1 and isinstance(envs.envs[0], ReplayableEnv):
        envs.envs[0].random.take_process()  # the process-wide generators belong to the environment
    if job.shared is not None:
        everything: Any = read_from_shared_memory(envs.single_observation_space, job.shared, job.num_envs)
        envs._observations = map_obs(lambda rows: rows[job.share], everything)
    pipe.send(None)
    while True:
        try:
            command, data = pipe.recv()
        except (*_PIPE_ERRORS, KeyboardInterrupt):
            return
        try:
            answer = _answer(envs, command, data, shared=job.shared is not None)
        except Exception as error:
            answer = error if isinstance(error, AxiomError) else EnvFailure(f"{type(error).__name__}: {error}")
        pipe.send(answer)


def _answer(envs: SyncEnvs, command: str, data: Any, *, shared: bool) -> Any:
    if command == "step":
        _, *outcome = envs.step(data)
        return (None if shared else list(envs._env_obs), *outcome)
    if command == "reset":
        seeds, options = data
        _, infos = envs.reset(seed=seeds, options=options)
        return None if shared else list(envs._env_obs), infos
    name, arguments = data
    return [getattr(env, name)(*args) for env, args in zip(envs.envs, arguments)]


def _merge(merged: dict[str, Any], infos: dict[str, Any], share: slice, count: int) -> None:
    """Puts infos of a share's environments, arrays with one entry for each, into those of all."""
    for key, value in infos.items():
        if isinstance(value, dict):
            _merge(merged.setdefault(key, {}), value, share, count)
            continue
        known = merged.get(key)
        if known is None:
            known = merged[key] = np.zeros((count, *value.shape[1:]), dtype=value.dtype)
            if value.dtype == object:
                known[:] = None
        elif known.dtype != value.dtype or known.shape[1:] != value.shape[1:]:
            known = merged[key] = known.astype(object) if known.ndim == 1 else np.array([*known, None], object)[:-1]
        known[share] = value


def _is_arrays(space: spaces.Space[Any]) -> bool:
    """Whether batches of the space are arrays, which memory can be shared for."""
    if isinstance(space, spaces.Dict):
        return all(_is_arrays(entry) and not isinstance(entry, spaces.Dict) for entry in space.spaces.values())
    return isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary)
