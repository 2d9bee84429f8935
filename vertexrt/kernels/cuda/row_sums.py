"""Kernels that sum over the rows of a launch: gradients of parameters that no product makes."""

from __future__ import annotations

from collections.abc import Sequence

from vertexrt.kernels.cuda.row_text import WARP, RowText
from vertexrt.kernels.cuda.steps import ALWAYS, CHUNKED, CHUNKS, FIXED, SEGMENTS, Kernel
from vertexrt.kernels.layout import PAD
from vertexrt.lower.places import Rows, ValuePlace
from vertexrt.lower.values import Memories

SUM_THREADS = 256
COLUMNS_A_BLOCK = 4 * WARP  # of a sum over rows


def partial_elements(size: int) -> int:
    """Return the elements of temporary memory that the sums of chunks take."""
    return CHUNKS * (-(-size // PAD) * PAD)


def sum_rows(
    place: ValuePlace, targets: Sequence[str], used: Memories, vector: int, listed: bool
) -> list[Kernel]:
    """Write kernels that add up the rows of a value in a fixed order: chunks, then the chunks.

    Args:
        place: of the value; targets: words of the gradients to which its sum is added.
        used: memory of the launch; chunks leave their sums after it.
        vector: elements of 16 bytes.
        listed: a launch may have a list of rows.
    """
    edges, size = place.rows in (Rows.EDGE, Rows.LOCAL_EDGE), place.size
    found = []
    for second in (False, True):
        t = RowText(used.taken)
        names = [t.word(name, "real*") for name in targets]
        part = t.temporary(used.end)
        if second:
            t.line(f"add_partial_sums({part}, {size}, (int)a.chunks, [&](int j, real x) {{")
        else:
            count = f"(int)a.{'m' if edges else 'n'}"
            where = _row_pointer(t, place, listed)
            t.line(f"sum_columns({size}, {count}, {where}, {part}, [&](int j, real x) {{")
        for name in names:
            t.line(f"  {name}[j] += x;")
        t.line("});")
        blocks = -(-size // (SUM_THREADS if second else COLUMNS_A_BLOCK))
        body, when = t.kernel(SUM_THREADS), CHUNKED if second else ALWAYS
        words = tuple(t.words)
        found.append(Kernel(body, words, FIXED, blocks, SUM_THREADS, when, edges, adds=True))
    return found


def sum_lookups(
    place: ValuePlace, targets: Sequence[str], used: Memories, vector: int, listed: bool
) -> Kernel:
    """Write a kernel that adds rows to the rows of tables that were looked up, a block for each.

    The host sorts the rows of a launch by what they looked up (`driver.sort_lookups`).

    Args:
        place: of the rows; targets: words of the gradients of tables.
        used, vector, listed: see `sum_rows`.
    """
    size = place.size
    t = RowText(used.taken)
    names = [t.word(name, "real*") for name in targets]
    word, ptr = t.word("segment_word", "const int*"), t.word("segment_ptr", "const int*")
    member = t.word("segment_row", "const int*")
    where = _row_pointer(t, place, listed)
    aligned = all(n % vector == 0 for n in (size, place.step, place.start))
    width = vector if aligned else 1
    t.line(
        f"sum_segment<{width}>({size}, {member}, {ptr}[a.first + VRT_BLOCK.x], "
        f"{ptr}[a.first + VRT_BLOCK.x + 1], {where}, [&](int j, Vec<{width}> x) {{"
    )
    for name in names:
        at = f"{name} + (long long){word}[a.first + VRT_BLOCK.x] * {size} + j"
        t.line(f"  add_to<{width}>({at}, x);")
    t.line("});")
    body, columns = t.kernel(SUM_THREADS), -(-size // (WARP * width))
    return Kernel(body, tuple(t.words), SEGMENTS, columns, SUM_THREADS, adds=True)


def _row_pointer(t: RowText, place: ValuePlace, listed: bool) -> str:
    """Return a function from the number of a row (or edge) of the launch to its elements."""
    origin = t.origin(place)
    start = f" + {place.start}" if place.start else ""
    number = "i"
    if place.rows == Rows.EDGE:
        number = "(a.elo + i)"
    elif place.rows == Rows.ROW:
        number = "(a.lo + i)"
        if listed:
            rows = t.word("rows", "const int*")
            number = f"(a.lo >= 0 ? a.lo + i : {rows}[a.at + i])"
    return (
        "[&](int i) -> const real* { return "
        f"{origin} + (long long){number} * {place.step}{start}; }}"
    )
