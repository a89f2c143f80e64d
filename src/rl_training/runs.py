"""Short import path of the run directory: `from rl_training.runs import make_run_dir`."""

from rl_training.experiment.run.run_dir import make_run_dir as make_run_dir
