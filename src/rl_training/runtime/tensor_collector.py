"""Rollouts that never leave the device: policy, environments, buffer and episode statistics meet there, and are read once.

`TensorRolloutCollector._play` waits for nothing and writes only into tensors that exist before it starts, step by step at fixed
places, so that on a GPU a whole rollout is recorded as a CUDA graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.builtin.tensor_envs import TensorVectorEnv
from rl_training.envs.contract import EnvStepper
from rl_training.execution.executor import Executor, compare
from rl_training.execution.graphs import aside, recorded_graph
from rl_training.execution.owned import Owned, Undo, Watch
from rl_training.policies.policy import Policy
from rl_training.runtime.collector import EpisodeStatistics, RolloutCollector
from rl_training.utils.spaces import Array

WARM_UP_CALLS = 3
"""Rollouts before one is recorded, so that libraries have allocated what they keep."""


class TensorEpisodeStatistics(EpisodeStatistics):
    """The same numbers, added up on the device and read once per rollout."""

    def __init__(self, num_envs: int, num_steps: int, device: torch.device):
        # Sums in double precision like NumPy's, except where the device has none.
        dtype = torch.float32 if device.type == "mps" else torch.float64
        # Row 0: return, row 1: length.
        self._running = torch.zeros((2, num_envs), dtype=dtype, device=device)
        self._history = torch.zeros((2, num_steps, num_envs), dtype=dtype, device=device)
        self._places = torch.arange(1, num_steps * num_envs + 1, device=device)
        super().__init__(num_envs)

    def write(self, t: int, rewards: Tensor, ended: Tensor) -> None:
        """Takes in step t of all environments, each a valid one; rewards (N,) and ended (N,) are on the device."""
        self._running[0].add_(rewards)
        self._running[1].add_(1.0)
        self._history[:, t].copy_(self._running)
        self._running.masked_fill_(ended, 0.0)

    def read(self, ended: Tensor) -> None:
        """Fetches what ended in the steps written, (T, N), in the order in which it did: the one wait of a rollout."""
        flat = ended.flatten()
        window = min(self.WINDOW, len(flat))
        newest = torch.where(flat, self._places, 0).topk(window).values.flip(0)  # 0: fewer ended than that
        rows = self._history.flatten(1)[:, newest.clamp(min=1) - 1]
        fetched = torch.cat((flat.sum().view(1).to(rows), newest.to(rows), rows.flatten())).cpu().numpy()
        places, returns, lengths = fetched[1:].reshape(3, window)
        self.episodes += int(fetched[0])
        self.returns.extend(returns[places > 0].tolist())
        self.lengths.extend(lengths[places > 0].astype(np.int64).tolist())

    # What the base class keeps as arrays: read and put back with a checkpoint.
    @property
    def running_returns(self) -> Array:
        return self._running[0].cpu().numpy().astype(np.float64)

    @running_returns.setter
    def running_returns(self, values: Array) -> None:
        self._set_running(0, values)

    @property
    def running_lengths(self) -> Array:
        return self._running[1].cpu().numpy().astype(np.int64)

    @running_lengths.setter
    def running_lengths(self, values: Array) -> None:
        self._set_running(1, values)

    def _set_running(self, row: int, values: Array) -> None:
        if len(values) == self.num_envs:  # else of a checkpoint with other environments, to be forgotten next
            self._running[row].copy_(torch.from_numpy(values).to(self._running.dtype))


class TensorRolloutCollector(RolloutCollector):
    """Fills a RolloutBuffer from environments that live on the policy's device."""

    sees_steps = False

    def __init__(
        self,
        stepper: EnvStepper,
        policy: Policy,
        buffer: RolloutBuffer,
        *,
        executor: Executor,
        **common: Any,
    ):
        super().__init__(stepper, policy, buffer, executor=executor, **common)
        assert isinstance(stepper.envs, TensorVectorEnv)
        self._records = executor.records and self.device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._watch: Watch | None = None
        self._played = 0
        self.envs = stepper.envs
        self.statistics: TensorEpisodeStatistics = TensorEpisodeStatistics(
            stepper.num_envs, buffer.num_steps, self.device
        )
        self._env_form = _action_converter(self.envs.single_action_space, self.device)
        self._last_obs = self.envs.observe().clone()

    def collect(self) -> tuple[RolloutBuffer, int]:
        buffer = self.buffer
        buffer.clear()
        if self._records:
            self._play_recorded()
        else:
            self._play()
        with self.timer.stage("env"):  # on a GPU, whose work the stages before have only launched
            self.statistics.read(buffer.dones)
        buffer.position, buffer.last_obs = buffer.num_steps, self._last_obs
        return buffer, buffer.num_steps * buffer.num_envs

    def _play(self) -> None:
        """One rollout, launched and not waited for."""
        buffer, statistics, timer, clock = self.buffer, self.statistics, self.timer, time.perf_counter
        obs = self.envs.observe()
        for t in range(buffer.num_steps):
            begin = clock()
            actions, _ = self.policy.act(obs, generator=self.generator)
            acted = clock()
            step = self.envs.step_tensors(self._env_form(actions))
            stepped = clock()
            ended = step.terminated | step.truncated
            buffer.write(
                t,
                obs=obs,
                actions=actions,
                rewards=step.rewards.sign() if self.clip_rewards else step.rewards,
                ended=ended,
                truncated=step.truncated & ~step.terminated,
                next_obs=step.final_obs,
            )
            statistics.write(t, step.rewards, ended)
            obs = step.obs
            timer.add("inference", acted - begin)
            timer.add("env", stepped - acted)
            timer.add("buffer", clock() - stepped)
        self._last_obs.copy_(obs)

    def _play_recorded(self) -> None:
        """One rollout; after the first few, all of it is replayed as a CUDA graph, until something in the policy is replaced."""
        if self._watch is not None and not self._watch.holds():
            self._graph = self._watch = None
        if self._graph is None:
            with aside(torch.cuda.Stream(self.device)):
                self._play()
            self._played += 1
            if self._played >= WARM_UP_CALLS:
                self._record()
        else:
            with self.timer.stage("env"):  # with inference and buffer: they are one graph
                self._graph.replay()

    def _record(self) -> None:
        """Records a rollout, and compares its replay with a rollout as written before it is used."""
        policy, undo = Owned(self.policy), Undo(Owned(self), self.generator, self.envs.generator)
        graph, _ = recorded_graph(self._play, (self.generator, self.envs.generator), torch.cuda.Stream(self.device))
        self._play()
        written = undo.values()
        undo()
        graph.replay()
        replayed = undo.values()
        undo()
        compare(None, (None, written), (None, replayed), undo.before())
        self._graph, self._watch = graph, policy.watch(policy.tensors)

    def state_dict(self) -> dict[str, Any]:
        self.stepper.obs = self._last_obs.cpu().numpy()  # the stepper was not asked to step
        return super().state_dict()

    def reset(self) -> None:
        super().reset()
        self._last_obs.copy_(self.envs.observe())

    def load_state_dict(self, state: dict[str, Any], resume_count: int = 0) -> None:
        super().load_state_dict(state, resume_count)
        self._last_obs.copy_(self.envs.observe())


def rollout_collector(
    stepper: EnvStepper,
    policy: Policy,
    buffer: RolloutBuffer,
    **common: Any,
) -> RolloutCollector:
    """The collector for this kind of environments: on the device if they live where the buffer does, else through NumPy.

    A wrapped tensor environment goes through NumPy, because wrappers change what it says; so does one for a policy with a memory.
    `common` is what every collector takes.
    """
    envs = stepper.envs
    stateless = policy.initial_state(stepper.num_envs) is None
    if stateless and isinstance(envs, TensorVectorEnv) and envs.states.device == buffer.rewards.device:
        return TensorRolloutCollector(stepper, policy, buffer, **common)
    return RolloutCollector(stepper, policy, buffer, **common)


def _action_converter(space: spaces.Space[Any], device: torch.device) -> Callable[[Tensor], Tensor]:
    """Policy form to the environment's own, as `ActionAdapter.to_env` does with arrays; NaN is left to the update to find."""
    if isinstance(space, spaces.Discrete):
        assert space.start == 0, "tensor environments count their actions from 0"
        return lambda actions: actions
    assert isinstance(space, spaces.Box)
    low, high = space.low.astype(np.float64).reshape(-1), space.high.astype(np.float64).reshape(-1)
    middle, half_width = (
        torch.tensor(bound, dtype=torch.float32, device=device) for bound in ((low + high) / 2, (high - low) / 2)
    )
    return lambda actions: torch.addcmul(middle, actions.clamp(-1.0, 1.0), half_width).view(-1, *space.shape)
