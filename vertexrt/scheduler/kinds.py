"""The compiled loop that reads the vertices of a batch: checks, kinds and levels in one pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.graph.compiled import children_first
from vertexrt.ir.passes.specialise import FUNCTION_AT
from vertexrt.native.compiled import compiled
from vertexrt.scheduler.compiled import LEVELS, SLOTS_AT, find_levels

Array = np.ndarray[Any, Any]

MET = 32  # places of a table, a power of 2

# What `read_vertices` may find.
FINE, NEW_PATH_KIND, NEW_LAZY_KIND, NOT_BOUNDED, TOO_MANY_CHILDREN = range(5)


class VertexFacts(NamedTuple):
    """What is known of vertices before a batch.

    Attributes:
        numbers: [pulls] which bit each has; used: the places of those that are read.
        bounds: [pulls, functions] how many values each may take, -1 for any.
        slots: the most that a function declares.
        begins: [functions] slots of each, where edges are split (`Program.splits_edges`): the bit
            after the slots is for the children after them alone; else empty.
        limits: [functions] in how many slots there may be a child, -1 for any.
        path_masks, lazy_masks: [functions] the bits that matter on the path, and all that matter.
        path_known, lazy_known: bits of the kinds that have a number, in order.
        has_loss: of the kinds in `lazy_known`.
        layers: int64 [functions], the layer of each, after whose vertices those of the next come.
    """

    numbers: Array
    used: Array
    bounds: Array
    slots: int
    begins: Array
    limits: Array
    path_masks: Array
    lazy_masks: Array
    path_known: Array
    lazy_known: Array
    has_loss: Array
    layers: Array


@compiled
def read_vertices(
    child_ptr: Array,
    child: Array,
    functions: Array,
    pulls: Array,
    facts: VertexFacts,
    levels: tuple[Any, ...],
) -> tuple[Any, ...]:
    """Find the kind and the level of each vertex.

    The bits of a vertex are those of `specialise.Atoms`: bit s where slot s has a child, the bit
    after the slots where any has, then one bit for each pull that has a value, and the number of
    its function.

    Args:
        child_ptr, child: CSR of the children.
        functions: int32 [V], which function each vertex evaluates; empty, where there is one.
        pulls: int32 [pulls, V], or more columns, -1 where a vertex has none.
        levels: of `levels_of`.
    Returns: what was found (else than FINE at once, and not more), at which vertex, and its bits;
        path kinds, lazy kinds and levels by vertex; whether no vertex has two parents; how many
        vertices have a loss.
    """
    slots, layers, has_loss = facts.slots, facts.layers, facts.has_loss
    count = len(child_ptr) - 1
    path, lazy = np.empty(count, np.int32), np.empty(count, np.int32)
    level, has = np.empty(count, np.int32), np.zeros(count, np.int64)
    for k in facts.used:
        v = _read_pull(
            pulls[k, :count], functions, facts.bounds[k], slots + 1 + facts.numbers[k], has
        )
        if v >= 0:
            return NOT_BOUNDED, v, has[v], path, lazy, level, True, 0
    limit = -1 if len(functions) else facts.limits[0]  # of several: `arrange` has looked
    (found, forest, graph_ptr, graphs), ordered = levels, True
    if len(functions) > 0:  # of the children that these read
        found, ordered, forest = find_levels(child_ptr, child)
        whole = np.zeros(2, np.int32)
        whole[1] = count
        graph_ptr, graphs = whole, np.zeros(1, np.int64)
    v, to = -1, 0
    for g in graphs:
        for each in found[graph_ptr[g] : graph_ptr[g + 1]]:
            there = each >> SLOTS_AT
            level[to] = each & LEVELS
            has[to] |= (there & ((1 << slots) - 1)) | int(there > 0) << slots
            if v < 0 and limit >= 0 and there >> slots > 0:
                v = to
            to += 1
    if len(facts.begins) > 0:
        for u in range(count):
            if child_ptr[u + 1] - child_ptr[u] <= facts.begins[functions[u]]:
                has[u] &= ~(1 << slots)
    if v >= 0:
        return TOO_MANY_CHILDREN, v, has[v], path, lazy, level, forest, 0
    if _highest(layers) > 0:
        level = _levels_of_layers(child_ptr, child, functions, layers, ordered)
    for u in range(len(functions)):
        has[u] |= int(functions[u]) << FUNCTION_AT
    # Kinds met so far, each where a hash of its bits says: most batches have a handful.
    met = np.full(MET, -1, np.int64)
    met_path = np.empty(MET, np.int32)
    met_lazy = np.empty(MET, np.int32)
    losses = 0
    for u in range(count):  # two alike in a row cannot be predicted: nothing branches on it
        bits, function = has[u], int(functions[u]) if len(functions) > 0 else 0
        at = (bits ^ (bits >> 5) ^ (bits >> 10) ^ function) & (MET - 1)
        if met[at] != bits:
            on_path, matters = bits & facts.path_masks[function], bits & facts.lazy_masks[function]
            path_kind = _number(on_path, facts.path_known)
            if path_kind < 0:
                return NEW_PATH_KIND, u, on_path, path, lazy, level, forest, losses
            lazy_kind = _number(matters, facts.lazy_known)
            if lazy_kind < 0:
                return NEW_LAZY_KIND, u, matters, path, lazy, level, forest, losses
            met[at], met_path[at], met_lazy[at] = bits, path_kind, lazy_kind
        path[u] = met_path[at]
        lazy[u] = met_lazy[at]
        losses += has_loss[met_lazy[at]]
    return FINE, -1, 0, path, lazy, level, forest, losses


def _highest(layers: Array) -> int:
    found = 0
    for layer in layers:
        found = max(found, layer)
    return found


def _levels_of_layers(
    child_ptr: Array, child: Array, functions: Array, layers: Array, ordered: bool
) -> Array:
    """Return [V] levels, those of each layer after all of the layers before.

    Within a layer it is the longest distance from a vertex that reads none of the layer.

    Args:
        ordered: children come before their parents.
    """
    count = len(child_ptr) - 1
    begin = np.zeros(_highest(layers) + 2, np.int32)  # the first level of each, one place after it
    order = np.empty(0, np.int32)
    if not ordered:
        order, _ = children_first(child_ptr, child)
    level = np.zeros(count, np.int32)
    for k in range(count):
        v = k if ordered else order[k]
        own = layers[functions[v]]
        for e in range(child_ptr[v], child_ptr[v + 1]):
            c = child[e]
            if c >= 0 and layers[functions[c]] == own:
                level[v] = max(level[v], level[c] + 1)
        begin[own + 1] = max(begin[own + 1], level[v] + 1)
    for layer in range(len(begin) - 1):
        begin[layer + 1] += begin[layer]
    for v in range(count):
        level[v] += begin[layers[functions[v]]]
    return level


def _read_pull(values: Array, functions: Array, bounds: Array, bit: Any, has: Array) -> int:
    """Set a bit where a vertex has a value; return the first that is out of bounds, or -1.

    Args:
        bounds: [functions] of the pull; bit: the number of its bit.
    """
    mark = 1 << int(bit)
    for v in range(len(has)):
        has[v] |= mark if values[v] >= 0 else 0
    if _beyond(values, bounds):
        for v in range(len(has)):
            bound = bounds[functions[v]] if len(functions) > 0 else bounds[0]
            if bound >= 0 and (values[v] >= bound or values[v] < -1):
                return v
    return -1


@compiled
def is_within(index: Array, used: Array, bounds: Array) -> bool:
    """Tell whether all that is pulled is within bounds.

    Args:
        index: int32 [pulls, V + E], what is pulled; used: the numbers of pulls that are read.
        bounds: int64 [pulls, functions], how many values each may take, -1 for any.
    """
    for k in used:  # noqa: SIM110, it is translated
        if _beyond(index[k], bounds[k]):
            return False
    return True


def _beyond(values: Array, bounds: Array) -> bool:
    """Tell whether a number is beyond the bound of any function."""
    largest, least = -1, -1
    for v in range(len(values)):
        largest, least = max(largest, values[v]), min(least, values[v])
    beyond = least < -1
    for bound in bounds:
        beyond |= bound >= 0 and largest >= bound
    return beyond


def _number(kind: Any, known: Array) -> int:
    for k in range(len(known)):
        if known[k] == kind:
            return k
    return -1
