"""What is known of a policy before it is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gymnasium import spaces

from rl_training.policies.policy_config import PolicyConfig


@dataclass(frozen=True)
class PolicySpec:
    """The spaces a policy connects, and the settings of its networks."""

    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    config: PolicyConfig
    normalize_observations: bool = False
    normalize_rewards: bool = False
