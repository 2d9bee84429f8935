"""Scheduling: from the graphs of a batch to batching tasks, and rows in execution order."""

from vertexrt.scheduler.schedule import POLICIES, Schedule, policy_of

__all__ = ["POLICIES", "Schedule", "policy_of"]
