"""Proofs: that an algorithm keeps its promises, and that a resume is exact."""
