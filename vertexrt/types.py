"""Classes of what calls return: for annotations, since nobody makes them by hand."""

from vertexrt.api.checkpoint import Checkpoint
from vertexrt.api.decoder import Generated
from vertexrt.api.network import Plan, Record
from vertexrt.engine.lazy import Loss, Outputs
from vertexrt.engine.results import Gradients

__all__ = ["Checkpoint", "Generated", "Gradients", "Loss", "Outputs", "Plan", "Record"]
