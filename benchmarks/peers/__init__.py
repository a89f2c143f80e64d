"""One script per library. Each runs in that library's own virtual environment, so it imports nothing of the others."""
