"""Observations as a user hands them over: one, or a batch of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.utils.errors import SpaceError
from rl_training.utils.images import image_layout, in_channel_order
from rl_training.utils.nested import flat_obs


def as_batch(observation: Any, space: Any) -> tuple[Any, bool]:
    """(batch, whether it was a single observation); a wrong shape is the caller's mistake and is named.

    Nested observations, in the environment's own form, are flattened as training does.
    """
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
