"""On-policy experience: T steps of N environments, in order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.returns import gae
from rl_training.execution.batches import ObsTensor, mapped, on_device
from rl_training.utils.spaces import Array, Observation, map_obs

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RolloutMinibatch:
    """B valid steps of a rollout, shuffled."""

    obs: ObsTensor
    """(B, *obs_shape), or one such tensor per key."""
    actions: Tensor
    """(B, *action_shape) in policy form."""
    logprobs: Tensor
    """(B,) log-probabilities under the policy that acted."""
    values: Tensor
    """(B,) value estimates at collection."""
    advantages: Tensor
    """(B,)"""
    returns: Tensor
    """(B,) targets of the value function."""
    valid: Tensor | None = None
    """(B,) bool: which steps count; None if all do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMinibatch(RolloutMinibatch):
    """B sequences of L consecutive steps: every tensor is (L, B, ...), and `valid` says which steps count."""

    starts: Tensor
    """(L, B) bool: before which steps the policy forgets."""
    state: Any
    """What the policy remembered before the first step, tensors (B, ...)."""


class RolloutBuffer:
    """Tensors of shape (T, N, ...). Written step by step by the collector, completed by the algorithm, read in minibatches.

    `dones[t]` says that step t ended its episode, or all that counts for the value, where `goes_on[t]` says that the episode does;
    `truncated[t]` that this end was a cut, so that the final observation's value (in `final_values[t]`) bootstraps. Final
    observations are kept aside, only where they are needed.
    """

    def __init__(
        self,
        num_steps: int,
        num_envs: int,
        obs_shape: Shape | Mapping[str, Shape],
        action_shape: Shape,
        *,
        obs_dtype: torch.dtype | Mapping[str, torch.dtype] = torch.float32,
        action_dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        self.num_steps, self.num_envs, self.device = num_steps, num_envs, torch.device(device)

        def empty(shape: Shape = (), dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((num_steps, num_envs, *shape), dtype=dtype, device=self.device)

        self.obs: ObsTensor
        if isinstance(obs_shape, Mapping):
            dtypes = obs_dtype if isinstance(obs_dtype, Mapping) else dict.fromkeys(obs_shape, obs_dtype)
            self.obs = {key: empty(tuple(shape), dtypes[key]) for key, shape in obs_shape.items()}
        else:
            assert isinstance(obs_dtype, torch.dtype)
            self.obs = empty(tuple(obs_shape), obs_dtype)
        self.actions = empty(tuple(action_shape), action_dtype)
        self.rewards, self.logprobs, self.values = empty(), empty(), empty()
        self.final_values, self.advantages, self.returns = empty(), empty(), empty()
        self.dones = empty(dtype=torch.bool)
        self.truncated = empty(dtype=torch.bool)
        self.goes_on = empty(dtype=torch.bool)
        self.valid = empty(dtype=torch.bool).fill_(True)
        self.last_obs: ObsTensor | None = None
        self.initial_state: Any = None
        """What a policy with a memory remembered before the first step."""
        self.states: Any = None
        """Tensors (T + 1, N, ...): what it remembered before each step and after the last, as the algorithm has computed it."""
        self.has_logprobs = False
        """Whether `logprobs` are already those of the policy that acted, which the algorithm then need not be."""
        self._make_views()
        self._final_obs: list[Observation] = []
        self._final_index: list[Array] = []
        self._every_next_obs: Tensor | None = None
        self.position = 0

    def _make_views(self) -> None:
        # What the environments say is written with NumPy: where the tensors are, or beside a GPU's until the rollout is full.
        self._staged: dict[str, Array] = {
            name: stored.cpu().numpy()
            for name in ("rewards", "dones", "truncated", "goes_on", "valid")
            if isinstance(stored := getattr(self, name), Tensor)
        }
        # The rows of a CPU's tensors are written with NumPy too, which takes a fraction of the time.
        self._as_rows: Callable[[Tensor], Any] = torch.Tensor.numpy if self.device.type == "cpu" else lambda rows: rows
        self._obs_rows: Any = map_obs(self._as_rows, self.obs)
        self._action_rows: Any = self._as_rows(self.actions)

    def __deepcopy__(self, memo: dict[int, Any]) -> RolloutBuffer:
        """A copy whose arrays are views of its own tensors again."""
        other = memo[id(self)] = object.__new__(RolloutBuffer)
        views = ("_staged", "_as_rows", "_obs_rows", "_action_rows")
        for name, value in self.__dict__.items():
            if name not in views:
                setattr(other, name, copy.deepcopy(value, memo))
        other._make_views()
        return other

    @property
    def full(self) -> bool:
        return self.position == self.num_steps

    def clear(self) -> None:
        """Makes room for the next rollout."""
        self.position, self.last_obs, self.has_logprobs, self.states = 0, None, False, None
        self._final_obs, self._final_index = [], []

    def add(
        self,
        *,
        obs: ObsTensor,
        actions: Tensor,
        rewards: Array,
        terminated: Array,
        truncated: Array,
        valid: Array,
        next_obs: Observation,
        bootstrap_ends: Array | None = None,
    ) -> None:
        """Appends one step of all environments: tensors (N, ...) on any device, and arrays (N, ...) from the environments.

        `bootstrap_ends` says where the value after a step is zero although its episode goes on.
        """
        t, as_rows = self.position, self._as_rows
        if isinstance(obs, dict):
            for key, rows in self._obs_rows.items():
                rows[t] = as_rows(obs[key])
        else:
            self._obs_rows[t] = as_rows(obs)
        self._action_rows[t] = as_rows(actions)
        staged = self._staged
        staged["rewards"][t], staged["truncated"][t], staged["valid"][t] = rewards, truncated, valid
        np.logical_or(terminated, truncated, out=staged["dones"][t])
        staged["goes_on"][t] = False
        if bootstrap_ends is not None:
            np.greater(bootstrap_ends, staged["dones"][t], out=staged["goes_on"][t])
            staged["dones"][t] |= bootstrap_ends
        if np.count_nonzero(truncated):
            rows = staged["truncated"][t].nonzero()[0]
            self._final_obs.append(map_obs(lambda array: array[rows], next_obs))
            self._final_index.append(rows + t * self.num_envs)
        self.position += 1
        if self.full and self.device.type != "cpu":
            for name, array in staged.items():
                getattr(self, name).copy_(torch.from_numpy(array))

    def write(
        self,
        t: int,
        *,
        obs: Tensor,
        actions: Tensor,
        rewards: Tensor,
        ended: Tensor,
        truncated: Tensor,
        next_obs: Tensor,
    ) -> None:
        """Writes step t of all environments, each a valid one, without waiting for the device that all tensors are on.

        Where episodes were truncated is not asked here, so every `next_obs` is kept. After the last step, set `position`.
        """
        assert isinstance(self.obs, Tensor), "no tensor environment has Dict observations"
        if self._every_next_obs is None:
            self._every_next_obs = torch.zeros_like(self.obs)
        self.obs[t].copy_(obs)
        self.actions[t].copy_(actions)
        self.rewards[t].copy_(rewards)
        self.dones[t].copy_(ended)
        self.truncated[t].copy_(truncated)
        self._every_next_obs[t].copy_(next_obs)

    def final_obs(self) -> tuple[ObsTensor, Tensor] | None:
        """The final observations (K, ...) of truncated episodes and their flat positions t·N + n (K,); None if there are none."""
        if self._every_next_obs is not None:
            index = self.truncated.flatten().nonzero().squeeze(-1)
            return (self._every_next_obs.flatten(0, 1)[index], index) if len(index) else None
        if not self._final_obs:
            return None
        index = torch.from_numpy(np.concatenate(self._final_index)).to(self.device)
        if isinstance(self.obs, dict):
            rows = {key: [obs[key] for obs in self._final_obs] for key in self.obs}
            return {key: self._like(self.obs[key], parts) for key, parts in rows.items()}, index
        return self._like(self.obs, self._final_obs), index

    def state_dict(self) -> dict[str, Any]:
        """A full rollout as it was collected: what the algorithm computes from it is not kept."""
        final_obs, final_index = self.final_obs() or (None, None)
        return {
            **{name: map_obs(torch.clone, getattr(self, name)) for name in (*_COLLECTED, "last_obs")},
            "final_obs": final_obs,
            "final_index": final_index,
            "initial_state": mapped(torch.clone, self.initial_state),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.clear()
        self._every_next_obs = None
        for name in _COLLECTED:
            _copy(state[name], getattr(self, name))
        self.last_obs = map_obs(lambda saved: saved.to(self.device), state["last_obs"])
        self.initial_state = on_device(state["initial_state"], self.device)
        if state["final_index"] is not None:
            self._final_obs = [map_obs(lambda saved: saved.numpy(), state["final_obs"])]
            self._final_index = [state["final_index"].numpy()]
        self.position, self.has_logprobs = self.num_steps, True

    def _like(self, stored: Tensor, parts: Sequence[Any]) -> Tensor:
        """Rows from the environments as one tensor of the stored kind."""
        return torch.from_numpy(np.concatenate(parts)).to(self.device, stored.dtype)

    def flat_obs(self) -> ObsTensor:
        """Observations as (T·N, ...)."""
        return map_obs(lambda stored: stored.flatten(0, 1), self.obs)

    def ended(self) -> Tensor:
        """(T, N) bool: after which steps a policy with a memory starts anew, as the collector lets it: an episode's last, and
        those that were not the policy's."""
        return (self.dones & ~self.goes_on) | ~self.valid

    def starts(self) -> Tensor:
        """(T, N) bool: before which steps it starts anew. What it remembers before the first one is in `initial_state`."""
        ended = self.ended()
        return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])

    @property
    def _all_valid(self) -> bool:
        """Whether no step has to be left out; what is staged says so without waiting for a device."""
        return bool(self._staged["valid"].all())

    def valid_obs(self) -> ObsTensor:
        """Observations of the valid steps as (B, ...)."""
        return self.flat_obs() if self._all_valid else map_obs(lambda stored: stored[self.valid], self.obs)

    def of_valid(self, numbers: Tensor) -> Tensor:
        """Those of numbers (T, N) that belong to valid steps, (B,)."""
        return numbers.flatten() if self._all_valid else numbers[self.valid]

    def compute_returns_and_advantages(self, last_value: Tensor, gamma: float, gae_lambda: float) -> None:
        """Fills `advantages` and `returns` (T, N) by GAE; `last_value` (N,) values the observations after the last step."""
        dones, truncated = self.dones.bool(), self.truncated.bool()
        next_values = torch.cat([self.values[1:], last_value.reshape(1, self.num_envs).to(self.values)])
        next_values = torch.where(truncated, self.final_values, next_values)
        self.advantages = gae(
            self.rewards,
            self.values,
            next_values,
            dones & ~truncated,
            dones,
            self.valid.bool(),
            gamma,
            gae_lambda,
        )
        self.returns = self.advantages + self.values

    def minibatches(self, count: int, generator: torch.Generator) -> Iterator[RolloutMinibatch]:
        """One epoch: a single permutation of all valid steps, gathered once, cut into `count` nearly equal parts."""
        # Where each step is valid, none is looked for: that would wait for the device.
        valid = None if self._all_valid else self.valid.flatten().nonzero().squeeze(-1)
        count_valid = self.num_steps * self.num_envs if valid is None else len(valid)
        order = torch.randperm(count_valid, generator=generator, device=generator.device).to(self.device)
        indices = order if valid is None else valid[order]
        bounds = [part * count_valid // count for part in range(count + 1)]
        sizes = [stop - start for start, stop in pairwise(bounds)]
        obs = _cut(self.flat_obs(), indices, sizes)
        columns = (
            _cut(tensor.flatten(0, 1), indices, sizes)
            for tensor in (self.actions, self.logprobs, self.values, self.advantages, self.returns)
        )
        for size, *parts in zip(sizes, obs, *columns):
            if size > 0:
                yield RolloutMinibatch(*parts)

    def sequences(self, length: int, count: int, generator: torch.Generator) -> Iterator[SequenceMinibatch]:
        """One epoch: all sequences of `length` steps, in a single permutation, cut into `count` nearly equal parts.

        Each begins with what the policy remembered there. The last ones are filled up with steps that do not count.
        """
        places = torch.arange(-(-self.num_steps // length) * length, device=self.device)
        rows = places.clamp(max=self.num_steps - 1)

        def cut(stored: Tensor) -> Tensor:
            """(T, N, ...) as (L, sequences, ...)."""
            return stored.index_select(0, rows).unflatten(0, (-1, length)).transpose(0, 1).flatten(1, 2)

        real = (places == rows).view(-1, length).t().repeat_interleave(self.num_envs, dim=1)
        valid, starts = cut(self.valid) & real, cut(self.starts())
        stored = (self.obs, self.actions, self.logprobs, self.values, self.advantages, self.returns)
        columns: list[Any] = [*(mapped(cut, column) for column in stored), valid]
        states = mapped(lambda stored: stored[:-1:length].flatten(0, 1), self.states)
        total = valid.shape[1]
        order = torch.randperm(total, generator=generator, device=generator.device).to(self.device)
        for start, stop in pairwise(part * total // count for part in range(count + 1)):
            chosen = order[start:stop]

            def taken(column: Any, dim: int = 1, chosen: Tensor = chosen) -> Any:
                return mapped(lambda stored: stored.index_select(dim, chosen), column)

            if len(chosen):
                yield SequenceMinibatch(*map(taken, columns), starts=taken(starts), state=taken(states, 0))


_COLLECTED = ("obs", "actions", "rewards", "logprobs", "dones", "truncated", "goes_on", "valid")


def _copy(saved: Any, stored: ObsTensor) -> None:
    """Writes a saved tensor, or one per key, of exactly this shape and dtype."""
    if isinstance(stored, dict):
        for key, part in stored.items():
            _copy(saved[key], part)
        return
    if saved.shape != stored.shape or saved.dtype != stored.dtype:
        raise ValueError(
            f"a rollout holds {saved.dtype} {tuple(saved.shape)}, not {stored.dtype} {tuple(stored.shape)}"
        )
    stored.copy_(saved)


def _cut(rows: Any, indices: Tensor, sizes: list[int]) -> Sequence[Any]:
    """The rows at the indices, or those of each key, in parts of these sizes."""
    if isinstance(rows, dict):
        parts = [_cut(value, indices, sizes) for value in rows.values()]
        return [dict(zip(rows, part)) for part in zip(*parts)]
    return rows.index_select(0, indices).split_with_sizes(sizes)
