"""A mark for tests that compile updates."""

import pytest
import torch

from rl_training.experiment.compiler import compiling_problem

_PROBLEM = compiling_problem(torch.device("cpu"))
needs_compiler = pytest.mark.skipif(_PROBLEM is not None, reason=str(_PROBLEM))
