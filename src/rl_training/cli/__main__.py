"""`python -m rl_training.cli`."""

import sys

from rl_training.cli.main import main

sys.exit(main())
