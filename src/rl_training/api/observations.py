"""Observations as a user hands them over: one, or a batch of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.utils.action_masks import OBSERVATION_KEY, ActionMask, mask_key
from rl_training.utils.errors import SpaceError, UserError
from rl_training.utils.images import image_layout, in_channel_order
from rl_training.utils.nested import flat_obs


def as_batch(observation: Any, space: Any, action_masks: Any = None) -> tuple[Any, bool]:
    """(batch, whether it was a single observation); a wrong shape is the caller's mistake and is named.

    Nested observations, in the environment's own form, are flattened as training does, and masks become a part of them.
    """
    key = mask_key(space)
    if key is not None:
        return _with_masks(observation, space, key, action_masks)
    if action_masks is not None:
        raise UserError("the agent was made for an environment without action masks: leave out action_masks.")
    if isinstance(space, spaces.Dict):
        observation = flat_obs(observation)
    if isinstance(observation, Mapping):
        if not hasattr(space, "spaces") or set(observation) != set(space.spaces):
            raise SpaceError(f"the observation has keys {sorted(observation)}, the agent was trained on {space}")
        parts = {key: as_batch(observation[key], sub) for key, sub in space.spaces.items()}
        singles = {single for _, single in parts.values()}
        if len(singles) != 1:
            raise SpaceError("some entries of the observation are batched and some are not")
        return {key: batch for key, (batch, _) in parts.items()}, singles.pop()
    try:
        array = np.asarray(observation, dtype=getattr(space, "dtype", None))
    except (TypeError, ValueError) as error:
        raise SpaceError(f"the observation is not a number array that fits {space}: {error}") from error
    array = in_channel_order(array, space)
    shape = getattr(space, "shape", None)
    if array.shape == shape:
        return array[None], True
    if shape is not None and array.shape[1:] == shape and array.ndim == len(shape) + 1:
        return array, False
    either = " or with its channels first" if image_layout(space) is not None else ""
    raise SpaceError(
        f"an observation of shape {array.shape} does not fit: the agent was trained on {shape}{either}, a batch of which has shape "
        f"(B, {', '.join(map(str, shape or ()))})"
    )


def _with_masks(observation: Any, space: spaces.Dict, key: str, action_masks: Any) -> tuple[Any, bool]:
    """The batch with its masks: given apart, or as the environment's own entry of a Dict observation."""
    rest = spaces.Dict({name: entry for name, entry in space.spaces.items() if name != key})
    if isinstance(observation, Mapping) and key in observation:
        if action_masks is not None:
            raise UserError(f"the observation has an entry {key!r} already: leave out action_masks.")
        action_masks = observation[key]
        observation = {name: value for name, value in observation.items() if name != key}
    elif not isinstance(observation, Mapping) and set(rest.spaces) == {OBSERVATION_KEY}:
        observation = {OBSERVATION_KEY: observation}
    batch, single = as_batch(observation, rest)
    count = len(next(iter(batch.values())))
    mask = space[key]
    assert isinstance(mask, ActionMask)
    if action_masks is None:
        warnings.warn(
            "predict was given no action masks, so every action counts as valid, also what the environment would refuse: "
            "predict(observation, action_masks=env.action_masks()) or action_masks=info['action_mask'].",
            stacklevel=5,
        )
        return {**batch, key: np.ones((count, *mask.shape), np.int8)}, single
    try:
        masks = np.stack([mask.flat(row) for row in ([action_masks] if single else action_masks)])
    except (TypeError, ValueError) as error:
        raise UserError(f"action_masks do not fit: {error}. Give one mask for each observation.") from error
    if len(masks) != count:
        raise UserError(f"there are {len(masks)} action masks for {count} observations")
    empty = mask.without_choice(masks).any(axis=-1)
    if empty.any():
        raise UserError(f"action_masks: no action is valid for observation {int(np.flatnonzero(empty)[0])}")
    return {**batch, key: masks}, single
