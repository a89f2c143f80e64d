"""Short import path of the config: `from rl_training.config import TrainConfig`."""

from rl_training.envs.config import EnvConfig as EnvConfig
from rl_training.experiment.config import CheckpointConfig as CheckpointConfig
from rl_training.experiment.config import EvaluationConfig as EvaluationConfig
from rl_training.experiment.config import LoggingConfig as LoggingConfig
from rl_training.experiment.config import StoppingConfig as StoppingConfig
from rl_training.experiment.config import TrainConfig as TrainConfig
from rl_training.experiment.config_loader import load_config as load_config
from rl_training.policies.config import PolicyConfig as PolicyConfig
