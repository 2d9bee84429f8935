"""Attacks that anybody can run: each counts what it tried and what went wrong."""
