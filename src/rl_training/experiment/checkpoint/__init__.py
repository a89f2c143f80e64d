"""Checkpoints: what is in them, how they are written, and how they come back."""
