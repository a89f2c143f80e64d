"""Utilities every layer may use: errors, seeding, spaces, schedules, numerics."""
