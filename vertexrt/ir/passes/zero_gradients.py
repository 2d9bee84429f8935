"""Leave out gradients that are zero: those of fields that a layer's parents do not read.

Autodiff lets every function that may read a vertex leave a gradient of each of its fields on the
edge: zeros, where it does not read the field. In a stack of LSTM layers, the layer above reads `h`
alone, so that `c` has a gradient from the next step only. Here it is found, for each field, whether
the parents of the vertex's own layer, or those of the layers above, leave nothing but zeros. Then
these store nothing, and `gather_parents` sums over the other edges (its attribute `parents`).

Layers, not relations, tell edges apart, since rows are numbered layer by layer: those of edges from
the own layer come before those from above (`Schedule.above_edge`). So it takes a comparison for an
edge at run time, and no list of edges more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vertexrt.ir.passes.rewrite import Rewriter, keep, rewrite
from vertexrt.ir.passes.simplify import simplify
from vertexrt.ir.program import (
    OWN,
    PARENTS,
    Node,
    Program,
    attributes,
    parents_of,
    slots_with_gradient,
)

TO_CHILDREN = ("scatter_child", "scatter_children")


def drop_zero_gradients(program: Program) -> Program:
    """Return a program in which gradients that are zero lie on no edge.

    Args:
        program: F and dF, simplified, with the layers of its functions. Without layers it is
            returned as it is.
    """
    if not program.layers:
        return program
    while True:  # a field without gradients makes others zero
        found = _dropped(program)
        if found is program:
            return program
        program = simplify(found)


def _dropped(program: Program) -> Program:
    """Return the program without the zeros that are known; itself, where there are none."""
    # What becomes of each sum over the edges to a vertex; None for zeros.
    sums = {n: _decide(program, n) for n in program.nodes if n.op == "gather_parents"}
    if all(node == made for node, made in sums.items()):
        return program
    kept = [node.op not in TO_CHILDREN or _is_read(program, node, sums) for node in program.nodes]

    def rule(out: Rewriter, node: Node) -> int | None:
        if node not in sums:
            return None
        made = sums[node]
        return out.const(node, 0.0) if made is None else out.append(made)

    return rewrite(keep(program, kept), rule)


def _decide(program: Program, node: Node) -> Node | None:
    """Return the sum over the edges to a vertex that carry a gradient; None, where none does."""
    read = {f: slots_with_gradient(program, f, node) for f in range(len(program.sites))}
    by = {f: parents_of(program, f, node) for f, slots in read.items() if slots}
    some = {of for f, of in by.items() if _leaves(program, f, node["field"], read[f])}
    if not some:
        return None
    # Edges of slots are numbered first, and of each function's others after all of these: then
    # those from the own layer come before and after those above.
    mixed = program.splits_edges and any(-1 in read[f] for f, of in by.items() if of == OWN)
    if some == {*by.values()} or mixed:
        return node
    (parents,) = some
    return replace(node, attrs=attributes({**dict(node.attrs), PARENTS: parents}))


def _is_read(program: Program, left: Node, sums: Mapping[Node, Node | None]) -> bool:
    """Tell whether what is left for children is in a sum: those of several functions may be."""
    of_field = (x for x in sums.values() if x is not None and x["field"] == left["field"])
    slot = _slot_of(left)
    return any(slot in slots_with_gradient(program, left.function, x) for x in of_field)


def _leaves(program: Program, function: int, field: str, slots: Sequence[int]) -> bool:
    """Tell whether a function leaves gradients of a field, by some slots, that are not zero."""
    own = (n for n in program.nodes if n.op in TO_CHILDREN and n.function == function)
    left = (n for n in own if n["field"] == field and _slot_of(n) in slots)
    given = (program.nodes[n.inputs[0]] for n in left)
    return not all(node.op == "const" and node["value"] == 0.0 for node in given)


def _slot_of(left: Node) -> int:
    """Return the slot of the children that a gradient is for; -1 for all children together."""
    return -1 if left.op == "scatter_children" else int(left["slot"])
