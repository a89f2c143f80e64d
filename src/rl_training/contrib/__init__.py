"""Contributed algorithms; none are shipped yet."""
