"""Attacks on the runtime from outside, which anybody can run: `python -m tests.attacks.NAME`."""
