"""One run: its folder, wiring, session, logs and signals."""
