"""Memory: dynamic tensors and the plan that gives them their place in one arena."""

from vertexrt.memory.plan import MemoryPlan, TensorSpec, TensorTable, place_tensors

__all__ = ["MemoryPlan", "TensorSpec", "TensorTable", "place_tensors"]
