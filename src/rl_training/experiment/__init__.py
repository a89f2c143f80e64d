"""Runs as experiments: config, run directory, metadata, checkpoints, logging, registry, and the wiring of a run."""
