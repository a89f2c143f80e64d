"""The public classes: `PPO("CartPole-v1").learn()` and friends."""
