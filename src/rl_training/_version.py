"""Until `zoo/` imports `rl_training.version`, which holds the version."""

from rl_training.version import __version__ as __version__
