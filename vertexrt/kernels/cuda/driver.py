"""The compiled loop that launches a step: it reads the launch table and calls the CUDA driver.

Nothing is decided in Python between two launches: at batch 1 a step has a hundred of them, and each
takes 2 to 3 us here. Kernels and cuBLAS are called by address, so that machine code is cached on
disk and the shim (`tests/shim`) can stand in for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vertexrt.kernels.cuda.calls import (
    FIRST_ARGUMENT,
    ITEMSIZE,
    LAUNCH,
    NO_TRANSPOSE,
    ONE,
    STREAM,
    TRANSPOSE,
    ZERO,
    Blocks,
    GemmCall,
    launch_kernel,
    new_arguments,
)
from vertexrt.kernels.cuda.device import CUBLAS_CODES, SIZE
from vertexrt.kernels.cuda.pack import TEMPORARY
from vertexrt.kernels.cuda.row_text import tensor_word
from vertexrt.kernels.cuda.steps import (
    EDGES,
    LISTED,
    SEGMENTS,
    Kernel,
    Launches,
)
from vertexrt.kernels.cuda.steps import ROWS as OVER_ROWS
from vertexrt.kernels.cuda.wide_products import multiply
from vertexrt.kernels.layout import PAD
from vertexrt.lower.kernel import MatrixProduct, Memory, Operand, PlaceRows, Temporary
from vertexrt.lower.launches import LibraryProduct, RowRange
from vertexrt.native.compiled import compiled

Array = np.ndarray[Any, Any]

# Columns of a step. A kernel and a product share the first, and those of tiles.
IS_GEMM = 0
FUNCTION, OVER, EACH, THREADS, WHEN, DOWN, WORDS, WORD_COUNT, LOOKUP = range(1, 10)
PER_ROW, PER_EDGE, LOW, HIGH, TILE_ROWS = range(21, 26)  # high is 0 where there is no bound
FORM, WEIGHT, M, K, GEMM_EDGES, TIMES, X, Y = 1, 2, 3, 4, 5, 6, 7, 14
WORD, BY, STEP, START, T_ROWS, T_EDGES, T_ONCE = range(7)
STEP_COLUMNS = 26
PLAIN, TRANSPOSED, OUTER = range(3)  # products: y = x w^T, y = x w, g += d^T x
BY_ROW, BY_EDGE, IN_TEMPORARY, ROW_OR_TEMPORARY = range(4)  # how an operand's first row is found
HEAD = 6  # values of `Args` before its words

NOTHING = Temporary(0, 0, 0)
ROWS_A_PRODUCT = 1 << 14  # of an outer product: sums over more lose digits of float32


class Grid(NamedTuple):
    """How much of a step there is to do.

    Attributes:
        across, down: blocks of a kernel, or rows of a product; across is 0 where nothing is.
        first: of the arguments of a kernel.
    """

    across: int
    down: int
    first: int


@compiled
def extent(step: Array, row: Array, lookup_at: Array, lookup: int) -> Grid:
    """Return how much of a step a launch has to do.

    Args:
        row: the launch's, of the table.
        lookup_at: see `launch`; lookup: the first of the launch.
    """
    n, listed, m = row[1], row[2] < 0, row[4]
    most = max(n * step[PER_ROW], m * step[PER_EDGE])
    if step[HIGH] and not step[LOW] < most <= step[HIGH]:
        return Grid(0, 0, 0)
    if step[IS_GEMM]:
        return Grid((m if step[GEMM_EDGES] else n) * step[TIMES], 1, 0)
    over, each = step[OVER], step[EACH]
    if step[WHEN] == LISTED and not listed:
        return Grid(0, 0, 0)
    if over in (OVER_ROWS, EDGES):
        return Grid(((n if over == OVER_ROWS else m) + each - 1) // each, 1, 0)
    if over == SEGMENTS:
        first = lookup_at[lookup + step[LOOKUP]]
        return Grid(lookup_at[lookup + step[LOOKUP] + 1] - first, each, first)
    down = (most + step[TILE_ROWS] - 1) // step[TILE_ROWS]
    return Grid(each, min(down, step[DOWN]) if step[DOWN] else down, 0)


def _operand(step: Array, at: int, row: Array, words: Array, itemsize: int) -> Any:
    """Return the address of the first row of an operand of a product.

    Args:
        at: X or Y; row: the launch's, of the table.
    """
    n, lo, m, elo = row[1], row[2], row[4], row[5]
    by, start = step[at + BY], step[at + START]
    if by == BY_EDGE:
        return words[step[at + WORD]] + itemsize * (elo * step[at + STEP] + start)
    if by == BY_ROW or (by == ROW_OR_TEMPORARY and lo >= 0):
        return words[step[at + WORD]] + itemsize * (lo * step[at + STEP] + start)
    n_pad = (n + PAD - 1) // PAD * PAD
    m_pad = (m + PAD - 1) // PAD * PAD
    before = n_pad * step[at + T_ROWS] + m_pad * step[at + T_EDGES] + step[at + T_ONCE]
    if by != ROW_OR_TEMPORARY:
        before += start
    return words[TEMPORARY] + itemsize * before


def sizes_of(step: Array, rows: int) -> tuple[int, int, int]:
    """Return the sizes of a product of so many rows, [m, k] by [k, n] as cuBLAS has them.

    Of an outer product these are of the first call, where rows take several.
    """
    if step[FORM] == PLAIN:
        return step[M], rows, step[K]
    if step[FORM] == OUTER:
        return step[K], step[M], min(rows, ROWS_A_PRODUCT)
    return step[K], rows, step[M]


def _launch_product(step: Array, row: Array, count: int, words: Array, calls: Array) -> Any:
    """Launch a product of so many rows; return the error of cuBLAS, plus CUBLAS_CODES."""
    size, one, zero = calls[ITEMSIZE], calls[ONE], calls[ZERO]
    x = _operand(step, X, row, words, size)
    y = _operand(step, Y, row, words, size)
    w, form, code = words[step[WEIGHT]], step[FORM], 0
    if form == OUTER:
        for begin in range(0, count, ROWS_A_PRODUCT):
            m, n, k = sizes_of(step, count - begin)
            a, b = x + begin * m * size, y + begin * n * size
            asked = GemmCall(NO_TRANSPOSE, TRANSPOSE, m, n, k, one, a, m, b, n, one, w, m)
            if code == 0:
                code = multiply(calls, asked)
    else:
        m, n, k = sizes_of(step, count)
        turned, pitch = (TRANSPOSE, k) if form == PLAIN else (NO_TRANSPOSE, m)
        asked = GemmCall(turned, NO_TRANSPOSE, m, n, k, one, w, pitch, x, k, zero, y, m)
        code = multiply(calls, asked)
    return code + CUBLAS_CODES if code != 0 else code


def room_for_arguments(steps: Array) -> Array:
    """Return room for the arguments of each of some steps."""
    most = 1
    for s in range(len(steps)):
        if not steps[s, IS_GEMM]:
            most = max(most, steps[s, WORD_COUNT])
    return new_arguments(HEAD + most)


def launch_step(
    step: Array,
    row: Array,
    grid: Grid,
    step_words: Array,
    words: Array,
    calls: Array,
    arguments: Array,
) -> Any:
    """Launch a step; return the error of the driver, or of cuBLAS plus CUBLAS_CODES.

    Args:
        row: the launch's, of the table; grid: what `extent` returns.
        arguments: what `room_for_arguments` returned.
    """
    if step[IS_GEMM]:
        return _launch_product(step, row, grid.across, words, calls)
    at = FIRST_ARGUMENT
    for k in range(1, 6):
        arguments[at + k - 1] = row[k]
    arguments[at + 5] = grid.first
    first, count = step[WORDS], step[WORD_COUNT]
    for w in range(count):
        arguments[at + HEAD + w] = words[step_words[first + w]]
    arguments[SIZE] = 8 * (HEAD + max(1, count))
    blocks = Blocks(grid.across, grid.down, step[THREADS])
    extra = arguments.ctypes.data
    return launch_kernel(calls[LAUNCH], step[FUNCTION], blocks, calls[STREAM], extra, 0)


@compiled
def launch(
    table: Array, program: tuple[Array, ...], words: Array, lookups: tuple[Array, ...], calls: Array
) -> tuple[int, int, int]:
    """Launch every step of every row of a table.

    Args:
        table: see `layout`.
        program: of `encode`: steps_ptr [programs + 1] and steps [steps, STEP_COLUMNS], what each
            program launches; step_words [*] numbers of the words of each kernel.
        words: int64 [words] what they are in this run.
        lookups: lookup_ptr [launches + 1] first sorted lookup of each launch, and lookup_at
            [lookups + 1] its first segment.
        calls: of `addresses_of`.
    Returns: the error of the driver (or of cuBLAS, plus CUBLAS_CODES), 0 for none; launch and step.
    """
    steps_ptr, steps, step_words = program
    lookup_ptr, lookup_at = lookups
    arguments = room_for_arguments(steps)
    for t in range(len(table)):
        row = table[t]
        for s in range(steps_ptr[row[0]], steps_ptr[row[0] + 1]):
            step = steps[s]
            grid = extent(step, row, lookup_at, lookup_ptr[t])
            if grid.across == 0:
                continue
            code = launch_step(step, row, grid, step_words, words, calls, arguments)
            if code != 0:
                return code, t, s
    return 0, 0, 0


def encode(
    launches: Sequence[Launches], functions: Sequence[Sequence[int]], numbers: Mapping[str, int]
) -> tuple[Array, Array, Array]:
    """Write the steps of all programs as the driver reads them.

    Args:
        functions: for each program the address of each step's kernel, 0 for products.
        numbers: name of a word -> its number.
    Returns: steps_ptr, steps, step_words; see `launch`.
    """
    pointers, rows = [0], []
    words: list[int] = []
    for program, addresses in zip(launches, functions, strict=True):
        lookups = 0
        for step, address in zip(program.steps, addresses, strict=True):
            row = np.zeros(STEP_COLUMNS, np.int64)
            if isinstance(step, Kernel):
                _encode_kernel(row, step, address, len(words))
                row[LOOKUP] = lookups
                lookups += step.over == SEGMENTS
                words += [numbers[name] for name in step.words]
            else:
                _encode_product(row, step, program.plan.temporaries, numbers)
            rows.append(row)
        pointers.append(len(rows))
    steps = np.array(rows, np.int64).reshape(-1, STEP_COLUMNS)
    return np.array(pointers, np.int64), steps, np.array([*words, 0], np.int64)


def _encode_kernel(row: Array, step: Kernel, address: int, words: int) -> None:
    row[FUNCTION : THREADS + 1] = address, step.over, step.each, step.threads
    row[WHEN], row[DOWN] = step.when, step.down
    row[WORDS], row[WORD_COUNT] = words, len(step.words)
    _encode_range(row, step.rows, step.tile_rows)


def encode_products(launches: Sequence[Launches], numbers: Mapping[str, int]) -> Array:
    """Write the steps of all programs that are products as a call of a library.

    Returns: int64 [steps, STEP_COLUMNS]; IS_GEMM is 0 where a step is none.
    """
    steps = [(program, step) for program in launches for step in program.steps]
    found = np.zeros((len(steps), STEP_COLUMNS), np.int64)
    for row, (program, step) in zip(found, steps, strict=True):
        product = step.product if isinstance(step, Kernel) else step
        if product is not None:
            _encode_product(row, product, program.plan.temporaries, numbers)
    return found


def _encode_range(row: Array, rows: RowRange | None, tile_rows: int) -> None:
    if rows is not None:
        row[PER_ROW:] = rows.per_row, rows.per_edge, rows.low, rows.high, tile_rows


def _encode_product(
    row: Array, step: LibraryProduct, taken: Sequence[Temporary], numbers: Mapping[str, int]
) -> None:
    p, form, weight = step.product, OUTER, "gradient"
    if isinstance(p, MatrixProduct):
        form, weight = TRANSPOSED if p.transposed else PLAIN, "param"
    row[:X] = 1, form, numbers[f"{weight}_{p.param}"], p.m, p.n, p.edges, p.each
    for at, operand in zip((X, Y), step.operands, strict=True):
        row[at : at + T_ONCE + 1] = _encode_operand(operand, taken, numbers)
    _encode_range(row, step.rows, 1)


def _encode_operand(
    operand: Operand, taken: Sequence[Temporary], numbers: Mapping[str, int]
) -> tuple[int, ...]:
    place = operand.place
    if place.memory == Memory.TEMPORARY:
        t = taken[place.number]
        at = numbers["temporary"], IN_TEMPORARY, place.step, place.start
        return *at, t.rows, t.edges, t.once
    by, t = BY_EDGE if place.rows == PlaceRows.EDGE else BY_ROW, NOTHING
    if operand.packed is not None:
        by, t = ROW_OR_TEMPORARY, taken[operand.packed.number]
    return numbers[tensor_word(place)], by, place.step, place.start, t.rows, t.edges, t.once
