"""The compiled loop that packs a minibatch for its upload, and says where everything will lie."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

ALIGN = 16  # bytes, of what lies in an upload

# Words that do not belong to a tensor, a parameter or a pull.
ADDRESSES = ("temporary", "zero", "arrived")
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

# The arrays of `Schedule` that are int32, in its order, and those of INDICES after the rows.
PARTS = 13
ORDER, EDGE_PTR, CHILD_ROW, EDGE_ROW, PARENT_PTR, PARENT_EDGE = 0, 4, 5, 6, 7, 8
FIRST_LAST, MOST_LAST = 9, 3  # every_ptr, edge_order, relation_ptr: the last words, `edge_words`
ABOVE_EDGE = 12  # its numbers are words after these, of all layers but the top one
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
        arena, values, gradients: see `Session`.
        room: bytes that are wanted after all that is packed.
    """

    arena: int
    values: int
    gradients: int
    loss_scale: float
    random_seed: int
    room: int


@compiled
def pack(
    pinned: Array,
    address: int,
    words: Array,
    facts: tuple[Any, ...],
    of_batch: tuple[Any, ...],
    of_run: tuple[Any, ...],
    lists: tuple[Any, ...],
) -> Any:
    """Copy the arrays that kernels read into a pinned buffer, and write the words of a run.

    Args:
        pinned: bytes, aligned as ALIGN; address: of its twin on the device.
        words: int64; ADDRESSES are given, and those of real values and seeds are left as they are.
        facts: [words] whether any kernel reads what a word points to; first element of each
            parameter; how many integer pulls there are; how many edge words it has, and how many
            words of layers after them, which come last.
        of_batch: the fields of `Arrays`; of_run: of `Places`.
        lists: the last of INDICES, int32; starts and widths of `StepEnd`; what else goes up
            (`more`), int32.
    Returns: how many bytes are used, or as a negative number how many are needed where there are
        fewer; addresses of starts, of widths, and of what is `more`.
    """
    batch, run = Arrays(*of_batch), Places(*of_run)
    segments, (starts, widths), more = lists
    wanted, param_at, num_ints, last = facts
    addresses = np.empty(2 + len(more), np.int64)
    need = _bytes_of(batch, segments) + ALIGN * len(more) + 8 * starts.size + 4 * widths.size
    for array in more:
        need += 4 * array.size
    if need + run.room > len(pinned):
        return -(need + run.room), addresses
    end = _pack_indices(pinned, words, wanted, address, batch, (segments, last))
    words[WEIGHT] = address + end
    end = _copy(pinned, end, batch.weight)
    words[SCALE] = address + end
    words[RANDOM_SEED] = address + end + 8
    pinned[end : end + 8].view(np.float64)[0] = run.loss_scale
    pinned[end + 8 : end + 16].view(np.int64)[0] = run.random_seed
    addresses[0] = address + end + ALIGN
    end = _copy(pinned, end + ALIGN, starts)
    addresses[1] = address + end
    end = _copy(pinned, end, widths)
    size, first, params = batch.weight.itemsize, FIXED + len(batch.base), len(param_at)
    for k in range(len(batch.base)):
        words[FIXED + k] = run.arena + batch.base[k] * size
    for k in range(params):
        words[first + k] = run.values + param_at[k] * size
        words[first + params + k] = run.gradients + param_at[k] * size
    first += 2 * params
    pulls = batch.pulls
    for k in range(len(pulls)):  # integers, and after the real values their indices
        word = first + (k if k < num_ints else len(pulls) - num_ints + k)
        if wanted[word]:
            words[word] = address + end
            end = _copy(pinned, end, pulls[k])
    for k, array in enumerate(more):
        addresses[2 + k] = address + end
        end = _copy(pinned, end, array)
    return end, addresses


def _bytes_of(batch: Arrays, segments: tuple[Array, ...]) -> Any:
    """Return how many bytes the arrays of a minibatch take at most."""
    need = ALIGN * (FIXED + len(batch.pulls) + 2 + MOST_LAST)
    need += 4 * (batch.user_number.size + batch.user_edge.size + batch.pulls.size)
    need += 4 * (batch.rows.size + batch.indices.size) + batch.weight.size * batch.weight.itemsize
    for segment in segments:
        need += 4 * segment.size
    return need


def _pack_indices(
    pinned: Array, words: Array, wanted: Array, address: int, batch: Arrays, more: Any
) -> int:
    """Copy what INDICES name and the user's edges, where a kernel reads them; return the end."""
    end, (segments, last) = 0, more
    if wanted[FIRST_INDEX]:
        words[FIRST_INDEX] = address + end
        end = _copy(pinned, end, batch.rows)
    for k, uploaded in enumerate(UPLOADED):
        if wanted[FIRST_PART + k]:
            words[FIRST_PART + k] = address + end
            end = _copy(pinned, end, _part(batch, uploaded))
    for k, segment in enumerate(segments):
        if wanted[FIRST_SEGMENT + k]:
            words[FIRST_SEGMENT + k] = address + end
            end = _copy(pinned, end, segment)
    if wanted[USER_NUMBER]:
        words[USER_NUMBER] = address + end
        end = _copy(pinned, end, batch.user_number)
    if wanted[USER_EDGE]:
        words[USER_EDGE] = address + end
        end = _copy(pinned, end, batch.user_edge)
    return _pack_last(pinned, words, wanted, address, batch, (end, last))


def _pack_last(
    pinned: Array,
    words: Array,
    wanted: Array,
    address: int,
    batch: Arrays,
    room: tuple[int, tuple[int, int]],
) -> int:
    """Copy what the last words point to, where a kernel reads it; return the end.

    Args:
        room: where that begins; how many edge words they are, and words of layers after them.
    """
    end, (last, layers) = room
    first = len(words) - layers
    for k in range(layers):
        words[first + k] = _part(batch, ABOVE_EDGE)[k]
    for k in range(last):
        word = first - last + k
        if wanted[word]:
            words[word] = address + end
            end = _copy(pinned, end, _part(batch, FIRST_LAST + k))
    return end


def _part(batch: Arrays, part: int) -> Array:
    """Return one of the arrays of the schedule."""
    return batch.indices[batch.extents[part, 0] : batch.extents[part, 1]]


def _copy(pinned: Array, at: int, array: Array) -> int:
    """Copy an array to `at` and return where the next may start."""
    size = len(array) * array.itemsize
    pinned[at : at + size].view(array.dtype)[:] = array
    return at + (size + ALIGN - 1) // ALIGN * ALIGN
