"""`python scripts/train.py` is `axiomrl train`, for those who run from a checkout."""

import sys

from rl_training.cli import main

sys.exit(main(["train", *sys.argv[1:]]))
