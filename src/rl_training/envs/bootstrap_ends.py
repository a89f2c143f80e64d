"""Steps after which nothing more is worth anything to the learner, although the episode goes on: a lost life, above all."""

BOOTSTRAP_ENDS = "bootstrap_ends"
"""The key of an environment's `info` that says so. Values are not bootstrapped over such a step; statistics, evaluation and
resets do not see it."""
