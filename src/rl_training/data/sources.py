"""Where an algorithm's batches come from: a replay buffer, a dataset, or a mixture of such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.data.replay_buffer import ReplayBuffer, TransitionBatch
from rl_training.data.replay_ring import with_finite_ends
from rl_training.execution.batches import ObsTensor, mapped
from rl_training.utils.errors import CheckpointError, UserError
from rl_training.utils.schedules import Schedule, schedule_value
from rl_training.utils.spaces import Array, Observation, map_obs


class BatchSource(Protocol):
    """Gives batches of transitions and is told what an update made of them."""

    def __len__(self) -> int:
        """Transitions that it can draw from."""

    def sample(self, batch_size: int, progress: float) -> TransitionBatch:
        """B transitions; `progress` in [0, 1] is for schedules."""

    def feedback(self, batch: TransitionBatch, errors: Tensor) -> None:
        """The absolute errors (B,) of a batch it has given."""

    def state_dict(self) -> dict[str, Any]:
        """What it takes to draw on as if nothing had happened, but for stored experience, which is saved apart."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class ReplaySource:
    """Draws from a replay buffer, which is saved apart because it is large."""

    def __init__(self, buffer: ReplayBuffer, beta: float | Schedule = 1.0):
        """`beta` is the strength of the importance weights of prioritised sampling."""
        self.buffer, self._beta = buffer, beta

    def __len__(self) -> int:
        return len(self.buffer)

    def sample(self, batch_size: int, progress: float) -> TransitionBatch:
        return self.buffer.sample(batch_size, schedule_value(self._beta, progress))

    def feedback(self, batch: TransitionBatch, errors: Tensor) -> None:
        if self.buffer.prioritization is not None:
            self.buffer.update_priorities(batch.indices, errors)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class TransitionDataset:
    """Transitions that were collected before, in memory, drawn uniformly from a random stream of its own."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        obs: Observation,
        actions: Array,
        rewards: Array,
        next_obs: Observation,
        terminated: Array,
        gamma: float = 0.99,
        seed: int = 0,
    ):
        """Arrays (T, ...), each row a transition; actions are in policy form (see `ActionAdapter`)."""
        self.observation_space, self.action_space, self.gamma = observation_space, action_space, gamma
        lengths = {len(rewards), len(actions), len(terminated)}
        map_obs(lambda array: lengths.add(len(array)), obs)
        map_obs(lambda array: lengths.add(len(array)), next_obs)
        if len(lengths) != 1 or lengths == {0}:
            raise UserError(
                f"a dataset needs equally many rows of each kind, and at least one; it has {sorted(lengths)}"
            )
        self._obs: ObsTensor = map_obs(torch.from_numpy, obs)
        ended = torch.from_numpy(np.asarray(terminated, dtype=np.bool_))
        self._next_obs = with_finite_ends(map_obs(torch.from_numpy, next_obs), self._obs, ended)
        self._actions = torch.from_numpy(np.asarray(actions))
        self._rewards = torch.from_numpy(np.asarray(rewards, dtype=np.float32))
        self._discounts = torch.from_numpy(np.where(terminated, 0.0, gamma).astype(np.float32))
        self._rng = np.random.Generator(np.random.PCG64(seed))

    def __len__(self) -> int:
        return len(self._rewards)

    def sample(self, batch_size: int, progress: float) -> TransitionBatch:
        indices = self._rng.integers(len(self), size=batch_size)
        rows = torch.from_numpy(indices)
        return TransitionBatch(
            obs=mapped(lambda stored: stored[rows], self._obs),
            actions=self._actions[rows],
            rewards=self._rewards[rows],
            next_obs=mapped(lambda stored: stored[rows], self._next_obs),
            discounts=self._discounts[rows],
            weights=torch.ones(batch_size),
            indices=indices,
        )

    def feedback(self, batch: TransitionBatch, errors: Tensor) -> None:
        """All transitions stay equally likely."""

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._rng.bit_generator.state, "size": len(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["size"] != len(self):
            raise CheckpointError(
                f"the run was saved with a dataset of {state['size']} transitions, this one has {len(self)}"
            )
        self._rng.bit_generator.state = state["generator"]


class MixtureSource:
    """Takes a fixed share of each batch from each of several sources."""

    def __init__(self, parts: Sequence[tuple[BatchSource, float]]):
        """Sources and their shares, which add up to 1."""
        total = sum(share for _, share in parts)
        if not parts or abs(total - 1.0) > 1e-9 or any(share <= 0 for _, share in parts):
            raise UserError(
                f"the shares of a mixture must be above 0 and add up to 1, not {[share for _, share in parts]}"
            )
        self._sources, self._shares = [source for source, _ in parts], [share for _, share in parts]

    def __len__(self) -> int:
        return min(len(source) for source in self._sources)

    def _parts(self, batch_size: int) -> list[tuple[BatchSource, slice]]:
        """Each source and its rows of a batch; one without a row is left out."""
        bounds = np.round(np.cumsum([0.0, *self._shares]) * batch_size).astype(int)
        rows = [slice(int(start), int(stop)) for start, stop in pairwise(bounds)]
        return [(source, part) for source, part in zip(self._sources, rows) if part.stop > part.start]

    def sample(self, batch_size: int, progress: float) -> TransitionBatch:
        batches = [source.sample(part.stop - part.start, progress) for source, part in self._parts(batch_size)]

        def joined(name: str) -> Any:
            values = [getattr(batch, name) for batch in batches]
            if isinstance(values[0], dict):
                return {key: torch.cat([value[key] for value in values]) for key in values[0]}
            return np.concatenate(values) if isinstance(values[0], np.ndarray) else torch.cat(values)

        return TransitionBatch(**{field.name: joined(field.name) for field in fields(TransitionBatch)})

    def feedback(self, batch: TransitionBatch, errors: Tensor) -> None:
        for source, part in self._parts(len(errors)):
            rows = itemgetter(part)
            source.feedback(mapped(rows, batch, rows), errors[part])

    def state_dict(self) -> dict[str, Any]:
        return {"sources": [source.state_dict() for source in self._sources]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for source, saved in zip(self._sources, state["sources"], strict=True):
            source.load_state_dict(saved)
