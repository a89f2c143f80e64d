"""Environment factory, backends, and the step contract. Free of torch: worker processes import it."""

import gymnasium as _gym

from rl_training.envs.factory import make_vector_env as make_vector_env

# By name only: the modules are imported when such an environment is made.
_gym.register("BitFlip-v0", entry_point="rl_training.envs.builtin.goal_tasks:BitFlip")
_gym.register("KeyRing-v0", entry_point="rl_training.envs.builtin.key_ring:KeyRing", max_episode_steps=25)
_gym.register("PointReach-v0", entry_point="rl_training.envs.builtin.goal_tasks:PointReach", max_episode_steps=50)
