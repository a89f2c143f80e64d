"""AxiomRL: reinforcement learning with exact resume, safe checkpoints, right episode ends and measured scores.

from rl_training import PPO
agent = PPO("CartPole-v1", seed=0)
agent.learn(total_timesteps=100_000)
"""

from typing import TYPE_CHECKING, Any

from rl_training.version import __version__ as __version__

if TYPE_CHECKING:
    from rl_training.api.agent import Agent as Agent
    from rl_training.api.agent import agent_class as agent_class
    from rl_training.api.agent import load_agent as load_agent
    from rl_training.api.agent import register_algorithm as register_algorithm
    from rl_training.contrib import *  # noqa: F403
    from rl_training.core import *  # noqa: F403  # the agents, as core.pyi types them
    from rl_training.envs.check import check_env as check_env
    from rl_training.envs.wrappers import register_wrapper as register_wrapper
    from rl_training.experiment.config.train_config import TrainConfig as TrainConfig
    from rl_training.experiment.proof.conformance import check_algorithm as check_algorithm
    from rl_training.experimental import *  # noqa: F403
    from rl_training.policies.encoder_registry import register_encoder as register_encoder
    from rl_training.runtime.callbacks import Callback as Callback

_LAZY = {
    "Agent": "rl_training.api.agent",
    "Callback": "rl_training.runtime.callbacks",
    "TrainConfig": "rl_training.experiment.config.train_config",
    "agent_class": "rl_training.api.agent",
    "check_algorithm": "rl_training.experiment.proof.conformance",
    "check_env": "rl_training.envs.check",
    "load_agent": "rl_training.api.agent",
    "register_algorithm": "rl_training.api.agent",
    "register_encoder": "rl_training.policies.encoder_registry",
    "register_wrapper": "rl_training.envs.wrappers",
}


if not TYPE_CHECKING:  # a type checker would take any name for an attribute

    def __getattr__(name: str) -> Any:
        # Resolved on first use: `import rl_training` must not import torch.
        import importlib

        if name in _LAZY:
            return getattr(importlib.import_module(_LAZY[name]), name)
        from rl_training.core import public_algorithm

        try:
            return public_algorithm(name)
        except KeyError:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    from rl_training.experiment.registry import BUILT_IN

    return sorted(["__doc__", "__version__", *_LAZY, *(info.name for info in BUILT_IN.values())])
