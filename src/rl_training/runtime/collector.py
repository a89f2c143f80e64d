"""The collector asks the policy, steps the environments, writes the buffer and keeps episode statistics. It knows no loss."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.exploration import SamplingExplorer
from rl_training.algorithms.off_policy import OffPolicyAlgorithm
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.envs.contract import EnvStepper, StepRecord
from rl_training.execution.batches import ObsTensor, mapped, on_device
from rl_training.execution.executor import Executor
from rl_training.policies.policy import ActingState, Policy, restarted
from rl_training.runtime.throughput import StageTimer
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import ActionAdapter, Observation, stored_obs

HOST = torch.device("cpu")


def obs_to_torch(obs: Observation, device: torch.device) -> ObsTensor:
    """A batch of observations from the environments as tensors on the device."""
    kept = stored_obs(obs)
    if isinstance(kept, dict):
        return {key: torch.from_numpy(value).to(device) for key, value in kept.items()}
    return torch.from_numpy(kept).to(device)


class EpisodeStatistics:
    """Returns and lengths of running and finished episodes; only valid steps count."""

    WINDOW = 100

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        self.running_returns = np.zeros(num_envs)
        self.running_lengths = np.zeros(num_envs, dtype=np.int64)
        self.returns: deque[float] = deque(maxlen=self.WINDOW)
        self.lengths: deque[int] = deque(maxlen=self.WINDOW)
        self.episodes = 0

    def add(self, record: StepRecord) -> None:
        # An invalid step belongs to no episode; after a worker's death it also cuts one off that has no return.
        self.running_returns += record.rewards
        self.running_lengths += 1
        if np.count_nonzero(record.valid) < self.num_envs:
            self.running_returns[~record.valid] = 0.0
            self.running_lengths[~record.valid] = 0
        ended = record.terminated | record.truncated
        if np.count_nonzero(ended):
            self.returns.extend(self.running_returns[ended].tolist())
            self.lengths.extend(self.running_lengths[ended].tolist())
            self.episodes += int(ended.sum())
            self.running_returns[ended] = 0.0
            self.running_lengths[ended] = 0

    def summary(self) -> dict[str, float]:
        """Means over the last episodes; empty before the first one ends."""
        if not self.returns:
            return {"episodes": float(self.episodes)}
        return {
            "episode_return": float(np.mean(self.returns)),
            "episode_length": float(np.mean(self.lengths)),
            "episodes": float(self.episodes),
        }

    def forget_running(self) -> None:
        """For a resume that had to start fresh episodes, possibly in another number of environments."""
        self.running_returns = np.zeros(self.num_envs)
        self.running_lengths = np.zeros(self.num_envs, dtype=np.int64)

    def state_dict(self) -> dict[str, Any]:
        return {
            "running_returns": self.running_returns.copy(),
            "running_lengths": self.running_lengths.copy(),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "episodes": self.episodes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.running_returns = np.array(state["running_returns"], dtype=np.float64)
        self.running_lengths = np.array(state["running_lengths"], dtype=np.int64)
        self.returns = deque(state["returns"], maxlen=self.WINDOW)
        self.lengths = deque(state["lengths"], maxlen=self.WINDOW)
        self.episodes = state["episodes"]


class Collector:
    """What every collector carries from call to call: environments, a random stream for actions, episode statistics."""

    sees_steps = True
    """Whether single steps pass through this process."""

    def __init__(
        self,
        stepper: EnvStepper,
        policy: Policy,
        *,
        seed: int,
        device: torch.device,
        timer: StageTimer,
        clip_rewards: bool = False,
    ):
        """With `clip_rewards` the buffer gets their signs; statistics are of the true ones."""
        self.clip_rewards = clip_rewards
        self.stepper, self.policy, self.device, self.timer, self.seed = stepper, policy, device, timer, seed
        self.acting_state: ActingState = policy.initial_state(stepper.num_envs)
        """What the policy remembers of each environment's episode."""
        self.adapter = ActionAdapter(stepper.envs.single_action_space)
        self.generator = torch.Generator(device=device).manual_seed(derive_seed(seed, "actions"))
        self.statistics = EpisodeStatistics(stepper.num_envs)
        self.on_step: Callable[[StepRecord], None] | None = None
        """Told of every step, if somebody wants to know."""

    def reset(self) -> None:
        self.stepper.reset(derive_seed(self.seed, "training envs"))
        self.acting_state = self.policy.initial_state(self.stepper.num_envs)

    def _remember(self, state: ActingState, record: StepRecord) -> None:
        """Keeps what the policy remembers, and starts anew where episodes ended."""
        if state is not None:
            initial = self.policy.initial_state(self.stepper.num_envs)
            self.acting_state = restarted(state, initial, torch.from_numpy(record.ended))

    def state_dict(self) -> dict[str, Any]:
        return {
            "envs": self.stepper.state_dict(),
            "generator": self.generator.get_state(),
            "statistics": self.statistics.state_dict(),
            "acting_state": mapped(Tensor.clone, self.acting_state),
        }

    def load_state_dict(self, state: dict[str, Any], resume_count: int = 0) -> None:
        self.generator.set_state(state["generator"])
        self.statistics.load_state_dict(state["statistics"])
        self.stepper.load_state_dict(state["envs"], derive_seed(self.seed, "training envs", "resume", resume_count))
        if self.stepper.resume_grade == "exact":
            self.acting_state = on_device(state["acting_state"], self.device)
        else:
            self.statistics.forget_running()
            self.acting_state = self.policy.initial_state(self.stepper.num_envs)


class RolloutCollector(Collector):
    """Fills a RolloutBuffer with the current policy's steps."""

    def __init__(
        self,
        stepper: EnvStepper,
        policy: Policy,
        buffer: RolloutBuffer,
        *,
        executor: Executor,
        **common: Any,
    ):
        super().__init__(stepper, policy, **common)
        self.buffer = buffer
        self._explorer = SamplingExplorer(policy, executor)

    def collect(self) -> tuple[RolloutBuffer, int]:
        """Runs `buffer.num_steps` steps in every environment; returns the buffer and the number of valid steps."""
        buffer, timer, clock = self.buffer, self.timer, time.perf_counter
        buffer.clear()
        buffer.initial_state = mapped(Tensor.clone, self.acting_state)
        valid_steps = 0
        obs = obs_to_torch(self.stepper.obs, self.device)
        while not buffer.full:
            begin = clock()
            actions, state = self._explorer.act(obs, self.acting_state, generator=self.generator, progress=0.0)
            env_actions = self.adapter.to_env(actions.cpu().numpy())
            acted = clock()
            record = self.stepper.step(env_actions)
            stepped = clock()
            self.statistics.add(record)
            self._remember(state, record)
            if self.on_step is not None:
                self.on_step(record)
            valid_steps += int(np.count_nonzero(record.valid))
            buffer.add(
                obs=obs,
                actions=actions,
                rewards=np.sign(record.rewards) if self.clip_rewards else record.rewards,
                terminated=record.terminated,
                truncated=record.truncated,
                valid=record.valid,
                next_obs=record.next_obs,
                bootstrap_ends=record.bootstrap_ends,
            )
            obs = obs_to_torch(self.stepper.obs, self.device)
            timer.add("inference", acted - begin)
            timer.add("env", stepped - acted)
            timer.add("buffer", clock() - stepped)
        buffer.last_obs = obs
        return buffer, valid_steps


class ReplayCollector(Collector):
    """Steps the environments with an exploring policy and writes a ReplayBuffer."""

    def __init__(
        self,
        stepper: EnvStepper,
        algorithm: OffPolicyAlgorithm,
        buffer: ReplayBuffer,
        **common: Any,
    ):
        super().__init__(stepper, algorithm.policy, **common)
        self.algorithm, self.buffer, self.explorer = algorithm, buffer, algorithm.make_explorer()
        self._random_actions = np.random.default_rng(derive_seed(self.seed, "random actions"))

    def collect(self, *, progress: float, random: bool, before_step: Callable[[], None]) -> int:
        """One step in every environment, with uniformly random actions if `random`; returns the number of valid steps.

        `before_step` is called when the actions are known.
        """
        begin = time.perf_counter()
        obs = obs_to_torch(self.stepper.obs, HOST)
        # Actions come when the GPU has finished learning and copying; only random ones come before.
        seen = on_device(obs, self.device, wait=random)
        state = self.acting_state
        if random:
            masks = self.stepper.action_masks
            actions = torch.from_numpy(self.adapter.sample(self._random_actions, self.stepper.num_envs, masks))
        else:
            actions, state = self.explorer.act(seen, state, generator=self.generator, progress=progress)
            actions = actions.cpu()
        env_actions = self.adapter.to_env(actions.numpy())
        acted = time.perf_counter()
        before_step()
        ready = time.perf_counter()
        record = self.stepper.step(env_actions)
        stepped = time.perf_counter()
        self.statistics.add(record)
        self.algorithm.update_statistics(seen)
        self.explorer.episodes_ended(torch.from_numpy(record.ended))
        self._remember(state, record)
        if self.on_step is not None:
            self.on_step(record)
        self.buffer.add(
            obs=obs,
            actions=actions,
            rewards=np.sign(record.rewards) if self.clip_rewards else record.rewards,
            next_obs=obs_to_torch(record.next_obs, HOST),
            terminated=record.terminated,
            truncated=record.truncated,
            valid=record.valid,
            bootstrap_ends=record.bootstrap_ends,
        )
        self.timer.add("inference", acted - begin)
        self.timer.add("env", stepped - ready)
        self.timer.add("buffer", time.perf_counter() - stepped)
        return int(np.count_nonzero(record.valid))

    def state_dict(self) -> dict[str, Any]:
        random_actions = dict(self._random_actions.bit_generator.state)
        return {**super().state_dict(), "random_actions": random_actions, "explorer": self.explorer.state_dict()}

    def load_state_dict(self, state: dict[str, Any], resume_count: int = 0) -> None:
        super().load_state_dict(state, resume_count)
        self._random_actions.bit_generator.state = state["random_actions"]
        self.explorer.load_state_dict(state["explorer"])
