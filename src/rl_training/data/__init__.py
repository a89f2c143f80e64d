"""Buffers that keep temporal structure, and the return estimators that work on them."""
