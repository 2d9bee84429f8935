"""Memory: dynamic tensors and the plan that gives them their place in one arena."""

from vertexrt.memory.plan import MemoryPlan, plan_memory
from vertexrt.memory.tensors import TensorSpec, TensorTable

__all__ = ["MemoryPlan", "TensorSpec", "TensorTable", "plan_memory"]
