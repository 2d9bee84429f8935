"""Input graphs and graph batches: CSR arrays of children, with pulled values by name."""

from vertexrt.graph.batch import BracketTree, GraphBatch, InputGraph
from vertexrt.graph.brackets import BracketForest, parse_brackets
from vertexrt.graph.pulls import PullValue, Rows

__all__ = [
    "BracketForest",
    "BracketTree",
    "GraphBatch",
    "InputGraph",
    "PullValue",
    "Rows",
    "parse_brackets",
]
