"""Environments of our own; the machinery in `envs/` knows them by name."""
