"""Nested observations: a Dict in a Dict, or a Tuple, becomes one Dict with keys such as "arm/position" or "0".

This happens once, where an environment is made; everything behind that knows arrays and flat Dicts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces

from rl_training.utils.errors import SpaceError


def is_nested(space: spaces.Space[Any]) -> bool:
    """Whether observations of this space must be flattened."""
    if isinstance(space, spaces.Dict):
        return any(isinstance(entry, spaces.Dict | spaces.Tuple) for entry in space.spaces.values())
    return isinstance(space, spaces.Tuple)


def flat_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The Dict of all leaves of a nested space; any other space as it is."""
    if not is_nested(space):
        return space
    leaves: dict[str, spaces.Space[Any]] = {}
    for key, leaf in _leaves(space):
        if key in leaves:
            raise SpaceError(
                f"two entries of the observation space are called {key!r} once it is flattened: rename one of them."
            )
        leaves[key] = leaf
    return spaces.Dict(leaves)


def flat_obs(obs: Any) -> Any:
    """A nested observation, or a batch of them, as a flat mapping; arrays and numbers as they are."""
    if isinstance(obs, Mapping | tuple):
        return dict(_leaves(obs))
    return obs


def _leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """(key, leaf) pairs of a space or an observation, in order."""
    if isinstance(tree, Mapping | spaces.Dict):
        parts = [*tree.items()]
    elif isinstance(tree, tuple | spaces.Tuple):
        parts = [*enumerate(tree)]
    else:
        return [(path, tree)]
    return [pair for key, part in parts for pair in _leaves(part, f"{path}/{key}" if path else str(key))]
