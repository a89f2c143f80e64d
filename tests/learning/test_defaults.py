"""The defaults of every algorithm learn, without a preset. A small task here; results/defaults/ has the classic ones."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training.api.agent import agent_class
from rl_training.experiment.registry import BUILT_IN, load

LENGTH, BLIND = 10, 5.0
"""Steps of an episode, and what the best action gets that does not look: one of the two, or 0."""


class Follow(gym.Env[Any, Any]):
    """Each step shows a number between −1 and 1; the right action is whether it is far from 0, or the number itself. Returns are at
    most 10."""

    def __init__(self, discrete: bool):
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.discrete = discrete

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        shown = float(self.shown[0])
        reward = float(action == (abs(shown) > 0.5)) if self.discrete else 1.0 - abs(float(action[0]) - shown)
        self.steps += 1
        return self._show(), reward, self.steps == LENGTH, False, {}

    def _show(self) -> Any:
        self.shown = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.shown


STEPS = {
    **dict.fromkeys(("ppo", "a2c", "recurrent_ppo", "trpo"), 20_480),
    **dict.fromkeys(("sac", "td3", "ddpg", "tqc"), 1_500),
    "crossq": 1_400,
    **dict.fromkeys(("redq", "droq"), 1_080),
}
"""After a thousand random steps the off-policy ones make some hundreds of updates; REDQ and DroQ twenty in each step."""


@pytest.mark.parametrize("algo", BUILT_IN)
def test_the_defaults_of_every_algorithm_learn(algo: str) -> None:
    discrete = "Discrete" in load(algo).action_spaces
    steps = STEPS.get(algo, 3_000)
    agent = agent_class(algo)(Follow, seed=0, env={"kwargs": {"discrete": discrete}}, device="cpu")
    assert agent.evaluate(50).mean < BLIND + 1.0
    agent.learn(total_timesteps=steps)
    assert agent.evaluate(50).mean > BLIND + 1.5
