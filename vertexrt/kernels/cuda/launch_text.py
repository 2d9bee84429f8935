"""Print the launches of a task program: kernels as CUDA, and what calls them as data."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.row_text import RowText, tensor_word
from vertexrt.kernels.cuda.thread_text import ThreadText
from vertexrt.lower.kernel import (
    MatrixProduct,
    Memory,
    Operand,
    Outer,
    PlaceRows,
    Temporary,
    ValuePlace,
    register_name,
)
from vertexrt.lower.launches import (
    BlockProduct,
    ChildRows,
    FewRowsProducts,
    Finished,
    FinishedRows,
    Gathered,
    GroupLaunch,
    LaunchPlan,
    LaunchStep,
    LibraryProduct,
    LookupSum,
    RowRange,
    RowsGiven,
    RowSum,
    TableRows,
    TiledProduct,
)
from vertexrt.lower.threads import ThreadKernel


def write_launches(plan: LaunchPlan) -> Launches:
    """Print a plan."""
    return Launches(plan, tuple(_printed(step, plan.temporaries) for step in plan.steps))


def _printed(step: LaunchStep, taken: Sequence[Temporary]) -> Step:
    """Return the kernel, or the product of cuBLAS, of a step."""
    match step:
        case LibraryProduct():
            return step
        case GroupLaunch():
            return _group(step, taken)
        case FewRowsProducts():
            return _few_rows(step, taken)
        case TiledProduct():
            return _tiled(step, taken)
        case RowSum():
            return _sum_chunks(step, taken)
        case LookupSum():
            return _sum_lookups(step, taken)


def _kernel(t: RowText, over: int, each: int, threads: int, **facts: Any) -> Kernel:
    return Kernel(t.kernel(threads), tuple(t.words), over, each, threads, **facts)


def _group(step: GroupLaunch, taken: Sequence[Temporary]) -> Kernel:
    kernel = step.kernel
    text = ThreadText(kernel, taken)
    body, threads = text.row_kernel(), kernel.threads * kernel.rows
    over, words = EDGES if kernel.edges else ROWS, tuple(text.t.words)
    scratch = kernel.rows * kernel.scratch
    return Kernel(
        body, words, over, kernel.rows, threads, step.only_listed, rows=step.rows, scratch=scratch
    )


# Products of few rows.


def _few_rows(step: FewRowsProducts, taken: Sequence[Temporary]) -> Kernel:
    """Print a kernel in which each product has its range of blocks."""
    t = RowText(taken)
    if not step.warp_columns:
        t.line(f"VRT_SCRATCH(FewRowsMemory<{step.tile_rows}>, memory, 1);")
    for part in step.parts:
        t.line(f"if (VRT_BLOCK.x < {part.first + part.blocks}) {{")
        t.line(f"  {_block_product(t, step, part)};")
        t.line("  return;")
        t.line("}")
    rows = {"rows": step.rows, "tile_rows": step.tile_rows}
    return _kernel(t, TILES, step.across, step.threads, **rows, counters=step.counters)


def _block_product(t: RowText, step: FewRowsProducts, part: BlockProduct) -> str:
    p, given = part.of.product, f"(int)VRT_BLOCK.x - {part.first}, {_count(part.of.product)}, "
    weight = t.word(f"param_{p.param}")
    source, target = _source(t, part.of.source, p.deep), _target(t, part.of.target, p.wide)
    given += f"{source}, {weight}, {target}"
    if step.warp_columns:
        return f"product_by_warps<{p.wide}, {p.deep}, {step.warp_columns}>({given})"
    left = "nullptr, nullptr"
    if part.splits > 1:
        left = f"{t.temporary(step.partial)} + {part.partial}"
        left += f", {t.word('arrived')} + {part.counter}"
    turned = str(p.transposed).lower()
    kind = f"{step.tile_rows}, {turned}, {p.wide}, {p.deep}, {part.splits}, {part.width}"
    return f"product_tile<{kind}>(memory[0], VRT_BLOCK.y, {given}, {left})"


def _source(t: RowText, given: Operand | Gathered, deep: int) -> str:
    """Return a function from the number of a row to the row."""
    before, there = "", ""
    match given:
        case Operand():
            found = f"{_first(t, given)} + (long long)i * {deep}"
        case ChildRows():
            before, there = _child(t, given), "there"
            found = f"{t.word(f'tensor_{given.tensor}')} + (long long)child_row[e] * {deep}"
        case TableRows() | RowsGiven():
            names = f"float_{given.pull}", f"float_index_{given.pull}"
            if isinstance(given, TableRows):
                names = f"param_{given.param}", f"int_{given.pull}"
            table, pull = t.word(names[0]), t.word(names[1])
            order = t.word("order")
            before, there = f"{_row_of(t, True)} const int at = {pull}[{order}[row]];", "at >= 0"
            found = f"{table} + (long long)at * {deep}"
    found = f"{there} ? {found} : nullptr" if there else found
    return f"[&](int i) -> const float* {{ {before} return {found}; }}"


def _target(t: RowText, given: Operand | Finished, wide: int) -> str:
    """Return a function that takes a result, given the numbers of its row and column."""
    match given:
        case Operand():
            body = f"({_first(t, given)})[(long long)i * {wide} + j] = v;"
        case FinishedRows():
            body = _finished(t, given)
        case ChildRows():
            body = f"{_child(t, given)} if (there) {t.word(f'tensor_{given.tensor}')}"
            body += f"[(long long)e * {wide} + j] = v;"
    return f"[&](int i, int j, float v) {{ {body} }}"


def _finished(t: RowText, given: FinishedRows) -> str:
    """Return the statements that make of a result what a group makes of it."""
    text = ThreadText(ThreadKernel(1, 0, 0, 0, False, given.listed, ()), t.taken)
    lines, name = text.of_element(given.statements), register_name(given.register)
    for word in text.t.words:
        t.word(word)
    held = f"constexpr int W = 1; Vec<1> {name}; {name}.v[0] = v;"
    return " ".join([_row_of(t, given.listed), held, *text.t.head, *lines])


def _row_of(t: RowText, listed: bool) -> str:
    """Return the statement that finds the row of a launch, which may have a list of rows."""
    row = "(int)a.lo + i"
    if listed:
        row = f"a.lo >= 0 ? {row} : {t.word('rows')}[a.at + i]"
    return f"const int row = {row};"


def _child(t: RowText, slot: ChildRows) -> str:
    """Return statements that find the edge `e` of a slot, and whether a child is `there`."""
    first, child = t.word("edge_ptr"), t.word("child_row")
    edge = f"const int e = {first}[row] + {slot.slot};"
    there = f"const bool there = e < {first}[row + 1] && {child}[e] >= 0;"
    return f"{_row_of(t, slot.listed)} {edge} {there}"


# Products of many rows, and gradients.


def _tiled(step: TiledProduct, taken: Sequence[Temporary]) -> Kernel:
    p, t, splits, left = step.product, RowText(taken), step.splits, "nullptr, nullptr"
    if splits > 1:
        left = f"{t.temporary(step.partial)}, {t.word('arrived')}"
    x, count = _first(t, p.x), _count(p)
    across, rows, down, counters = step.across * splits, step.tile_rows, 0, ONE_A_BLOCK
    if isinstance(p, Outer):
        gradient, d = t.word(f"gradient_{p.param}"), _first(t, p.d)
        call = f"true, true, {step.width}>({gradient}, {left}, {d}, {x}, {p.m}, {p.n}, {count})"
        across, rows, down, counters = step.across, LIMITS.rows_a_split, splits, step.across
    else:
        y, w = _first(t, p.y), t.word(f"param_{p.param}")
        call = f"false, {str(p.transposed).lower()}, {step.width}>({y}, {left}, {x}, {w}, "
        call += f"{count}, {p.wide}, {p.deep})"
        if step.is_short:
            call = f"{p.wide}, {p.deep}, {rows}>({count}, {x}, {w}, {y})"
    t.line(f"{'short_rows' if step.is_short else 'many_rows_product'}<{call};")
    return _kernel(
        t,
        TILES,
        across,
        step.threads,
        rows=step.rows,
        tile_rows=rows,
        down=down,
        adds=isinstance(p, Outer),
        counters=counters if splits > 1 else 0,
        product=LibraryProduct(p, step.rows),
    )


# Sums of rows.


def _sum_chunks(step: RowSum, taken: Sequence[Temporary]) -> Kernel:
    t = RowText(taken)
    names, part = _gradients(t, step.params), t.temporary(step.partial)
    where, count = _row(t, step.source, step.listed), f"(int)a.{'m' if step.edges else 'n'}"
    size = step.source.size
    arrived = t.word("arrived")
    t.line(f"sum_columns({size}, {count}, {where}, {part}, {arrived}, [&](int j, real x) {{")
    t.lines += [*(f"  {name}[j] += x;" for name in names), "});"]
    return _kernel(
        t,
        TILES,
        step.across,
        step.threads,
        rows=RowRange(not step.edges, step.edges),
        tile_rows=LIMITS.rows_a_chunk,
        down=LIMITS.chunks,
        adds=True,
        counters=step.across,
    )


def _sum_lookups(step: LookupSum, taken: Sequence[Temporary]) -> Kernel:
    t, size, width = RowText(taken), step.source.size, step.width
    names = _gradients(t, step.params)
    word, ptr = t.word("segment_word"), t.word("segment_ptr")
    member = t.word("segment_row")
    where = _row(t, step.source, step.listed)
    t.line(
        f"sum_segment<{width}>({size}, {member}, {ptr}[a.first + VRT_BLOCK.x], "
        f"{ptr}[a.first + VRT_BLOCK.x + 1], {where}, [&](int j, Vec<{width}> x) {{"
    )
    for name in names:
        at = f"{name} + (long long){word}[a.first + VRT_BLOCK.x] * {size} + j"
        t.line(f"  add_to<{width}>({at}, x);")
    t.line("});")
    return _kernel(t, SEGMENTS, step.down, step.threads, adds=True)


def _gradients(t: RowText, params: Sequence[int]) -> list[str]:
    return [t.word(f"gradient_{param}") for param in params]


# Rows in memory.


def _count(p: MatrixProduct | Outer) -> str:
    return f"(int)a.{'m' if p.edges else 'n'} * {p.each}"


def _first(t: RowText, operand: Operand) -> str:
    """Return the pointer to the first row of an operand."""
    place = operand.place
    start = f" + {place.start}" if place.start else ""
    if place.memory == Memory.TEMPORARY:
        return t.origin(place) + start
    word = t.word(tensor_word(place))
    if place.rows == PlaceRows.EDGE:
        return f"{word} + a.elo * {place.step}{start}"
    rows = f"{word} + a.lo * {place.step}{start}"
    return f"(a.lo >= 0 ? {rows} : {t.origin(operand.packed)})" if operand.packed else rows


def _row(t: RowText, place: ValuePlace, listed: bool) -> str:
    """Return a function from the number of a row (or edge) of the launch to its elements."""
    origin = t.origin(place)
    start = f" + {place.start}" if place.start else ""
    number = "i"
    if place.rows == PlaceRows.EDGE:
        number = "(a.elo + i)"
    elif place.rows == PlaceRows.ROW and listed:
        rows = t.word("rows")
        number = f"(a.lo >= 0 ? a.lo + i : {rows}[a.at + i])"
    elif place.rows == PlaceRows.ROW:
        number = "(a.lo + i)"
    return (
        "[&](int i) -> const real* { return "
        f"{origin} + (long long){number} * {place.step}{start}; }}"
    )


Array = np.ndarray[Any, Any]

# What the grid of a kernel covers.
ROWS, EDGES, SEGMENTS, TILES = range(4)
ONE_A_BLOCK = -1  # counters


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch of a kernel of this program.

    Attributes:
        body: its source, named NAME.
        words: what it is given, by name.
        over: what its grid covers.
        each: how much of it a block does; blocks across the grid where it covers tiles; its second
            extent where it covers segments.
        only_listed: it is launched where rows are listed.
        rows: for which launches it is there, None for all; tile_rows: of a block, by which the
            second extent follows; down: the most of that, 0 where there is none.
        adds: it makes nothing that a later step of the program reads; it only adds to gradients.
        counters: that blocks need which share work, or ONE_A_BLOCK; zero before and after.
        product: the same as a product of a library, where it is one.
        scratch: elements of shared memory that a block has for its rows.
    """

    body: str
    words: tuple[str, ...]
    over: int
    each: int
    threads: int
    only_listed: bool = False
    rows: RowRange | None = None
    tile_rows: int = 1
    down: int = 0
    adds: bool = False
    counters: int = 0
    product: LibraryProduct | None = None
    scratch: int = 0


Step = Kernel | LibraryProduct


@dataclass(frozen=True, slots=True)
class Launches:
    """What runs for one row of the launch table.

    Attributes:
        plan: what it was printed from.
        steps: in order.
    """

    plan: LaunchPlan
    steps: tuple[Step, ...] = ()

    @property
    def lookups(self) -> list[int]:
        """Return the integer pull of each step that adds to the rows of a table."""
        sums = (step for step in self.plan.steps if isinstance(step, LookupSum))
        return [-1 - step.pull if step.edges else step.pull for step in sums]


def csr(lists: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Return lists of numbers in compressed form, int64, with a zero at the end."""
    ptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return ptr, np.array([*itertools.chain(*lists), 0], np.int64)


class StepEffects(NamedTuple):
    """What the steps of all programs leave to others.

    Attributes:
        only: bool [steps + 1] see `Kernel.adds`; the last is False.
        ptr, gradients: int64, CSR of the gradients that each step adds to, by their numbers.
        temporaries: bool [steps] which read or write temporaries of their launch.
        counters: int64 [steps] see `Kernel.counters`.
    """

    only: Array
    ptr: Array
    gradients: Array
    temporaries: Array
    counters: Array


def effects_of(steps: Sequence[Step], owners: Mapping[int, int]) -> StepEffects:
    """Find what steps leave to others.

    Args:
        owners: of `layout.gradient_owners`.
    """
    found: list[tuple[bool, list[int], bool, int]] = []
    for step in steps:
        if isinstance(step, Kernel):
            added = (w for w in step.words if w.startswith("gradient_"))
            numbers = {owners[int(w.removeprefix("gradient_"))] for w in added}
            temporaries = "temporary" in step.words
            found.append((step.adds, sorted(numbers), temporaries, step.counters))
        else:
            adds = isinstance(step.product, Outer)
            temporaries = any(
                operand.packed is not None or operand.place.memory == Memory.TEMPORARY
                for operand in step.operands
            )
            found.append((adds, [owners[step.product.param]] if adds else [], temporaries, 0))
    return StepEffects(
        np.array([*(each[0] for each in found), False], np.bool_),
        *csr([each[1] for each in found]),
        np.array([each[2] for each in found], np.bool_),
        np.array([each[3] for each in found], np.int64),
    )
