"""Update rules, one file each. The public classes (`rl_training.algorithms.PPO`) are those of the public API."""

from typing import Any


def __getattr__(name: str) -> Any:
    # Resolved on first use, so that neither torch nor the layers above load with this package.
    from rl_training.core import public_algorithm

    try:
        return public_algorithm(name)
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
