"""Print the launches of a task program: kernels as CUDA, and what calls them as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from vertexrt.kernels.cuda.launch_limits import LIMITS
from vertexrt.kernels.cuda.row_text import RowText, tensor_word
from vertexrt.kernels.cuda.steps import (
    ALWAYS,
    CHUNKED,
    EDGES,
    FIXED,
    LISTED,
    ROWS,
    SEGMENTS,
    SPLITS,
    TILES,
    Kernel,
    Launches,
    Step,
)
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
    LargeProduct,
    LaunchPlan,
    LaunchStep,
    LibraryProduct,
    LookupSum,
    OuterProduct,
    RowsGiven,
    RowSum,
    TableRows,
)
from vertexrt.lower.threads import ThreadKernel


def write_launches(plan: LaunchPlan) -> Launches:
    """Print a plan."""
    steps = tuple(x for step in plan.steps for x in _printed(step, plan.temporaries))
    return Launches(plan, steps)


def _printed(step: LaunchStep, taken: Sequence[Temporary]) -> Iterator[Step]:
    """Yield the kernels, or the product of cuBLAS, of a step."""
    match step:
        case LibraryProduct():
            yield step
        case GroupLaunch():
            yield _group(step, taken)
        case FewRowsProducts():
            yield _few_rows(step, taken)
        case LargeProduct():
            yield _large(step, taken)
            if step.partial is not None:
                yield _add_row_splits(step, step.partial, taken)
        case OuterProduct():
            yield _outer(step, taken)
            yield _add_splits(step, taken)
        case RowSum():
            yield _sum_chunks(step, taken)
            yield _add_chunks(step, taken)
        case LookupSum():
            yield _sum_lookups(step, taken)


def _kernel(t: RowText, over: int, each: int, threads: int) -> Kernel:
    return Kernel(t.kernel(threads), tuple(t.words), over, each, threads)


def _group(step: GroupLaunch, taken: Sequence[Temporary]) -> Kernel:
    kernel = step.kernel
    text = ThreadText(kernel, taken)
    body, threads = text.row_kernel(), kernel.threads * kernel.rows
    over, words = EDGES if kernel.edges else ROWS, tuple(text.t.words)
    when = LISTED if step.only_listed else ALWAYS
    scratch = kernel.rows * kernel.scratch
    return Kernel(body, words, over, kernel.rows, threads, when, rows=step.rows, scratch=scratch)


# Products of few rows.


def _few_rows(step: FewRowsProducts, taken: Sequence[Temporary]) -> Kernel:
    """Print a kernel in which each product has its range of blocks."""
    t = RowText(taken)
    if not step.warp_columns:
        t.line(f"VRT_SCRATCH(TileMemory<{step.tile_rows}>, memory, 1);")
    for part in step.parts:
        block = f"(int)VRT_BLOCK.x - {part.first}" if part.first else "(int)VRT_BLOCK.x"
        t.line(f"if (VRT_BLOCK.x < {part.first + part.blocks}) {{")
        t.lines += (_by_warps if step.warp_columns else _by_tile)(t, step, part, block)
        t.line("  return;")
        t.line("}")
    kernel = _kernel(t, TILES, step.across, step.threads)
    tile_rows, counters = step.tile_rows, step.counters
    return replace(kernel, rows=step.rows, tile_rows=tile_rows, counters=counters)


def _by_tile(t: RowText, step: FewRowsProducts, part: BlockProduct, block: str) -> list[str]:
    p = part.of.product
    turned = str(p.transposed).lower()
    kind = f"{step.tile_rows}, {turned}, {p.wide}, {p.deep}, {part.splits}, {part.width}"
    weight = t.word(f"param_{p.param}", "const real*")
    left = arrived = "nullptr"
    if part.splits > 1:
        left = f"{t.temporary(step.partial)} + {part.partial}"
        arrived = f"{t.word('arrived', 'int*')} + {part.counter}"
    return [
        f"  product_tile<{kind}>(memory[0], VRT_BLOCK.y, {block}, {_count(p)},",
        f"    {_source(t, part.of.source, p.deep)}, {weight},",
        f"    {_target(t, part.of.target, p.wide)}, {left}, {arrived});",
    ]


def _by_warps(t: RowText, step: FewRowsProducts, part: BlockProduct, block: str) -> list[str]:
    p = part.of.product
    weight = t.word(f"param_{p.param}", "const real*")
    source, target = _source(t, part.of.source, p.deep), _target(t, part.of.target, p.wide)
    return [
        f"  product_by_warps<{p.wide}, {p.deep}, {step.warp_columns}>({block}, {_count(p)},",
        f"    {source}, {weight}, {target});",
    ]


def _source(t: RowText, given: Operand | Gathered, deep: int) -> str:
    """Return a function from the number of a row to the row."""
    if isinstance(given, Operand):
        x = _first(t, given)
        return f"[&](int i) -> const float* {{ return {x} + (long long)i * {deep}; }}"
    if isinstance(given, TableRows | RowsGiven):
        if isinstance(given, TableRows):
            table = t.word(f"param_{given.param}", "const real*")
            pull = t.word(f"int_{given.pull}", "const int*")
        else:
            table = t.word(f"float_{given.pull}", "const real*")
            pull = t.word(f"float_index_{given.pull}", "const int*")
        row = _listed_row(t)
        at = f"const int at = {pull}[{t.word('order', 'const int*')}[row]];"
        found = f"at >= 0 ? {table} + (long long)at * {deep} : nullptr"
        return f"[&](int i) -> const float* {{ {row} {at} return {found}; }}"
    child, tensor = _child(t, given), t.word(f"tensor_{given.tensor}", "real*")
    row = f"{tensor} + (long long)child_row[e] * {deep}"
    return f"[&](int i) -> const float* {{ {child} return there ? {row} : nullptr; }}"


def _target(t: RowText, given: Operand | Finished, wide: int) -> str:
    """Return a function that takes a result, given the numbers of its row and column."""
    if isinstance(given, Operand):
        y = _first(t, given)
        return f"[&](int i, int j, float v) {{ ({y})[(long long)i * {wide} + j] = v; }}"
    if isinstance(given, FinishedRows):
        return _finished(t, given)
    child, tensor = _child(t, given), t.word(f"tensor_{given.tensor}", "real*")
    store = f"if (there) {tensor}[(long long)e * {wide} + j] = v;"
    return f"[&](int i, int j, float v) {{ {child} {store} }}"


def _finished(t: RowText, given: FinishedRows) -> str:
    """Return a function that makes of a result what a group makes of it."""
    text = ThreadText(ThreadKernel(1, 0, 0, 0, False, given.listed, ()), t.taken)
    lines, name = text.of_element(given.statements), register_name(given.register)
    for word, kind in text.t.words.items():
        t.word(word, kind)
    row = _listed_row(t) if given.listed else "const int row = (int)a.lo + i;"
    held = f"constexpr int W = 1; Vec<1> {name}; {name}.v[0] = v;"
    return f"[&](int i, int j, float v) {{ {row} {held} {' '.join([*text.t.head, *lines])} }}"


def _listed_row(t: RowText) -> str:
    """Return the statement that finds the row of a launch that may have a list of rows."""
    return f"const int row = a.lo >= 0 ? (int)a.lo + i : {t.word('rows', 'const int*')}[a.at + i];"


def _child(t: RowText, slot: ChildRows) -> str:
    """Return statements that find the edge `e` of a slot, and whether a child is `there`."""
    first, child = t.word("edge_ptr", "const int*"), t.word("child_row", "const int*")
    row = _listed_row(t) if slot.listed else "const int row = (int)a.lo + i;"
    edge = f"const int e = {first}[row] + {slot.slot};"
    return f"{row} {edge} const bool there = e < {first}[row + 1] && {child}[e] >= 0;"


# Products of many rows.


def _large(step: LargeProduct, taken: Sequence[Temporary]) -> Kernel:
    p, t = step.product, RowText(taken)
    weight = t.word(f"param_{p.param}", "const real*")
    x, y = _first(t, p.x), _first(t, p.y) if step.partial is None else t.origin(step.partial)
    if step.is_short:
        kind = f"{p.wide}, {p.deep}, {step.tile_rows}"
        t.line(f"short_rows<{kind}>({_count(p)}, {x}, {weight}, {y});")
    else:
        t.line(f"many_rows_product<{str(p.transposed).lower()}, {step.width}>({y},")
        t.line(f"  {x}, {weight}, {_count(p)}, {p.wide}, {p.deep}, {step.across});")
    kernel = _kernel(t, TILES, step.across * step.splits, step.threads)
    product = LibraryProduct(p, step.rows)
    return replace(kernel, rows=step.rows, tile_rows=step.tile_rows, product=product)


def _add_row_splits(step: LargeProduct, partial: ValuePlace, taken: Sequence[Temporary]) -> Kernel:
    p, t = step.product, RowText(taken)
    t.line(f"add_row_splits({_first(t, p.y)},")
    t.line(f"  {t.origin(partial)}, {_count(p)}, {p.wide}, {step.splits});")
    kernel = _kernel(t, TILES, 1, step.threads)
    rows = max(1, LIMITS.added_each // p.wide)
    return replace(kernel, when=CHUNKED, rows=step.rows, tile_rows=rows)


def _outer(step: OuterProduct, taken: Sequence[Temporary]) -> Kernel:
    p, t = step.product, RowText(taken)
    gradient, left = t.word(f"gradient_{p.param}", "real*"), t.temporary(step.partial)
    d, x = _first(t, p.d), _first(t, p.x)
    t.line(f"outer_product<{step.width}>({gradient}, {left}, {d},")
    t.line(f"  {x}, {p.m}, {p.n}, {_count(p)});")
    kernel = _kernel(t, SPLITS, step.across, step.threads)
    product = LibraryProduct(p, step.rows)
    return replace(kernel, rows=step.rows, tile_rows=step.splits, adds=True, product=product)


def _add_splits(step: OuterProduct, taken: Sequence[Temporary]) -> Kernel:
    p, t = step.product, RowText(taken)
    gradient, left = t.word(f"gradient_{p.param}", "real*"), t.temporary(step.partial)
    t.line(f"add_splits({gradient}, {left}, {p.m * p.n}, (int)a.chunks);")
    kernel = _kernel(t, SPLITS, step.adding, step.threads)
    return replace(kernel, when=CHUNKED, rows=step.rows, tile_rows=step.splits, adds=True)


# Sums of rows.


def _sum_chunks(step: RowSum, taken: Sequence[Temporary]) -> Kernel:
    t = RowText(taken)
    names, part = _gradients(t, step.params), t.temporary(step.partial)
    where, count = _row(t, step.source, step.listed), f"(int)a.{'m' if step.edges else 'n'}"
    size = step.source.size
    t.line(f"sum_columns({size}, {count}, {where}, {part}, [&](int j, real x) {{")
    t.lines += [*(f"  {name}[j] += x;" for name in names), "});"]
    kernel = _kernel(t, FIXED, step.across, step.threads)
    return replace(kernel, edges=step.edges, adds=True)


def _add_chunks(step: RowSum, taken: Sequence[Temporary]) -> Kernel:
    t = RowText(taken)
    names, part = _gradients(t, step.params), t.temporary(step.partial)
    t.line(f"add_partial_sums({part}, {step.source.size}, (int)a.chunks, [&](int j, real x) {{")
    t.lines += [*(f"  {name}[j] += x;" for name in names), "});"]
    kernel = _kernel(t, FIXED, step.adding, step.threads)
    return replace(kernel, when=CHUNKED, edges=step.edges, adds=True)


def _sum_lookups(step: LookupSum, taken: Sequence[Temporary]) -> Kernel:
    t, size, width = RowText(taken), step.source.size, step.width
    names = _gradients(t, step.params)
    word, ptr = t.word("segment_word", "const int*"), t.word("segment_ptr", "const int*")
    member = t.word("segment_row", "const int*")
    where = _row(t, step.source, step.listed)
    t.line(
        f"sum_segment<{width}>({size}, {member}, {ptr}[a.first + VRT_BLOCK.x], "
        f"{ptr}[a.first + VRT_BLOCK.x + 1], {where}, [&](int j, Vec<{width}> x) {{"
    )
    for name in names:
        at = f"{name} + (long long){word}[a.first + VRT_BLOCK.x] * {size} + j"
        t.line(f"  add_to<{width}>({at}, x);")
    t.line("});")
    kernel = _kernel(t, SEGMENTS, step.down, step.threads)
    return replace(kernel, adds=True)


def _gradients(t: RowText, params: Sequence[int]) -> list[str]:
    return [t.word(f"gradient_{param}", "real*") for param in params]


# Rows in memory.


def _count(p: MatrixProduct | Outer) -> str:
    return f"(int)a.{'m' if p.edges else 'n'} * {p.each}"


def _first(t: RowText, operand: Operand) -> str:
    """Return the pointer to the first row of an operand."""
    place = operand.place
    start = f" + {place.start}" if place.start else ""
    if place.memory == Memory.TEMPORARY:
        return t.origin(place) + start
    word = t.word(tensor_word(place), "real*")
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
        rows = t.word("rows", "const int*")
        number = f"(a.lo >= 0 ? a.lo + i : {rows}[a.at + i])"
    elif place.rows == PlaceRows.ROW:
        number = "(a.lo + i)"
    return (
        "[&](int i) -> const real* { return "
        f"{origin} + (long long){number} * {place.step}{start}; }}"
    )
