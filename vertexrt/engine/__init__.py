"""The engines: compile a vertex function once, run it on every batch."""
