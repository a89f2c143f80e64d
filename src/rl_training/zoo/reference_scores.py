"""Two fixed points per environment, a random policy and a target, between which scores can be put on one scale."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ReferenceScore:
    """What a score of an environment is measured against."""

    random: float
    """Mean return of uniformly random actions."""
    target: float
    """The environment's `reward_threshold` in Gymnasium; for Pendulum-v1, which has none, what our presets are held to."""

    def normalise(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """0 for a random policy, 1 at the target; neither end is a limit."""
        return (scores - self.random) / (self.target - self.random)


# Random scores: `action_space.sample()` seeded with 0, first reset seeded with 0, Gymnasium 1.4.0; 1000 episodes for CartPole,
# LunarLander and Hopper, 500 for Pendulum and LunarLanderContinuous, 200 for Acrobot, MountainCar and Ant, 50 for the others.
# Environments without a target are left out.
REFERENCE_SCORES = {
    "Acrobot-v1": ReferenceScore(-499.9, -100.0),
    "Ant-v5": ReferenceScore(-59.2, 6000.0),
    "CartPole-v1": ReferenceScore(22.6, 475.0),
    "HalfCheetah-v5": ReferenceScore(-289.3, 4800.0),
    "Hopper-v5": ReferenceScore(17.9, 3800.0),
    "LunarLander-v3": ReferenceScore(-184.7, 200.0),
    "LunarLanderContinuous-v3": ReferenceScore(-201.3, 200.0),
    "MountainCar-v0": ReferenceScore(-200.0, -110.0),
    "MountainCarContinuous-v0": ReferenceScore(-33.2, 90.0),
    "Pendulum-v1": ReferenceScore(-1223.9, -200.0),
}
