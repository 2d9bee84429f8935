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
    count = len(child_ptr) - 1
    out_ptr = np.zeros(count + 1, np.int32)
    for v in range(count):  # how many slots it needs
        function = functions[v]
        taken = begins[function]
        for e in range(child_ptr[v], child_ptr[v + 1]):
            c, relation = child[e], relations[e]
            slot = slots[function, relation]
            if slot == NOT_READ or c < 0:
                continue
            if not allowed[function, relation, functions[c]]:
                return OF_OTHER_TYPE, v, int(relation), out_ptr, child, child, child
            taken = taken + 1 if slot >= ALL else max(taken, slot + 1)
        out_ptr[v + 1] = out_ptr[v] + taken
    out = np.full(out_ptr[count], -1, np.int32)
    edge_of = np.full(len(out) if lists_edges else 0, -1, np.int32)
    # Where its children begin in each relation that is read whole, and where the next one goes.
    first_of, next_of = np.empty(count * whole + 1, np.int32), np.empty(whole, np.int32)
    found, second, of = ARRANGED, -1, -1
    for v in range(count):
        next_of[:] = 0
        for e in range(child_ptr[v], child_ptr[v + 1]):
            slot = slots[functions[v], relations[e]]
            if slot >= ALL and child[e] >= 0:
                next_of[slot - ALL] += 1
        at = out_ptr[v] + begins[functions[v]]
        for k in range(whole):
            first_of[v * whole + k] = at
            at += next_of[k]
            next_of[k] = first_of[v * whole + k]
        for e in range(child_ptr[v], child_ptr[v + 1]):
            slot = slots[functions[v], relations[e]]
            if slot == NOT_READ or child[e] < 0:
                continue
            to = out_ptr[v] + slot
            if slot >= ALL:
                to = next_of[slot - ALL]
                next_of[slot - ALL] += 1
            if out[to] >= 0 and found == ARRANGED:
                found, second, of = SECOND_CHILD, v, int(relations[e])
            out[to] = child[e]
            if lists_edges:
                edge_of[to] = e
    first_of[count * whole] = out_ptr[count]
    return found, second, of, out_ptr, out, edge_of, first_of if whole > 1 else first_of[:0]
