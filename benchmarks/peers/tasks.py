"""Environments of the comparison of defaults, the same for every library: flat observations, nothing scaled or shaped."""

from __future__ import annotations

from typing import Any


def make_task(name: str) -> Any:
    """One environment by its Gymnasium id; packages that register them are imported here."""
    import gymnasium as gym

    if name.startswith("MiniGrid"):
        import minigrid  # noqa: F401
        from minigrid.wrappers import ImgObsWrapper

        return gym.wrappers.FlattenObservation(ImgObsWrapper(gym.make(name)))
    if name.startswith("FlappyBird"):
        import flappy_bird_gymnasium  # noqa: F401

        return gym.make(name, use_lidar=False)
    if name.startswith("highway"):
        import highway_env  # noqa: F401

        return gym.wrappers.FlattenObservation(gym.make(name))
    return gym.make(name)
