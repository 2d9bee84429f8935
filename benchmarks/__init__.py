"""Comparisons and ablations; each module is run with `python -m benchmarks.NAME`."""
