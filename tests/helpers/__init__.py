"""Environments and small tools that the tests share."""
