"""Peers, what the papers show, and single questions: `python -m benchmarks.NAME`."""
