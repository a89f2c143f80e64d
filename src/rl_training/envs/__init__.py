"""Environment factory, backends, and the step contract. Free of torch: worker processes import it."""

from rl_training.envs.factory import make_vector_env as make_vector_env
