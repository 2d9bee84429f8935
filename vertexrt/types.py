"""Classes of what calls return: for annotations, since nobody makes them by hand."""

from vertexrt.api.checkpoint import Checkpoint
from vertexrt.api.network import Plan, Record
from vertexrt.engine.lazy import Loss, Outputs
from vertexrt.engine.results import Gradients

__all__ = ["Checkpoint", "Gradients", "Loss", "Outputs", "Plan", "Record"]
