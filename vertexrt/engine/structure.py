"""Read the structure of a batch as a program takes it: children by slot, functions of vertices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.errors import GraphError, nearest
from vertexrt.graph import GraphBatch
from vertexrt.graph.batch import fields_of
from vertexrt.graph.types import VertexTypes
from vertexrt.ir.program import FunctionSite, Program, Pull
from vertexrt.scheduler.arrange import ALL, ARRANGED, NOT_READ, SECOND_CHILD, arrange

IntArray = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
NO_FUNCTIONS = np.zeros(0, np.int32)


class Structure(NamedTuple):
    """The graphs of a batch as a program reads them.

    Attributes:
        child_ptr: int32 [V + 1]; child: int32 [E]: the child in each slot of each vertex.
        functions: int32 [V], which function each vertex evaluates; empty, where there is one.
        edge_of: int32 [E], which edge of the batch each is, -1 in an empty slot; None, where they
            are the same, or nothing of edges is read.
        first_of: int32 [V R + 1], where R relations are read whole, and R > 1, the first edge of
            each vertex in each of them; else empty.
    """

    child_ptr: IntArray
    child: IntArray
    functions: IntArray
    edge_of: IntArray | None = None
    first_of: IntArray = NO_FUNCTIONS


def read_structure(program: Program, batch: GraphBatch) -> Structure:
    """Return the graphs of a batch as a program reads them.

    Raises: GraphError, when the batch has no vertex types and the network has several functions,
        or the other way round; when a type or a relation is unknown; or when a child has another
        type than its relation says, or is the second of a relation that has one.
    """
    _, child_ptr, child, _, types, _ = fields_of(batch)
    if types is None and not program.sites:
        return Structure(child_ptr, child, NO_FUNCTIONS)
    if types is None or not program.sites:
        if types is None:
            got = "the batch has no vertex types"
            expected = f"{program.name} has the types {', '.join(s.name for s in program.sites)}"
            action = "build graphs with InputGraph.from_types"
        else:
            got = f"the batch has the vertex types {', '.join(types.names)}"
            expected = f"{program.name} is one vertex function"
            action = "build graphs without types, or compile a vrt.Model of several functions"
        raise GraphError.at("vertex types", got, expected, action)
    function_of, rules = _slots(program.sites, types.names, types.relations)
    for number, name in enumerate(types.names):
        if function_of[number] < 0 and (types.of_vertex == number).any():
            own = [site.name for site in program.sites]
            raise GraphError.at(
                "vertex types",
                f"the batch has vertices of type {name!r}",
                f"{program.name} has the types {', '.join(own)}",
                f"rename the type, or leave its vertices out.{nearest(name, own)}",
            )
    lists_edges = any(pull.of_edges for pull in program.pulls)
    functions: IntArray = function_of.take(types.of_vertex)
    graph, reads = (child_ptr, child, functions, types.of_edge), (lists_edges, program.relations)
    found, vertex, relation, out_ptr, out, edge_of, first_of = arrange(*graph, rules, *reads)
    if found != ARRANGED:
        raise _misplaced(program, batch, types, found, vertex, relation)
    return Structure(out_ptr, out, functions, edge_of if lists_edges else None, first_of)


def edges_in_slot(program: Program, pull: Pull, structure: Structure) -> Int64:
    """Return the edge to the child in the slot that a pull is of: [V], -1 where there is none."""
    child_ptr, child, functions, edge_of, _ = structure
    one_child = [site.relations[: site.slots] for site in program.sites]
    at = [each.index(pull.of) if pull.of in each else -1 for each in one_child]
    slots = np.array(at or [int(pull.of)])
    slot = slots[functions] if len(functions) else np.repeat(slots, len(child_ptr) - 1)
    found = np.full(len(slot), -1, np.int64)
    there = np.flatnonzero((slot >= 0) & (child_ptr[:-1] + slot < child_ptr[1:]))
    place = child_ptr[there] + slot[there]
    edges = place if edge_of is None else edge_of[place]
    found[there] = np.where(child[place] >= 0, edges, -1)
    return found


@lru_cache(maxsize=64)
def _slots(
    sites: tuple[FunctionSite, ...], names: tuple[str, ...], relations: tuple[str, ...]
) -> tuple[IntArray, tuple[Int64, npt.NDArray[np.bool_], Int64]]:
    """Find how a network reads the types and relations of a batch.

    Returns: int32 [types] the function of each, -1 for a type that the network does not have; and
        `rules` of `arrange`.
    """
    own = [site.name for site in sites]
    function_of = np.array([own.index(n) if n in own else -1 for n in names], np.int32)
    slots = np.full((len(sites), len(relations)), NOT_READ, np.int64)
    allowed = np.zeros((len(sites), len(relations), len(sites)), np.bool_)
    begins = np.zeros(len(sites), np.int64)
    for f, site in enumerate(sites):
        begins[f] = site.slots if site.every else 0
        if site.name in names:
            for slot, relation in enumerate(site.relations):
                if relation not in relations:  # a slip of the pen is no zero
                    raise GraphError.at(
                        "relations",
                        f"{site.name} reads the relation {relation!r}, which the batch does not "
                        "name",
                        f"the batch has the relations {', '.join(relations) or 'none'}",
                        f"give its edges, [] where there are none.{nearest(relation, relations)}",
                    )
                at = relations.index(relation)
                slots[f, at] = slot if slot < site.slots else ALL + slot - site.slots
                allowed[f, at, list(site.children[slot])] = True
    return function_of, (slots, allowed, begins)


def _misplaced(
    program: Program, batch: GraphBatch, types: VertexTypes, found: int, vertex: int, number: Any
) -> GraphError:
    """Say which child a vertex may not have."""
    name, relation = types.names[types.of_vertex[vertex]], types.relations[number]
    site = next(site for site in program.sites if site.name == name)
    # As the user knows it: its number among the vertices of its type in its graph.
    graph = int(np.searchsorted(batch.graph_ptr, vertex, side="right")) - 1
    mine = types.of_vertex[batch.graph_ptr[graph] : vertex]
    where = f"{name} {int((mine == types.of_vertex[vertex]).sum())} of graph {graph}"
    if found == SECOND_CHILD:
        got = f"{where} has two children in the relation {relation!r}"
        expected = f"one, since {name} reads it by gather({relation!r})"
        action = "leave one out, or read all of them by gather_all"
    else:
        edges = slice(*batch.child_ptr[vertex : vertex + 2])
        children = batch.child[edges][types.of_edge[edges] == number]
        owners = [program.sites[c].name for c in site.children[site.relations.index(relation)]]
        kinds = {types.names[kind] for kind in types.of_vertex[children]}
        got = f"{where} has a child of type {', '.join(sorted(kinds - {*owners}))} in {relation!r}"
        expected = f"a child of type {' or '.join(owners)}"
        action = "correct the edge, or name the type in inputs"
    return GraphError.at("vertex types", got, expected, action)
