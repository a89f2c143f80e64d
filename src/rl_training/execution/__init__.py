"""How a step runs: as written, or recorded and repeated. Never what it computes."""
