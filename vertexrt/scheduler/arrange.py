"""Arrange the children of typed vertices by the slots of their functions.

In a batch an edge has a relation; a function reads children by slot. What a function does not read
is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

ARRANGED, SECOND_CHILD, OF_OTHER_TYPE = range(3)  # what `arrange` may find
ALL, NOT_READ = -1, -2  # in place of a slot


@compiled
def arrange(
    child_ptr: Array, child: Array, functions: Array, relations: Array, slots: Array, allowed: Array
) -> tuple[Any, ...]:
    """Write the children of each vertex in the slots of its function.

    Args:
        child_ptr, child: CSR of the children.
        functions: int32 [V] of `read_vertices`; relations: int32 [E], of each edge.
        slots: int64 [functions, relations] the slot of a relation; ALL, where the function reads
            all children of it; or NOT_READ.
        allowed: int64 [functions, relations] bits of the functions that such a child may have.
    Returns: what was found (else than ARRANGED at once, and not more); at which vertex, and in
        which relation; the CSR of children by slot.
    """
    count = len(child_ptr) - 1
    out_ptr = np.zeros(count + 1, np.int32)
    for v in range(count):
        function, taken = functions[v], 0
        for e in range(child_ptr[v], child_ptr[v + 1]):
            c, relation = child[e], relations[e]
            slot = slots[function, relation]
            if slot == NOT_READ or c < 0:
                continue
            if ((allowed[function, relation] >> functions[c]) & 1) == 0:
                return OF_OTHER_TYPE, v, relation, out_ptr, child
            taken = taken + 1 if slot == ALL else max(taken, slot + 1)
        out_ptr[v + 1] = out_ptr[v] + taken
    out = np.full(out_ptr[count], -1, np.int32)
    for v in range(count):
        function, at = functions[v], out_ptr[v]
        for e in range(child_ptr[v], child_ptr[v + 1]):
            relation = relations[e]
            slot = slots[function, relation]
            if slot == NOT_READ or child[e] < 0:
                continue
            if slot == ALL:
                out[at] = child[e]
                at += 1
            elif out[out_ptr[v] + slot] >= 0:
                return SECOND_CHILD, v, relation, out_ptr, out
            else:
                out[out_ptr[v] + slot] = child[e]
    return ARRANGED, -1, -1, out_ptr, out
