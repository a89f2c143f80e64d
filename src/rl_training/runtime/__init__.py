"""The outer loop: collect, update, evaluate, stop, report. No loss math, no file layout."""
