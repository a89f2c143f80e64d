"""Action masks: which of the actions are valid in a state, as one entry of a Dict observation. Free of torch.

However an environment says it, behind the factory a mask is the entry of a Dict observation space that is an `ActionMask`. So it
goes wherever observations go (workers, final observations, buffers, checkpoints), and needs no path of its own. Encoders leave it
out, policies rule out what it says.

Shapes: N environments, n choices over all dimensions of an action, k dimensions (1 for Discrete).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.utils.errors import SpaceError

Array = np.ndarray[Any, Any]

MASK_KEY = "action_mask"
"""Where environments put masks: an entry of a Dict observation, or of an info."""
OBSERVATION_KEY = "observation"
"""Where an observation goes that was no Dict before it got a mask."""
METHOD = "action_masks"
"""The method by which an environment may say them, as in sb3-contrib."""


class ActionMask(spaces.MultiBinary):
    """1 where a choice is valid, (n,) int8. For MultiDiscrete actions all dimensions side by side, `sizes[i]` of the i-th."""

    def __init__(self, sizes: Sequence[int]):
        self.sizes = tuple(sizes)
        super().__init__(sum(self.sizes))

    @classmethod
    def of(cls, action_space: spaces.Space[Any]) -> ActionMask | None:
        """The masks of an action space; None where nothing is chosen from a list."""
        if isinstance(action_space, spaces.Discrete):
            return cls((int(action_space.n),))
        if isinstance(action_space, spaces.MultiDiscrete):
            return cls([int(size) for size in action_space.nvec.ravel()])
        return None

    @property
    def starts(self) -> Array:
        """(k,) where each dimension's choices begin."""
        return np.cumsum(self.sizes) - self.sizes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionMask) and self.sizes == other.sizes

    def __repr__(self) -> str:
        return f"ActionMask({', '.join(map(str, self.sizes))})"

    def flat(self, mask: Any) -> Array:
        """A mask as an environment or a user gives it as (n,) int8: one array, or one for each dimension. ValueError otherwise."""
        parts = mask if isinstance(mask, list | tuple | np.ndarray) and np.shape(mask[:1]) != (1,) else ()
        if len(self.sizes) > 1 and len(parts) > 0:
            lengths = tuple(np.size(part) for part in parts)
            if lengths != self.sizes:
                raise ValueError(f"masks of lengths {lengths} for dimensions of {self.sizes}")
            mask = np.concatenate([np.ravel(part) for part in parts])
        array = np.asarray(mask)
        if array.shape != self.shape:
            raise ValueError(f"a mask of shape {array.shape} for {self._choices()}")
        if array.dtype != np.bool_ and not (array.dtype.kind in "iuf" and ((array == 0) | (array == 1)).all()):
            raise ValueError(f"a mask of dtype {array.dtype} with other values than 0 and 1 (False and True)")
        return array.astype(np.int8)

    def without_choice(self, masks: Array) -> Array:
        """(..., k) bool: where a dimension has no valid choice, of masks (..., n)."""
        return ~np.logical_or.reduceat(masks != 0, self.starts, axis=-1)

    def allowed(self, masks: Array, actions: Array) -> Array:
        """(N,) bool: whether actions (N,) or (N, k), counted from 0, are valid under masks (N, n)."""
        choices = actions.reshape(len(actions), -1) + self.starts
        return np.logical_and.reduce(np.take_along_axis(masks, choices, axis=-1) != 0, axis=-1)

    def pick(self, masks: Array, uniform: Array) -> Array:
        """Valid actions (N, k) int64, each with the same chance, from numbers (N, k) that are uniform in [0, 1).

        The j-th valid choice of a dimension stands behind all places up to which there are at most j.
        """
        picked = []
        for start, size, numbers in zip(self.starts, self.sizes, uniform.T):
            counted = (masks[:, start : start + size] != 0).cumsum(axis=-1)
            wanted = np.minimum((numbers * counted[:, -1]).astype(np.int64), counted[:, -1] - 1)
            picked.append((counted <= wanted[:, None]).sum(axis=-1))
        return np.stack(picked, axis=-1).astype(np.int64)

    def _choices(self) -> str:
        return f"{self.sizes[0]} actions" if len(self.sizes) == 1 else f"{sum(self.sizes)} choices {self.sizes}"


def mask_key(space: spaces.Space[Any]) -> str | None:
    """The entry of an observation space that is an action mask; None if it has none."""
    if isinstance(space, spaces.Dict):
        return next((key for key, entry in space.spaces.items() if isinstance(entry, ActionMask)), None)
    return None


def mask_space(space: spaces.Space[Any]) -> ActionMask | None:
    """The action mask in an observation space."""
    key = mask_key(space)
    found = None if key is None else space[key]  # type: ignore[index]
    assert found is None or isinstance(found, ActionMask)
    return found


def visible_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """What a network reads of an observation: all of it but the mask. A single entry that is left stands for itself."""
    key = mask_key(space)
    if key is None:
        return space
    assert isinstance(space, spaces.Dict)
    rest = {name: entry for name, entry in space.spaces.items() if name != key}
    if not rest:
        raise SpaceError(
            f"The observation has no entry beside {key!r}, which is a mask: there is nothing to learn from."
        )
    return next(iter(rest.values())) if len(rest) == 1 else spaces.Dict(rest)


def with_mask_space(space: spaces.Space[Any], mask: ActionMask) -> spaces.Dict:
    """An observation space with the mask as an entry, in place of the entry of that name if there is one."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({**space.spaces, MASK_KEY: mask})
    return spaces.Dict({OBSERVATION_KEY: space, MASK_KEY: mask})
