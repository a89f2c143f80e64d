"""Short import path of the config: `from rl_training.config import TrainConfig`."""

from rl_training.envs.env_config import EnvConfig as EnvConfig
from rl_training.experiment.config.loader import load_config as load_config
from rl_training.experiment.config.train_config import CheckpointConfig as CheckpointConfig
from rl_training.experiment.config.train_config import EvaluationConfig as EvaluationConfig
from rl_training.experiment.config.train_config import LoggingConfig as LoggingConfig
from rl_training.experiment.config.train_config import StoppingConfig as StoppingConfig
from rl_training.experiment.config.train_config import TrainConfig as TrainConfig
from rl_training.experiment.config.train_config import VideoConfig as VideoConfig
from rl_training.policies.policy_config import PolicyConfig as PolicyConfig
