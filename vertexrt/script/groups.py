"""Assemble the scripts of several groups that share one schedule, and one arena: a GPU's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled
from vertexrt.script.assemble import (
    Batch,
    Draft,
    GroupSize,
    count_instructions,
    fill,
)
from vertexrt.script.shape import Shape

Array = np.ndarray[Any, Any]


class Groups(NamedTuple):
    """The groups that share a batch.

    Attributes:
        order: [rows] the user's vertices, ascending within a task.
        graph_ptr: of the batch; its graphs are shared out among the groups.
        number: how many there are.
    """

    order: Array
    graph_ptr: Array
    number: int


class GroupScripts(NamedTuple):
    """Scripts of groups, one after the other: of all groups for each side of the path in turn.

    Attributes:
        script: int32 [*, columns].
        lengths: [sides, groups] how many instructions each has.
        temporary: elements of temporaries that a processor needs.
    """

    script: Array
    lengths: Array
    temporary: int


@compiled
def assemble_groups(
    shape: Shape,
    batch: Batch,
    side_of: Array,
    sides: int,
    groups: Groups,
    size: GroupSize,
    columns: int,
) -> GroupScripts:
    """Write the scripts of several groups that share one schedule, for the path alone.

    A group has the rows of its graphs in each launch. All its processors follow the same script.

    Args:
        side_of: [programs] the side of the path of each, -1 for those that are no part of these
            scripts; sides: how many there are.
        columns: of an instruction; those after WORDS are 0.
    """
    table, every_ptr = batch.table, batch.every_ptr
    path = np.empty((sides, len(table)), np.int64)  # launches of each side
    launches = np.zeros(sides, np.int64)
    first = np.empty((len(table), groups.number + 1), np.int64)
    bounds, total = bounds_of(groups.graph_ptr, groups.number), 0
    for t in range(len(table)):
        p, n, row = table[t, 0], table[t, 1], table[t, 2]
        side = side_of[p]
        if side < 0:
            continue
        path[side, launches[side]] = t
        launches[side] += 1
        end = row + n
        for g in range(
            groups.number
        ):  # its first row among those of the task, which rise by vertex
            first[t, g] = row
            while row < end and groups.order[row] < bounds[g + 1]:
                row += 1
            total += count_instructions(shape, p, row - first[t, g], size.tile)
        first[t, groups.number] = end
    script = np.zeros((1, total, columns), np.int32)
    lengths = np.zeros((sides, groups.number), np.int64)
    part = np.zeros((len(table), table.shape[1]), np.int64)
    most = max(1, len(table), 1 if size.tile == 0 else -(-len(groups.order) // size.tile))
    made = np.full(len(every_ptr) - 1, -1, np.int64)  # groups have rows of their own
    done = np.empty(most, np.int64)
    begin, temporary = 0, 0
    for side in range(sides):
        for g in range(groups.number):
            count = 0
            for k in range(launches[side]):
                t = path[side, k]
                lo, hi = first[t, g], first[t, g + 1]
                if lo == hi:
                    continue
                part[count, 0], part[count, 1], part[count, 2] = table[t, 0], hi - lo, lo
                part[count, 4], part[count, 5] = every_ptr[hi] - every_ptr[lo], every_ptr[lo]
                count += 1
            mine = Batch(part[:count], batch.edge_ptr, every_ptr, batch.child_row)
            length, need = fill(Draft(shape, mine, size, script, begin, made, done))
            temporary = max(temporary, need)
            lengths[side, g] = length
            begin += length
        for k in range(launches[side]):  # the next side has scripts of its own
            made[first[path[side, k], 0] : first[path[side, k], groups.number]] = -1
    return GroupScripts(script[0], lengths, temporary)


@compiled
def bounds_of(graph_ptr: Array, groups: int) -> Array:
    """Cut a batch between graphs, so that groups have about as many vertices: [groups + 1]."""
    bounds = np.empty(groups + 1, np.int64)
    at, vertices = 0, int(graph_ptr[-1])
    for g in range(groups + 1):
        wanted = vertices * g / groups
        while graph_ptr[at] < wanted:
            at += 1
        bounds[g] = graph_ptr[at]
    return bounds
