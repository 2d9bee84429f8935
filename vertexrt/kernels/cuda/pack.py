"""The compiled loops that pack a minibatch for its upload, and say where everything will lie.

What batches of one layout have in common comes first, so that it need not go up again, and then
what has the same size in all of them, so that it lies in the same places (`ready_runs.py`). What
batches look up comes last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled
from vertexrt.scheduler.rows import (
    ABOVE_EDGE,
    CHILD_ROW,
    EDGE_ORDER,
    EDGE_PTR,
    EDGE_ROW,
    EVERY_PTR,
    ORDER,
    PARENT_EDGE,
    PARENT_PTR,
    part_of,
)

Array = np.ndarray[Any, Any]

ALIGN = 16  # bytes, of what lies in an upload

# Words that do not belong to a tensor, a parameter or a pull.
ADDRESSES = ("temporary", "zero", "arrived")
TEMPORARY, ZERO, ARRIVED_AT = range(len(ADDRESSES))
INDICES = (
    "rows",
    "order",
    "edge_ptr",
    "child_row",
    "edge_row",
    "parent_ptr",
    "parent_edge",
    "segment_word",
    "segment_ptr",
    "segment_row",
)
FIXED_WORDS = (*ADDRESSES, *INDICES, "user_number", "user_edge", "weight", "scale", "random_seed")

FIXED, FIRST_INDEX = len(FIXED_WORDS), len(ADDRESSES)
USER_NUMBER, USER_EDGE, WEIGHT, SCALE, RANDOM_SEED = range(FIRST_INDEX + len(INDICES), FIXED)

# Of the schedule: those of INDICES after the rows. From EVERY_PTR on come the last words, of edges,
# and then the numbers of ABOVE_EDGE themselves, of all layers but the top one.
MOST_LAST = 3
UPLOADED = (ORDER, EDGE_PTR, CHILD_ROW, EDGE_ROW, PARENT_PTR, PARENT_EDGE)
FIRST_PART, FIRST_SEGMENT = FIRST_INDEX + 1, FIRST_INDEX + 1 + len(UPLOADED)


class Arrays(NamedTuple):
    """The arrays of a minibatch that go up.

    Attributes:
        rows: int32, of launches that take a list.
        indices, extents: int32 [*], the arrays of the schedule; [PARTS, 2] where each of them
            begins and ends.
        user_number, user_edge: int32, of `Share.numbers`, where random numbers are drawn by them.
        weight: whose dtype is that of reals.
        pulls: int32 [integer pulls + real pulls, V].
        base: int64, first elements of the tensors in the arena.
    """

    rows: Array
    indices: Array
    extents: Array
    user_number: Array
    user_edge: Array
    weight: Array
    pulls: Array
    base: Array


class Places(NamedTuple):
    """Addresses on the device, and the scalars of a run.

    Attributes:
        arena, zero, arrived, values, gradients: see `Session`; temporary: element of the arena
            where temporaries start.
        room: bytes that are left for real values and gradients of pushes, a multiple of ALIGN.
        there: of what batches of a layout have in common, bytes that are on the device already.
    """

    arena: int
    temporary: int
    zero: int
    arrived: int
    values: int
    gradients: int
    loss_scale: float
    random_seed: int
    room: int
    there: int


class PackedUpload(NamedTuple):
    """Where the parts of an upload begin.

    Attributes:
        end: of all; or as a negative number how many bytes are needed, where there are fewer.
        common: end of what batches of a layout have in common; room: where `Places.room` is.
        words: int64, of the run, but for those of real values and gradients of pushes.
        addresses: of starts, of widths, and of what is `more`.
    """

    end: int
    common: int
    room: int
    words: Array
    addresses: Array


class _Upload(NamedTuple):
    """Where an upload is packed.

    Attributes:
        pinned: bytes; address: of its twin on the device; wanted: of `pack`; words: it returns.
        there: of `Places`.
    """

    pinned: Array
    address: int
    words: Array
    wanted: Array
    there: int


@compiled
def pack(
    pinned: Array,
    address: int,
    facts: tuple[Any, ...],
    of_batch: tuple[Any, ...],
    of_run: tuple[Any, ...],
    lists: tuple[Any, ...],
) -> PackedUpload:
    """Copy the arrays that kernels read into a pinned buffer; find the words of a run.

    Args:
        pinned: bytes, aligned as ALIGN; address: of its twin on the device.
        facts: [words] whether any kernel reads what a word points to; first element of each
            parameter; how many integer pulls there are; how many edge words it has, and how many
            words of layers after them, which come last.
        of_batch: the fields of `Arrays`; of_run: of `Places`.
        lists: the last of INDICES, int32; `StepEnd.ranges`, of which starts (int64) and widths
            (int32) go up; what else does (`more`), int32.
    """
    batch, run = Arrays(*of_batch), Places(*of_run)
    segments, ranges, more = lists
    wanted, param_at, num_ints, last = facts
    words, addresses = np.zeros(len(wanted), np.int64), np.empty(2 + len(more), np.int64)
    need = ALIGN * (FIXED + len(batch.pulls) + 2 + MOST_LAST + len(more)) + 12 * len(ranges)
    need += 4 * (batch.user_number.size + batch.user_edge.size + batch.pulls.size)
    need += 4 * (batch.rows.size + batch.indices.size) + batch.weight.size * batch.weight.itemsize
    for segment in segments:
        need += 4 * segment.size
    for array in more:
        need += 4 * array.size
    if need + run.room > len(pinned):
        return PackedUpload(-(need + run.room), 0, 0, words, addresses)
    upload = _Upload(pinned, address, words, wanted, run.there)
    common = _pack_layout(upload, batch, last)
    end = _put(upload, USER_NUMBER, common, batch.user_number)
    end = _put(upload, USER_EDGE, end, batch.user_edge)
    words[SCALE] = address + end
    words[RANDOM_SEED] = address + end + 8
    pinned[end : end + 8].view(np.float64)[0] = run.loss_scale
    pinned[end + 8 : end + 16].view(np.int64)[0] = run.random_seed
    size, first, params = batch.weight.itemsize, FIXED + len(batch.base), len(param_at)
    words[TEMPORARY] = run.arena + run.temporary * size
    words[ZERO], words[ARRIVED_AT] = run.zero, run.arrived
    for k in range(len(batch.base)):
        words[FIXED + k] = run.arena + batch.base[k] * size
    for k in range(params):
        words[first + k] = run.values + param_at[k] * size
        words[first + params + k] = run.gradients + param_at[k] * size
    first += 2 * params
    pulls, room_at = batch.pulls, end + ALIGN
    for k in range(len(pulls)):  # integers, and after the real values their indices
        word = first + (k if k < num_ints else len(pulls) - num_ints + k)
        room_at = _put(upload, word, room_at, pulls[k])
    end = _pack_lists(upload, room_at + run.room, lists, addresses)
    return PackedUpload(end, common, room_at, words, addresses)


def _pack_layout(upload: _Upload, batch: Arrays, last: tuple[int, int]) -> int:
    """Copy what all batches of a layout have in common, where a kernel reads it; return the end.

    Args:
        last: how many edge words there are, and after them words of layers: the last words.
    """
    words, schedule, (edges, layers) = upload.words, (batch.indices, batch.extents), last
    end = _put(upload, FIRST_INDEX, 0, batch.rows)
    for k, uploaded in enumerate(UPLOADED):
        end = _put(upload, FIRST_PART + k, end, part_of(*schedule, uploaded))
    first = len(words) - layers
    for layer in range(layers):
        words[first + layer] = part_of(*schedule, ABOVE_EDGE)[layer]
    for edge in range(edges):
        end = _put(
            upload,
            first - edges + edge,
            end,
            part_of(*schedule, EVERY_PTR + edge),
        )
    words[WEIGHT] = upload.address + end
    return _copy(upload, end, batch.weight)


def _pack_lists(upload: _Upload, end: int, lists: tuple[Any, ...], addresses: Array) -> int:
    """Copy `lists` of `pack` to what begins at `end`, and write where they are; return the end."""
    segments, ranges, more = lists
    for k, segment in enumerate(segments):
        end = _put(upload, FIRST_SEGMENT + k, end, segment)
    count = len(ranges)
    addresses[0] = upload.address + end
    starts = upload.pinned[end : end + 8 * count].view(np.int64)
    end = aligned(end + 8 * count)
    addresses[1] = upload.address + end
    widths = upload.pinned[end : end + 4 * count].view(np.int32)
    for r in range(count):
        starts[r], widths[r] = ranges[r, 0], ranges[r, 1] - ranges[r, 0]
    end = aligned(end + 4 * count)
    for k, array in enumerate(more):
        addresses[2 + k] = upload.address + end
        end = _copy(upload, end, array)
    return end


def _put(upload: _Upload, word: int, at: int, array: Array) -> int:
    """Copy an array to `at`, where a kernel reads it; return where the next may start."""
    if not upload.wanted[word]:
        return at
    upload.words[word] = upload.address + at
    return _copy(upload, at, array)


def _copy(upload: _Upload, at: int, array: Array) -> int:
    """Copy an array to `at`, unless it is there, and return where the next may start."""
    size = len(array) * array.itemsize
    if at >= upload.there:
        upload.pinned[at : at + size].view(array.dtype)[:] = array
    return aligned(at + int(size))


def aligned(at: int) -> int:
    """Return the next place that something may start at."""
    return (at + ALIGN - 1) // ALIGN * ALIGN


class _Segments(NamedTuple):
    """The word of each segment, where its rows begin, and these; where its next row goes."""

    word: Array
    ptr: Array
    row: Array
    free: Array


@compiled
def sort_lookups(
    table: Array,
    lookups: tuple[Array, Array],
    ints: Array,
    schedule: tuple[Array, Array],
    rows: Array,
    seen: Array,
    padded: bool,
) -> tuple[Array, Array, Array, Array, Array]:
    """Group the rows of each launch by what they looked up, in order of first appearance.

    So a table's gradient is added up by one block for each of its rows, in a fixed order.

    Args:
        lookups: CSR of the integer pulls that each program's lookups read; -1 - pull for one of
            edges.
        ints: [pulls, V + E]; schedule: indices and extents, of `number_rows`.
        rows: of launches that take a list.
        seen: int32 [largest index + 1], all -1; left so.
        padded: each lookup has as many segments as rows, the last ones empty, so that what is
            returned has the same size for all batches of a layout.
    Returns: lookup_ptr and lookup_at of `driver.launch`; segment_word, segment_ptr, segment_row.
    """
    (lookups_ptr, pulls), (indices, extents) = lookups, schedule
    orders = part_of(indices, extents, ORDER), part_of(indices, extents, EDGE_ORDER)
    total, lookup, longest = 0, 0, 0  # the most rows of all lookups, these, the most of a launch
    for t in range(len(table)):
        count = lookups_ptr[table[t, 0] + 1] - lookups_ptr[table[t, 0]]
        most = max(table[t, 1], table[t, 4])
        total += count * most
        lookup += count
        longest = max(longest, most)
    lookup_ptr = np.zeros(len(table) + 1, np.int64)
    lookup_at = np.zeros(lookup + 1, np.int64)
    found = _Segments(
        np.empty(total, np.int32),
        np.zeros(total + 1, np.int32),
        np.empty(total, np.int32),
        np.empty(total, np.int32),
    )
    words = np.empty(longest, np.int32)
    segments, lookup = 0, 0
    for t in range(len(table)):
        p = table[t, 0]
        for k in range(lookups_ptr[p], lookups_ptr[p + 1]):
            lookup_at[lookup] = segments
            lookup += 1
            count = _look_up(table[t], pulls[k], ints, orders, rows, words)
            first = segments
            segments = _group(words[:count], seen, found, segments)
            if padded:  # with segments that are empty
                for s in range(segments, first + count):
                    found.word[s] = 0
                    found.ptr[s + 1] = found.ptr[segments]
                segments = first + count
        lookup_ptr[t + 1] = lookup
    lookup_at[lookup] = segments
    used = segments if padded else found.ptr[segments]
    return (
        lookup_ptr,
        lookup_at,
        found.word[:segments],
        found.ptr[: segments + 1],
        found.row[:used],
    )


def _look_up(
    launch: Array, number: int, ints: Array, orders: tuple[Array, Array], rows: Array, words: Array
) -> int:
    """Write what each row of a launch looks up, or each edge, and return how many there are.

    Args:
        launch: of the table; number: of the pull; orders: order and edge_order of
            `Schedule`; the others as of `sort_lookups`.
    """
    order, edge_order = orders
    if number < 0:
        index, edges, first_edge = ints[-1 - number], launch[4], launch[5]
        for i in range(edges):
            words[i] = index[edge_order[first_edge + i]]
        return int(edges)
    n, lo, at = launch[1], launch[2], launch[3]
    index = ints[number]
    for i in range(n):
        words[i] = index[order[lo + i if lo >= 0 else rows[at + i]]]
    return int(n)


def _group(words: Array, seen: Array, found: _Segments, begin: int) -> int:
    """Add the segments of one lookup of a launch, of which so many are there.

    Args:
        words: int32 [rows] what each row looked up; -1 for nothing.
    Returns: how many segments there are then.
    """
    word, ptr, row, free = found.word, found.ptr, found.row, found.free
    end = begin
    for w in words:
        if w < 0:
            continue
        # Whether it is the first cannot be predicted, so nothing branches on it.
        old = seen[w]
        new = int(old < 0)
        s = old + (end - old) * new
        seen[w] = s
        word[end] = w  # kept, if it is new; else the next one overwrites it
        end += new
        ptr[s + 1] += 1
    for s in range(begin, end):
        free[s] = ptr[s]
        ptr[s + 1] += ptr[s]
    for i in range(len(words)):
        if words[i] >= 0:
            s = seen[words[i]]
            row[free[s]] = i
            free[s] += 1
    for s in range(begin, end):
        seen[word[s]] = -1
    return end
