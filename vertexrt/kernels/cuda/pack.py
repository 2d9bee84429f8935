"""The compiled loop that packs a minibatch for its upload, and says where everything will lie."""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.cache.compiled import njit

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
FIXED_WORDS = (*ADDRESSES, *INDICES, "user_edge", "weight", "scale", "random_seed")

FIXED, FIRST_INDEX = len(FIXED_WORDS), len(ADDRESSES)
USER_EDGE, WEIGHT, SCALE, RANDOM_SEED = range(FIRST_INDEX + len(INDICES), FIXED)

# The arrays of `Schedule` that are int32, in its order, and those of INDICES behind the rows.
PARTS = 9
ORDER, EDGE_PTR, CHILD_ROW, EDGE_ROW, PARENT_PTR, PARENT_EDGE = 0, 4, 5, 6, 7, 8
UPLOADED = (ORDER, EDGE_PTR, CHILD_ROW, EDGE_ROW, PARENT_PTR, PARENT_EDGE)
FIRST_PART, FIRST_SEGMENT = FIRST_INDEX + 1, FIRST_INDEX + 1 + len(UPLOADED)


@njit(cache=True, nogil=True)
def pack(
    pinned: Array,
    address: int,
    wanted: Array,
    words: Array,
    rows: Array,
    indices: Array,
    extents: Array,
    segments: tuple[Array, ...],
    user_edge: Array,
    weight: Array,
    starts: Array,
    widths: Array,
    pulls: Array,
    num_ints: int,
    more: tuple[Array, ...],
    base: Array,
    param_at: Array,
    arena: int,
    values: int,
    gradients: int,
    loss_scale: float,
    random_seed: int,
    room: int,
) -> Any:
    """Copy the arrays that kernels read into a pinned buffer, and write the words of a run.

    Args:
        pinned: bytes, aligned as ALIGN; address: of its twin on the device.
        wanted: [words] whether any kernel reads what a word points to.
        words: int64; ADDRESSES are given, and those of real values and seeds are left as they are.
        rows: int32, of launches that take a list.
        indices, extents: int32 [*], the arrays of the schedule; [PARTS, 2] where each of them
            begins and ends.
        segments: the last of INDICES, int32.
        weight: whose dtype is that of reals.
        starts, widths: of `Ending`.
        pulls: int32 [integer pulls + real pulls, V].
        more: what else goes up, int32.
        room: bytes that are wanted behind all this.
        arena, values, gradients: addresses on the device.
    Returns: how many bytes are used, or as a negative number how many are needed where there are
        fewer; addresses of starts, of widths, and of what is `more`.
    """
    addresses = np.empty(2 + len(more), np.int64)
    need = ALIGN * (FIXED + len(pulls) + len(more) + 2) + 4 * (user_edge.size + pulls.size)
    need += weight.size * weight.itemsize + starts.size * 8 + widths.size * 4
    need += 4 * (rows.size + indices.size)
    for k in range(len(segments)):
        need += 4 * segments[k].size
    for k in range(len(more)):
        need += 4 * more[k].size
    if need + room > len(pinned):
        return -(need + room), addresses
    end = 0
    if wanted[FIRST_INDEX]:
        words[FIRST_INDEX] = address + end
        end = _copy(pinned, end, rows)
    for k in range(len(UPLOADED)):
        if wanted[FIRST_PART + k]:
            words[FIRST_PART + k] = address + end
            part = extents[UPLOADED[k]]
            end = _copy(pinned, end, indices[part[0] : part[1]])
    for k in range(len(segments)):
        if wanted[FIRST_SEGMENT + k]:
            words[FIRST_SEGMENT + k] = address + end
            end = _copy(pinned, end, segments[k])
    if wanted[USER_EDGE]:
        words[USER_EDGE] = address + end
        end = _copy(pinned, end, user_edge)
    words[WEIGHT] = address + end
    end = _copy(pinned, end, weight)
    words[SCALE] = address + end
    words[RANDOM_SEED] = address + end + 8
    pinned[end : end + 8].view(np.float64)[0] = loss_scale
    pinned[end + 8 : end + 16].view(np.int64)[0] = random_seed
    end += ALIGN
    starts_at = address + end
    end = _copy(pinned, end, starts)
    widths_at = address + end
    end = _copy(pinned, end, widths)
    first, params = FIXED + len(base), len(param_at)
    for k in range(len(base)):
        words[FIXED + k] = arena + base[k] * weight.itemsize
    for k in range(params):
        words[first + k] = values + param_at[k] * weight.itemsize
        words[first + params + k] = gradients + param_at[k] * weight.itemsize
    first += 2 * params
    for k in range(len(pulls)):  # integers, and behind the real values their indices
        word = first + (k if k < num_ints else len(pulls) - num_ints + k)
        if wanted[word]:
            words[word] = address + end
            end = _copy(pinned, end, pulls[k])
    addresses[0], addresses[1] = starts_at, widths_at
    for k in range(len(more)):
        addresses[2 + k] = address + end
        end = _copy(pinned, end, more[k])
    return end, addresses


@njit(cache=True, nogil=True)
def _copy(pinned: Array, at: int, array: Array) -> int:
    """Copy an array behind `at` and return where the next may start."""
    size = len(array) * array.itemsize
    out = pinned[at : at + size].view(array.dtype)
    for i in range(len(array)):
        out[i] = array[i]
    return at + (size + ALIGN - 1) // ALIGN * ALIGN
