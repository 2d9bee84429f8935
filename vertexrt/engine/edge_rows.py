"""What the edges of a batch have of a pull, as a program reads them."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.engine.structure import Structure
from vertexrt.graph import GraphBatch
from vertexrt.ir.program import Program

Array = np.ndarray[Any, Any]


def in_slot(own: Array, edge: Array) -> Array:
    """Return what vertices have of a pull of edges, each that of one edge; none for -1."""
    if not len(own):
        return np.full(len(edge), -1, np.int32)
    return np.where(edge >= 0, own[np.maximum(edge, 0)], -1)


def edges_read(batch: GraphBatch, structure: Structure) -> Array:
    """Return the batch's number of each edge that is read."""
    if structure.edge_of is not None:
        return structure.edge_of
    return np.arange(batch.num_edges)


def _relations(program: Program, structure: Structure, parent: Array) -> Array:
    """Return the number of each edge's relation, of those that its parent reads whole; else -1."""
    edge = np.arange(len(parent))
    if len(structure.first_of):
        first = structure.first_of[:-1].reshape(len(structure.child_ptr) - 1, -1)[parent]
        begun: Array = (first <= edge[:, None]).sum(axis=1)
        return begun - 1
    slots = np.array([site.slots for site in program.sites])[structure.functions[parent]]
    return np.where(edge - structure.child_ptr[parent] >= slots, 0, -1)


def rows_of_edges(
    program: Program, pulled: Array, structure: Structure, values: Array, edges: Array
) -> Array:
    """Return what edges have of a pull, -1 in empty slots and where their parent does not pull it.

    Args:
        pulled: bool [functions, relations + 1], which of them pull it: see `Reader.of_relations`.
        values: of the batch's edges, none for -1; edges: which of them are read.
    """
    if not len(values):
        return np.full(len(edges), -1, np.int32)
    own = np.where(structure.child >= 0, values[edges], -1)
    if program.sites:
        parent = parents(structure)
        relation = _relations(program, structure, parent)
        own[~pulled[structure.functions[parent], relation]] = -1
    return own


def parents(structure: Structure) -> Array:
    """Return the parent of each edge."""
    return np.repeat(np.arange(len(structure.child_ptr) - 1), np.diff(structure.child_ptr))
