"""Presets, benchmark manifests, results and reports: curated, never a second runtime."""
