"""AxiomRL: reinforcement learning with exact resume, safe checkpoints, right episode ends and measured scores.

from rl_training import PPO
agent = PPO("CartPole-v1", seed=0)
agent.learn(total_timesteps=100_000)
"""

from typing import TYPE_CHECKING, Any

from rl_training._version import __version__ as __version__

if TYPE_CHECKING:
    from rl_training.api.agent import load_agent as load_agent
    from rl_training.experiment.config.train_config import TrainConfig as TrainConfig
    from rl_training.experiment.proof.conformance import check_algorithm as check_algorithm
    from rl_training.runtime.callbacks import Callback as Callback

_LAZY = {
    "Callback": "rl_training.runtime.callbacks",
    "TrainConfig": "rl_training.experiment.config.train_config",
    "check_algorithm": "rl_training.experiment.proof.conformance",
    "load_agent": "rl_training.api.agent",
}


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
