"""The update of a step, in pieces of the parameter store that processors share out.

    pieces    int64 [P, 2] first element of row 0 and elements a row
    spans     int64 [P, groups, 2] which entries of `listed` are the piece's rows: in column 0 all
              that were touched, in column k those that group k touched
    listed    int64 row numbers
    copies    [groups, total] gradients of each group; those of all are added up in copies[0]

Nothing depends on who does which piece: sums go over the groups and over the pieces in order, and
rules are elementwise. So results are the same bits with any number of processors, and whether the
update runs inside of the call that makes the gradients or after it: it is one function, `finish`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.kernels.cpu.counters import (
    ALL_CHECKED,
    ALL_HERE,
    EXPIRED,
    GO,
    GROUPS_HERE,
    LOSS,
    NORM,
    OF_GROUP,
    REFUSED,
    UPDATE,
    arrive,
    await_decision,
    cycles,
    decide,
    fail,
    gate_words,
)
from vertexrt.kernels.cpu.rules import address_of, run_rule
from vertexrt.kernels.cpu.sizes import LANES, RowArray, size_of, sum_of_squares, within
from vertexrt.kernels.layout import FOUND_DONE, FOUND_LOSS, FOUND_NORM, FOUND_TRIED, Ending

AT_THE_GATE = -1  # in an error record, in place of a counter
PATIENCE = 2  # times the limit of a wait in a script, so that an error names that wait, not this


@njit(cache=True, error_model="numpy", nogil=True)
def cut_pieces(
    most: int, dense: int, tables: Any, entries: Any, listed: Any
) -> tuple[RowArray, RowArray]:
    """Cut the dense part of a store and rows of tables into pieces of at most `most` elements.

    Args:
        tables: [T, 2] first element and elements a row; entries: [T, groups, 2] which entries of
            `listed` are touched rows of a table, in column 0 all, else the group's.
    Returns: pieces and spans. The row of a piece of the dense part is the first entry, 0.
    """
    count = -(-dense // most)
    step = np.empty(len(tables), np.int64)
    for t in range(len(tables)):
        step[t] = max(1, most // tables[t, 1])
        count += -(-(entries[t, 0, 1] - entries[t, 0, 0]) // step[t])
    pieces = np.empty((count, 2), np.int64)
    spans = np.zeros((count, entries.shape[1], 2), np.int64)
    p = 0
    for start in range(0, dense, most):
        pieces[p, 0], pieces[p, 1] = start, min(most, dense - start)
        spans[p, :, 1] = 1
        p += 1
    for t in range(len(tables)):
        before = p
        for first in range(entries[t, 0, 0], entries[t, 0, 1], step[t]):
            end = min(first + step[t], entries[t, 0, 1])
            pieces[p] = tables[t]
            spans[p, 0, 0], spans[p, 0, 1] = first, end
            for k in range(1, entries.shape[1]):  # rows are sorted: go on behind the last piece
                at = spans[p - 1, k, 1] if p > before else entries[t, k, 0]
                spans[p, k, 0] = at
                while at < entries[t, k, 1] and listed[at] <= listed[end - 1]:
                    at += 1
                spans[p, k, 1] = at
            p += 1
    return pieces, spans


@njit(cache=True, error_model="numpy", nogil=True)
def sum_loss(arena: Any, at: int, rows: int, weight: Any) -> float:
    """Sum the losses of all rows in float64, as often as each counts, in a fixed order.

    Args:
        at: element of the arena where the losses start.
        weight: [rows], or empty where each row counts once.
    """
    partial = np.zeros(LANES)
    for block in range(0, rows, LANES):
        x = arena[at + block : at + min(block + LANES, rows)]
        if len(weight):
            w = weight[block : block + LANES]
            for j in range(len(x)):
                partial[j] += np.float64(x[j]) * np.float64(w[j])
        else:
            for j in range(len(x)):
                partial[j] += np.float64(x[j])
    total = 0.0
    for j in range(LANES):
        total += partial[j]
    return total


@njit(cache=True, error_model="numpy", nogil=True)
def add_up(copies: Any, pieces: Any, spans: Any, listed: Any, first: int, last: int) -> None:
    """Add the gradients of the other groups to the first one's, in their order, and clear them."""
    for p in range(first, last):
        start, width = pieces[p]
        for k in range(1, spans.shape[1]):
            for r in range(spans[p, k, 0], spans[p, k, 1]):
                begin = start + listed[r] * width
                total = copies[0, begin : begin + width]
                other = copies[k, begin : begin + width]
                for i in range(width):
                    total[i] += other[i]
                other[:] = 0.0


@njit(cache=True, error_model="numpy", nogil=True)
def add_squares(
    gradients: Any, pieces: Any, spans: Any, listed: Any, first: int, last: int, squares: Any
) -> None:
    """Sum the squares of the gradients of each piece: squares[p]."""
    for p in range(first, last):
        rows = listed[spans[p, 0, 0] : spans[p, 0, 1]]
        squares[p] = sum_of_squares(gradients, pieces[p, 0], pieces[p, 1], rows)


@njit(cache=True, error_model="numpy", nogil=True)
def norm_of(squares: Any) -> float:
    """Return the norm, given the squares of each piece: added up in order."""
    total = 0.0
    for p in range(len(squares)):
        total += squares[p]
    return math.sqrt(total)


@njit(cache=True, error_model="numpy", nogil=True)
def all_within(numbers: Any, pieces: Any, spans: Any, listed: Any, limit: float) -> bool:
    """Tell whether the size of every number of all pieces is at most a limit."""
    most = size_of(limit, numbers)
    for p in range(len(pieces)):
        start, width = pieces[p]
        for r in range(spans[p, 0, 0], spans[p, 0, 1]):
            begin = start + listed[r] * width
            if not within(numbers[begin : begin + width], most):
                return False
    return True


@njit(cache=True, error_model="numpy", nogil=True)
def norm_is_enough(clip_norm: float, norm: float, limit: float, s: Any) -> bool:
    """Tell whether the norm says that gradients, as they are clipped, are within a limit."""
    return clip_norm > 0.0 and min(norm, clip_norm) <= limit and s[0] == 0.0


@njit(cache=True, error_model="numpy", nogil=True)
def is_finite(
    rule: int, values: Any, gradients: Any, state: Any, begin: int, end: int, scale: float, s: Any
) -> bool:
    """Tell whether all that a rule would write to a range is finite, by running it on a copy."""
    p, d, m = values[begin:end].copy(), gradients[begin:end].copy(), state[:, begin:end].copy()
    piece, row = np.array([[0, end - begin]], np.int64), np.zeros(1, np.int64)
    span = np.array([[[0, 1]]], np.int64)
    run_rule(rule, (p, d, m, piece, span, row, 0, 1, scale, s))
    return bool(np.isfinite(p).all() and np.isfinite(m).all())


@njit(cache=True, error_model="numpy", nogil=True)
def check(
    rule: int,
    store: Any,
    cut: Any,
    first: int,
    last: int,
    scale: float,
    s: Any,
    limit: float,
    found: Any,
) -> bool:
    """Tell whether all that a rule would write to some pieces is finite; write none of it.

    Args:
        rule: address of its loop; scale: factor of every gradient; s: scalars of `Ending`.
        store: values and gradients [total], state [slots, total].
        cut: pieces, spans, listed.
        limit: of `update.limit_of`: ranges within it need not be tried; below 0, all are.
        found: of `Ending`; says when a range was tried.
    """
    values, gradients, state = store
    pieces, spans, listed = cut
    decays, most = s[0] > 0.0, size_of(max(limit, 0.0), gradients)
    for p in range(last - 1, first - 1, -1):  # the first are in the cache then
        start, width = pieces[p]
        for entry in range(spans[p, 0, 0], spans[p, 0, 1]):
            begin = start + listed[entry] * width
            end = begin + width
            if (
                limit >= 0.0
                and within(gradients[begin:end], most)
                and not (decays and not within(values[begin:end], most))
            ):
                continue
            found[FOUND_TRIED] = 1.0
            if not is_finite(rule, values, gradients, state, begin, end, scale, s):
                return False
    return True


@njit(cache=True, error_model="numpy", nogil=True)
def finish(
    counters: Any,
    part: int,
    parts: int,
    group: int,
    instructions: int,
    patience: int,
    arena: Any,
    rows: int,
    weight: Any,
    ending: Any,
) -> int:
    """End a step: called by every processor of every group when its script is done.

    The last processor of a group sums the group's losses, and the last of all decides whether the
    step counts. Then each adds up its share of the pieces, checks it and runs the rule on it; the
    norm, where it is wanted, and what all have checked are decided on in between. Nothing changes
    unless everybody is there and the loss, the norm and all that would be written are finite.

    Args:
        part, parts: processor and how many its group has; instructions: of its script.
        patience: cycles that a wait in a script may take.
        arena, rows, weight: of the group.
        ending: of `arguments_of`.
    Returns: the clock when the wait for the other processors was over.
    """
    gate, (rule, loss_scale, clip_norm, limit), loss_at, scalars, losses, squares, found = ending[
        :7
    ]
    values, copies, moments, pieces, spans, listed = ending[7:]
    groups = len(losses)
    if arrive(gate, OF_GROUP + group, parts):
        losses[group] = sum_loss(arena, loss_at[group], rows, weight)
        if arrive(gate, GROUPS_HERE, groups):
            for k in range(groups):
                found[FOUND_LOSS] += losses[k]
            decide(gate, LOSS, GO if math.isfinite(found[FOUND_LOSS] * loss_scale) else REFUSED)
    decision = await_decision(gate, LOSS, groups, PATIENCE * patience)
    opened = cycles()
    share = group * parts + part
    first = len(pieces) * share // (groups * parts)
    last = len(pieces) * (share + 1) // (groups * parts)
    if decision in (GO, REFUSED):  # as ever, gradients are there for who looks
        add_up(copies, pieces, spans, listed, first, last)
    scale = 1.0
    if decision == GO and clip_norm > 0.0:
        add_squares(copies[0], pieces, spans, listed, first, last, squares)
        if arrive(gate, ALL_HERE, groups * parts):
            found[FOUND_NORM] = norm_of(squares)
            decide(gate, NORM, GO if math.isfinite(found[FOUND_NORM]) else REFUSED)
        decision = await_decision(gate, NORM, groups, PATIENCE * patience)
        if found[FOUND_NORM] > clip_norm:
            scale = clip_norm / found[FOUND_NORM]
    store, cut, s = (values, copies[0], moments), (pieces, spans, listed), scalars
    if decision == GO and not norm_is_enough(clip_norm, found[FOUND_NORM], limit, s):
        if not check(rule, store, cut, first, last, scale, s, limit, found):
            decide(gate, UPDATE, REFUSED)
        if arrive(gate, ALL_CHECKED, groups * parts):
            decide(gate, UPDATE, GO)
        decision = await_decision(gate, UPDATE, groups, PATIENCE * patience)
    if decision == GO:
        found[FOUND_DONE] = 1.0
        run_rule(rule, (*store, *cut, first, last, scale, s))
    elif decision == EXPIRED:
        fail(counters, part, instructions, AT_THE_GATE)
    return opened  # type: ignore[no-any-return]


def arguments_of(ending: Ending) -> tuple[Any, ...]:
    """Return an ending as `finish` takes it."""
    e = ending
    settings = (address_of(e.rule, e.values.dtype), e.loss_scale, e.clip_norm, e.limit)
    scratch = (e.scalars, e.losses, e.squares, e.found)
    store = (e.values, e.copies, e.moments, e.pieces, e.spans, e.listed)
    return (e.gate, settings, e.loss_at, *scratch, *store)


def finish_alone(ending: Ending) -> None:
    """End a step whose gradients are added up in the first copy, and whose loss is known."""
    gate, none = np.zeros(gate_words(1, 1), np.int32), ending.values[:0]
    finish(gate, 0, 1, 0, 0, 0, none, 0, none, (gate, *arguments_of(ending)[1:]))
