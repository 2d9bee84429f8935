"""Arrange the children of typed vertices by the slots of their functions.

In a batch an edge has a relation; a function reads children by slot, and after its slots all
children of some relations, one relation after the other. What a function does not read is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

ARRANGED, SECOND_CHILD, OF_OTHER_TYPE = range(3)  # what `arrange` may find
NOT_READ = -1  # in place of a slot
ALL = 1 << 10  # of the first relation whose children are all read; the others count on from it


@compiled
def arrange(
    child_ptr: Array,
    child: Array,
    functions: Array,
    relations: Array,
    rules: tuple[Array, Array, Array],
    lists_edges: bool,
    whole: int,
) -> tuple[Any, ...]:
    """Write the children of each vertex in the slots of its function.

    Args:
        child_ptr, child: CSR of the children.
        functions: int32 [V] of `read_vertices`; relations: int32 [E], of each edge.
        rules: slots: int64 [functions, relations] the slot of a relation; ALL or more, where the
            function reads all children of it; or NOT_READ.
            allowed: bool [functions, relations, functions] which function such a child may have.
            begins: int64 [functions] how many slots come before ALL children; 0, where none do.
        lists_edges: which edge each is is wanted, too.
        whole: `Program.relations`.
    Returns: what was found (else than ARRANGED at once, and not more); at which vertex, and in
        which relation; the CSR of children by slot; int32 [E], which edge each is, -1 for none,
        or nothing; int32 [V whole + 1], where several relations are read whole, the first edge of
        each vertex in each of them, or nothing.
    """
    slots, allowed, begins = rules
    out_ptr = np.zeros(len(child_ptr), np.int32)
    graph = child_ptr, child, functions, relations
    found, v, relation = _count(graph, slots, allowed, begins, out_ptr)
    if found != ARRANGED:
        return found, v, relation, out_ptr, child, child, child
    out = np.full(out_ptr[len(child_ptr) - 1], -1, np.int32)
    edge_of = np.full(len(out) if lists_edges else 0, -1, np.int32)
    first_of = np.empty((len(child_ptr) - 1) * whole + 1, np.int32)
    _begin_relations(graph, slots, begins, out_ptr, first_of, whole)
    next_of = np.empty(len(first_of), np.int32)
    next_of[:] = first_of
    v, relation = _put(graph, slots, out_ptr, (out, edge_of, next_of), whole)
    found = ARRANGED if v < 0 else SECOND_CHILD
    return found, v, relation, out_ptr, out, edge_of, first_of if whole > 1 else first_of[:0]


@compiled
def in_order(
    child_ptr: Array,
    child: Array,
    of_vertex: Array,
    of_edge: Array,
    function_of: Array,
    rules: tuple[Array, Array, Array],
) -> bool:
    """Tell whether the children of each vertex lie as `arrange` would put them.

    So they do where edges were given relation by relation, and all are read; with several relations
    that are read whole it is not asked.

    Args:
        of_vertex: int32 [V], types; of_edge: int32 [E], relations; function_of: int32 [types], -1
            where a type has none.
    """
    slots, allowed, begins = rules
    graph = child_ptr, child, of_vertex, of_edge
    for v in range(len(child_ptr) - 1):
        function = function_of[of_vertex[v]]
        if function < 0 or child_ptr[v + 1] - child_ptr[v] < begins[function]:
            return False
        for e in range(child_ptr[v], child_ptr[v + 1]):
            slot, at = slots[function, of_edge[e]], e - child_ptr[v]
            lies = at >= begins[function] if slot >= ALL else slot == at
            if not lies or not _is_allowed(graph, v, e, function_of, allowed):
                return False
    return True


def _is_allowed(
    graph: tuple[Array, Array, Array, Array], v: int, e: int, function_of: Array, allowed: Array
) -> bool:
    """Tell whether an edge has a child, and one whose function its parent's may read."""
    _, child, of_vertex, of_edge = graph
    if child[e] < 0:
        return False
    function, other = function_of[of_vertex[v]], function_of[of_vertex[child[e]]]
    return not (other < 0 or not allowed[function, of_edge[e], other])


def _count(
    graph: tuple[Array, Array, Array, Array],
    slots: Array,
    allowed: Array,
    begins: Array,
    out_ptr: Array,
) -> tuple[int, int, int]:
    """Write how many slots vertices need; return what was found, at which vertex and relation."""
    child_ptr, child, functions, relations = graph
    for v in range(len(child_ptr) - 1):
        function = functions[v]
        taken = begins[function]
        for e in range(child_ptr[v], child_ptr[v + 1]):
            c, relation = child[e], relations[e]
            slot = slots[function, relation]
            if slot == NOT_READ or c < 0:
                continue
            if not allowed[function, relation, functions[c]]:
                return OF_OTHER_TYPE, v, int(relation)
            taken = taken + 1 if slot >= ALL else max(taken, slot + 1)
        out_ptr[v + 1] = out_ptr[v] + taken
    return ARRANGED, -1, -1


def _begin_relations(
    graph: tuple[Array, Array, Array, Array],
    slots: Array,
    begins: Array,
    out_ptr: Array,
    first_of: Array,
    whole: int,
) -> None:
    """Write where the children of each vertex begin in each relation that is read whole."""
    child_ptr, child, functions, relations = graph
    count = np.empty(whole, np.int32)
    for v in range(len(child_ptr) - 1):
        count[:] = 0
        for e in range(child_ptr[v], child_ptr[v + 1]):
            slot = slots[functions[v], relations[e]]
            if slot >= ALL and child[e] >= 0:
                count[slot - ALL] += 1
        at = out_ptr[v] + begins[functions[v]]
        for k in range(whole):
            first_of[v * whole + k] = at
            at += count[k]
    first_of[len(first_of) - 1] = out_ptr[len(child_ptr) - 1]


def _put(
    graph: tuple[Array, Array, Array, Array],
    slots: Array,
    out_ptr: Array,
    into: tuple[Array, Array, Array],
    whole: int,
) -> tuple[int, int]:
    """Put children into slots; return a vertex and a relation of which it has two, or -1.

    Args:
        into: children and their edges; where the next child of each vertex goes in each relation.
    """
    child_ptr, child, functions, relations = graph
    out, edge_of, next_of = into
    for v in range(len(child_ptr) - 1):
        for e in range(child_ptr[v], child_ptr[v + 1]):
            slot = slots[functions[v], relations[e]]
            if slot == NOT_READ or child[e] < 0:
                continue
            to = out_ptr[v] + slot
            if slot >= ALL:
                to = next_of[v * whole + slot - ALL]
                next_of[v * whole + slot - ALL] += 1
            if out[to] >= 0:
                return v, int(relations[e])
            out[to] = child[e]
            if len(edge_of) > 0:
                edge_of[to] = e
    return -1, -1
