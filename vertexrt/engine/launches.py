"""The compiled loop that turns a schedule into the launch table of a step.

It runs for every minibatch: at batch 1 a step takes a millisecond, so Python objects per task would
cost more than the arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.kernels.layout import COLUMNS, PAD

Array = np.ndarray[Any, Any]

FEWEST_ROWS = 256  # of a launch that is cut


@njit(cache=True, nogil=True)
def build_table(
    task_lo: Array,
    task_kind: Array,
    edge_ptr: Array,
    order: Array,
    lazy_kinds: Array,
    path_programs: Array,
    lazy_programs: Array,
    by_ranges: Array,
    scratch: Array,
    writes_ptr: Array,
    writes: Array,
    writes_edges: Array,
    most_scratch: int,
) -> tuple[Array, int, Array, Array, Array, int]:
    """List the launches of a step in order, and what they need.

    Args:
        task_lo, task_kind, edge_ptr, order: of the schedule.
        lazy_kinds: [V] in the user's order.
        path_programs: [4, path kinds] program of the eager, path, backward path and final stage, -1
            for none.
        lazy_programs: [2, lazy kinds] the same for the two lazy stages.
        by_ranges: [programs] True where a program cannot take a list of rows (it uses edges).
        scratch: [programs, 3] elements for each row, for each edge, and once.
        writes_ptr, writes: CSR of the tensors that each program writes; writes_edges: [tensors].
        most_scratch: elements of temporaries beyond which a launch over all rows of a kind is cut.
    Returns: the table; how many launches are forward; the rows of launches that take a list; the
        first and end row of each tensor; the most scratch of one launch.
    """
    tasks, vertices, edges = len(task_kind), len(order), edge_ptr[-1]
    programs = len(scratch)
    chunk = np.empty(programs, np.int64)
    ranges = 0
    for p in range(programs):
        chunk[p] = max(FEWEST_ROWS, most_scratch // max(1, scratch[p, 0]))
        ranges += vertices if by_ranges[p] else 1 + vertices // chunk[p]
    table = np.empty((2 * tasks + ranges + 1, COLUMNS), np.int64)
    listed = np.empty(4 * vertices, np.int32)
    count, used, forward = 0, 0, 0
    program_of = np.empty(vertices, np.int64)
    run_lo = np.empty(vertices + 1, np.int32)
    starts = np.empty(vertices, np.int32)
    ends = np.empty(vertices, np.int32)

    for phase in range(6):
        if phase == 1 or phase == 4:  # tasks, one launch each
            side = 1 if phase == 1 else 2
            for t in range(tasks):
                u = t if phase == 1 else tasks - 1 - t
                p = path_programs[side, task_kind[u]]
                if p >= 0:
                    count = _launch(table, count, p, task_lo[u], task_lo[u + 1], edge_ptr)
            continue
        if phase == 3:
            forward = count
        # One launch a program over all its rows: list the runs of rows with the same program.
        runs = 0
        if phase == 0 or phase == 5:
            stage = path_programs[0 if phase == 0 else 3]
            for t in range(tasks):
                p = stage[task_kind[t]]
                if runs == 0 or program_of[runs - 1] != p:
                    program_of[runs] = p
                    run_lo[runs] = task_lo[t]
                    runs += 1
        else:
            stage = lazy_programs[phase - 2]
            runs = _runs(stage, lazy_kinds, order, program_of, run_lo)
        run_lo[runs] = vertices
        first, last = _extent(stage)
        for p in range(first, last + 1):
            found, rows = 0, 0
            for k in range(runs):
                if program_of[k] == p:
                    starts[found] = run_lo[k]
                    ends[found] = run_lo[k + 1]
                    rows += run_lo[k + 1] - run_lo[k]
                    found += 1
            if found == 0:
                continue
            if by_ranges[p]:
                for k in range(found):
                    count = _launch(table, count, p, starts[k], ends[k], edge_ptr)
            elif found == 1:
                for lo in range(starts[0], ends[0], chunk[p]):
                    hi = min(lo + chunk[p], ends[0])
                    count = _launch(table, count, p, lo, hi, edge_ptr)
            else:
                for lo in range(0, rows, chunk[p]):
                    table[count] = 0
                    table[count, 0] = p
                    table[count, 1] = min(chunk[p], rows - lo)
                    table[count, 2] = -1
                    table[count, 3] = used + lo
                    count += 1
                for k in range(found):
                    for r in range(starts[k], ends[k]):
                        listed[used] = r
                        used += 1

    first_row = np.full(len(writes_edges), np.int64(2) ** 62, np.int64)
    end_row = np.zeros(len(writes_edges), np.int64)
    most = 0
    for c in range(count):
        p, n, lo, m = table[c, 0], table[c, 1], table[c, 2], table[c, 4]
        need = (
            scratch[p, 0] * ((n + PAD - 1) // PAD * PAD)
            + scratch[p, 1] * ((m + PAD - 1) // PAD * PAD)
            + scratch[p, 2]
        )
        most = max(most, need)
        for w in range(writes_ptr[p], writes_ptr[p + 1]):
            x = writes[w]
            if writes_edges[x]:
                first_row[x] = 0
                end_row[x] = edges
            elif lo < 0:
                first_row[x] = 0
                end_row[x] = vertices
            else:
                first_row[x] = min(first_row[x], lo)
                end_row[x] = max(end_row[x], lo + n)
    return table[:count], forward, listed[:used], first_row, end_row, most


@njit(cache=True, nogil=True)
def _launch(table: Array, count: int, program: int, lo: int, hi: int, edge_ptr: Array) -> int:
    table[count, 0] = program
    table[count, 1] = hi - lo
    table[count, 2] = lo
    table[count, 3] = 0
    table[count, 4] = edge_ptr[hi] - edge_ptr[lo]
    table[count, 5] = edge_ptr[lo]
    return count + 1


@njit(cache=True, nogil=True)
def _runs(
    programs: Array, lazy_kinds: Array, order: Array, program_of: Array, run_lo: Array
) -> int:
    """List the runs of rows whose kinds have the same program; return how many there are."""
    if len(order) and np.all(programs == programs[0]):  # of all kinds: none need be read
        program_of[0], run_lo[0] = programs[0], 0
        return 1
    runs = 0
    last = np.int64(-2)
    for r in range(len(order)):
        p = programs[np.uint32(lazy_kinds[np.uint32(order[r])])]
        if p != last:
            program_of[runs] = p
            run_lo[runs] = r
            runs += 1
            last = p
    return runs


@njit(cache=True, nogil=True)
def _extent(programs: Array) -> tuple[np.int64, np.int64]:
    """Return the smallest and the largest program of a stage, -1 aside."""
    first, last = np.int64(2) ** 31, np.int64(-1)
    for p in programs:
        if p >= 0:
            first = min(first, np.int64(p))
            last = max(last, np.int64(p))
    return first, last
