"""Scheduling: from the graphs of a batch to batching tasks, and rows in execution order."""

from vertexrt.scheduler.schedule import POLICIES, Schedule, make_schedule, policy_of

__all__ = ["POLICIES", "Schedule", "make_schedule", "policy_of"]
