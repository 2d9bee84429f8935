"""Memory: dynamic tensors and the plan that gives them their place in one arena."""

from vertexrt.memory.compiled import place_tensors
from vertexrt.memory.plan import MemoryPlan
from vertexrt.memory.tensors import TensorSpec, TensorTable

__all__ = ["MemoryPlan", "TensorSpec", "TensorTable", "place_tensors"]
