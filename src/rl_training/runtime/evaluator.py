"""Evaluation in environments of its own, which never touches training's environments, normalisers or randomness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from rl_training.envs.contract import EnvStepper
from rl_training.envs.limits import episode_limit
from rl_training.envs.vector_state import cleared
from rl_training.policies.policy import Policy, restarted
from rl_training.runtime.collector import obs_to_torch
from rl_training.utils.bootstrap import bootstrap_interval
from rl_training.utils.errors import UserError
from rl_training.utils.global_random import preserved_global_rng
from rl_training.utils.seeding import derive_seed
from rl_training.utils.spaces import ActionAdapter, Array


@dataclass(frozen=True)
class EvaluationResult:
    """Undiscounted returns of complete episodes, but for those that were cut."""

    mean: float
    std: float
    ci_low: float
    """Lower end of the 95 % bootstrap interval of the mean."""
    ci_high: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    deterministic: bool
    success_rate: float | None = None
    """Share of the episodes that reached their goal, where every episode's last info says whether it did."""
    cut_episodes: int = 0
    """How many of the episodes did not end and were cut at the evaluation's limit of steps: their returns are not whole."""

    @classmethod
    def from_episodes(
        cls,
        returns: list[float],
        lengths: list[int],
        deterministic: bool,
        successes: Sequence[float] = (),
        cut_episodes: int = 0,
    ) -> EvaluationResult:
        """`successes` are 1 or 0 by episode, or NaN where that is not known."""
        values = np.array(returns, dtype=np.float64)
        low, high = bootstrap_interval(values)
        return cls(
            float(values.mean()),
            float(values.std()),
            low,
            high,
            tuple(returns),
            tuple(lengths),
            deterministic,
            float(np.mean(successes)) if len(successes) and np.isfinite(successes).all() else None,
            cut_episodes,
        )

    @classmethod
    def from_state(cls, state: dict[str, Any] | None) -> EvaluationResult | None:
        """The result in a checkpoint, if it holds one."""
        if state is None:
            return None
        numbers = {name: float(state[name]) for name in ("mean", "std", "ci_low", "ci_high")}
        success = state["success_rate"]
        return cls(
            **numbers,
            returns=tuple(float(value) for value in state["returns"]),
            lengths=tuple(int(value) for value in state["lengths"]),
            deterministic=bool(state["deterministic"]),
            success_rate=None if success is None else float(success),
            cut_episodes=int(state.get("cut_episodes", 0)),
        )

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean_length(self) -> float:
        return float(np.mean(self.lengths))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "episodes": self.episodes, "mean_length": self.mean_length}


MAX_EPISODES = 1_000_000
"""Most episodes of an evaluation."""
MAX_EPISODE_STEPS = 27_000
"""Where an episode is cut if its environment has no limit of its own: half an hour of an Atari game, whose limit it is."""


class Watcher(Protocol):
    """Looks on while an evaluation is played: after the reset, and after every step of all environments."""

    def __call__(self, envs: VectorEnv[Any, Any, Any], playing: Array, returns: Array, steps: Array) -> None:
        """(N,) each: whether the environment's episode counts, its return so far, and its length so far."""


class EvaluationStopped(Exception):
    """An evaluation was given up, because its caller no longer wants it."""


class Evaluator:
    """Plays complete episodes with a policy. One that does not end is cut after `max_episode_steps` (None: the environment's own
    limit, or MAX_EPISODE_STEPS if it has none), and the result says so.

    The number of episodes is shared out among the environments beforehand: taking whichever finish first would favour short ones.
    """

    def __init__(
        self,
        make_envs: Callable[[int], VectorEnv[Any, Any, Any]],
        *,
        num_envs: int,
        seed: int,
        device: torch.device,
        max_episode_steps: int | None = None,
    ):
        self._make_envs, self._num_envs, self._max_episode_steps = make_envs, num_envs, max_episode_steps
        self.seed, self.device = seed, device
        self._stepper: EnvStepper | None = None
        self._reuses = True

    def evaluate(
        self,
        policy: Policy,
        episodes: int,
        *,
        deterministic: bool,
        stream: int = 0,
        stopped: Callable[[], bool] = lambda: False,
        watch: Watcher | None = None,
    ) -> EvaluationResult:
        """`stream` (the training step) selects the episodes' seeds, so the same call gives the same episodes.

        EvaluationStopped as soon as `stopped()` says so, which is asked before every step.
        """
        if not 1 <= episodes <= MAX_EPISODES:
            raise UserError(f"an evaluation has 1 to {MAX_EPISODES:,} episodes, not {episodes:,}")
        with preserved_global_rng():
            was_training = policy.training
            policy.train(False)
            try:
                seed = derive_seed(self.seed, "evaluation", stream)
                return self._play(policy, episodes, deterministic, seed, stopped, watch)
            finally:
                policy.train(was_training)

    def _play(
        self,
        policy: Policy,
        episodes: int,
        deterministic: bool,
        seed: int,
        stopped: Callable[[], bool],
        watch: Watcher | None,
    ) -> EvaluationResult:
        count = min(self._num_envs, episodes)
        stepper = self._fresh_stepper(count)
        count = stepper.num_envs  # vector environments that somebody made beforehand have their own number
        adapter = ActionAdapter(stepper.envs.single_action_space)
        generator = torch.Generator(device=self.device).manual_seed(derive_seed(seed, "actions"))
        quota = np.array([episodes // count + (index < episodes % count) for index in range(count)])
        running, steps = np.zeros(count), np.zeros(count, dtype=np.int64)
        returns: list[list[float]] = [[] for _ in range(count)]
        lengths: list[list[int]] = [[] for _ in range(count)]
        successes: list[float] = []
        limit, cut_episodes = self._max_episode_steps or _default_limit(stepper.envs), 0
        stepper.reset(seed)
        if watch is not None:
            watch(stepper.envs, quota > 0, running, steps)
        state = policy.initial_state(count)
        while (quota > 0).any():
            if stopped():
                raise EvaluationStopped
            obs = obs_to_torch(stepper.obs, self.device)
            actions, state = policy.act(obs, state, generator=generator, deterministic=deterministic)
            record = stepper.step(adapter.to_env(actions.cpu().numpy()))
            running += record.rewards * record.valid
            steps += record.valid
            ended = record.terminated | record.truncated
            cut = (steps >= limit) & (quota > 0) & ~ended
            if cut.any():
                stepper.restart(cut)
                cut_episodes += int(cut.sum())
                ended = ended | cut
            if watch is not None:
                watch(stepper.envs, quota > 0, running, steps)
            if state is not None:
                state = restarted(state, policy.initial_state(count), torch.from_numpy(record.ended | ended))
            for index in np.flatnonzero(ended):
                if quota[index] > 0:
                    returns[index].append(float(running[index]))
                    lengths[index].append(int(steps[index]))
                    successes.append(np.nan if record.success is None else float(record.success[index]))
                    quota[index] -= 1
                running[index], steps[index] = 0.0, 0
        return EvaluationResult.from_episodes(
            list(chain(*returns)), list(chain(*lengths)), deterministic, successes, cut_episodes
        )

    def _fresh_stepper(self, count: int) -> EnvStepper:
        """Environments that know nothing of earlier evaluations: a resumed run has not played those.

        The old ones, if a seeded reset is shown to clear them, otherwise new ones.
        """
        old = self._stepper
        if old is not None and old.num_envs == count:
            if self._reuses and cleared(old.envs):
                return old
            self._reuses = False  # nor will they be next time, and looking takes time too
        self.close()
        self._stepper = EnvStepper(self._make_envs(count))
        self._reuses = cleared(self._stepper.envs, look=self._reuses)
        return self._stepper

    def close(self) -> None:
        if self._stepper is not None:
            self._stepper.close()
            self._stepper = None


def _default_limit(envs: VectorEnv[Any, Any, Any]) -> float:
    """Infinity where the environments truncate their episodes themselves."""
    return MAX_EPISODE_STEPS if episode_limit(envs) is None else np.inf
