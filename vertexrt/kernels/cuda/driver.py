"""The compiled loop that launches a step: it reads the launch table and calls the CUDA driver,
cuBLAS, or kernels of ours for wide products.

Nothing is decided in Python between two launches: at batch 1 a step has a hundred of them, and each
takes 2 to 3 us here. Kernels and cuBLAS are called by address, so that machine code is cached on
disk and the shim (`tests/shim`) can stand in for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vertexrt.kernels.cuda.compile import FOLDER
from vertexrt.kernels.cuda.device import (
    BUFFER_POINTER,
    BUFFER_SIZE,
    CUBLAS_CODES,
    SIZE,
    Array,
    Calls,
    Device,
)
from vertexrt.kernels.cuda.launch_text import (
    EDGES,
    SEGMENTS,
    Kernel,
    Launches,
)
from vertexrt.kernels.cuda.launch_text import ROWS as OVER_ROWS
from vertexrt.kernels.cuda.pack import TEMPORARY
from vertexrt.kernels.cuda.row_text import tensor_word
from vertexrt.kernels.layout import PAD
from vertexrt.lower.kernel import MatrixProduct, Memory, Operand, PlaceRows, Temporary
from vertexrt.lower.launches import LibraryProduct, RowRange
from vertexrt.native.compiled import compiled
from vertexrt.native.foreign import Foreign

# Calls by address.

# Of `new_arguments`: the driver's `extra`, the size that it points to, and the arguments.
FIRST_ARGUMENT = SIZE + 1
NO_TRANSPOSE, TRANSPOSE = 0, 1  # cuBLAS
CUDA_R_32F = 0
DEFAULT_ALGORITHM = -1
# Of a stream: addresses and handles, and of all of them the reals; how many processors there are;
# where splits of wide products leave their sums, and the first of the kernels.
CALLS = 15
(
    LAUNCH, GEMM, COMPUTE, HANDLE, STREAM, RECORD, WAIT, ITEMSIZE, ZERO, ONE, PROCESSORS, PARTIAL,
    WIDE,
) = range(CALLS - 2)  # fmt: skip


class GemmCall(NamedTuple):
    """c = alpha a b + beta c, as cuBLAS takes it: column-major, arrays and scalars by address."""

    ta: int
    tb: int
    m: int
    n: int
    k: int
    alpha: int
    a: int
    lda: int
    b: int
    ldb: int
    beta: int
    c: int
    ldc: int


_LAUNCH = Foreign("i32", "ptr i32 i32 i32 i32 i32 i32 i32 ptr ptr ptr")
_GEMM = Foreign("i32", "ptr i32 i32 i32 i32 i32 ptr ptr i32 ptr i32 ptr ptr i32")
_GEMM_EX = Foreign(
    "i32", "ptr i32 i32 i32 i32 i32 ptr ptr i32 i32 ptr i32 i32 ptr ptr i32 i32 i32 i32"
)
_LAUNCH_EX = Foreign("i32", "ptr ptr ptr ptr")
_RECORD = Foreign("i32", "ptr ptr")
_WAIT = Foreign("i32", "ptr ptr i32")


def launch_kernel(
    launch: int, stream: int, function: int, grid: tuple[int, int, int], extra: int, shared: int
) -> int:
    """Call cuLaunchKernel by its address; return the driver's error.

    Args:
        grid: blocks across and down, and threads of each; shared: bytes of dynamic shared memory
            of a block.
    """
    x, y, threads = grid
    return int(_LAUNCH(launch, function, x, y, 1, threads, 1, 1, shared, stream, 0, extra))


def record_event(address: int, event: int, stream: int) -> int:
    """Call cuEventRecord by its address; return the driver's error."""
    return int(_RECORD(address, event, stream))


def wait_for_event(address: int, stream: int, event: int) -> int:
    """Call cuStreamWaitEvent by its address; return the driver's error."""
    return int(_WAIT(address, stream, event, 0))


def new_arguments(most: int) -> Array:
    """Return room for so many arguments of a kernel, after what the driver is told of them.

    Whoever launches writes 8 times their number to SIZE, and keeps the array until then.
    """
    found = np.zeros(FIRST_ARGUMENT + most, np.int64)
    at = found.ctypes.data
    found[0], found[1] = BUFFER_POINTER, at + 8 * FIRST_ARGUMENT
    found[2], found[3] = BUFFER_SIZE, at + 8 * SIZE
    return found


@compiled
def launch_each(launch: int, stream: int, packed: Array) -> int:
    """Launch kernels that take one struct each, one after the other: no signal comes between.

    Args:
        packed: int64 [*], of each of them its function, blocks, threads of each, how many words its
            struct has, and these; of no blocks there is nothing to do.
    Returns: the driver's error.
    """
    given, at, code = new_arguments(len(packed)), 0, 0
    while at < len(packed) and code == 0:
        function, blocks, threads, size = packed[at], packed[at + 1], packed[at + 2], packed[at + 3]
        at += 4
        given[FIRST_ARGUMENT : FIRST_ARGUMENT + size] = packed[at : at + size]
        given[SIZE] = 8 * size
        at += size
        if blocks > 0:
            grid = blocks, 1, threads
            code = launch_kernel(launch, stream, function, grid, given.ctypes.data, 0)
    given[SIZE] = 0  # it lives until here
    return int(code)


@compiled
def launch_configured(address: int, config: int, function: int, extra: int) -> int:
    """Call cuLaunchKernelEx by its address, with a CUlaunchConfig; return the driver's error."""
    return int(_LAUNCH_EX(address, config, function, 0, extra))


@compiled
def order_streams(record: int, wait: int, event: int, before: int, after: int) -> int:
    """Let a stream wait on the device for what another one has; return the driver's error.

    Args:
        record, wait: addresses of cuEventRecord and cuStreamWaitEvent.
        event: that marks what the stream `before` has, for the stream `after`.
    """
    code = record_event(record, event, before)
    if code == 0:
        code = wait_for_event(wait, after, event)
    return int(code)


def product(calls: Array, asked: GemmCall) -> int:
    """Call the gemm that was chosen: cublasSgemm_v2 or cublasDgemm_v2, or cublasGemmEx."""
    handle, c = calls[HANDLE], asked
    if calls[COMPUTE] == 0:
        return int(_GEMM(calls[GEMM], handle, *asked))
    return int(
        _GEMM_EX(
            calls[GEMM], handle, c.ta, c.tb, c.m, c.n, c.k, c.alpha, c.a, CUDA_R_32F, c.lda, c.b,
            CUDA_R_32F, c.ldb, c.beta, c.c, CUDA_R_32F, c.ldc, calls[COMPUTE], DEFAULT_ALGORITHM,
        )
    )  # fmt: skip


def addresses_of(calls: Calls, scalars: Array, processors: int, wide: Sequence[int]) -> Array:
    """Return what `driver.launch` calls on a stream: int64 [CALLS].

    Args:
        scalars: 0 and 1 of the dtype of the network, which must live as long.
        processors: of the device.
        wide: where splits of wide products leave their sums, and the kernels; zeros for none.
    """
    found = np.zeros(CALLS, np.int64)
    found[LAUNCH], found[HANDLE], found[STREAM] = calls.launch, calls.handle, calls.stream
    found[RECORD], found[WAIT] = calls.record, calls.wait
    found[GEMM] = calls.gemm64
    if scalars.dtype == np.float32:
        found[GEMM], found[COMPUTE] = calls.gemm32, calls.compute
    found[ITEMSIZE], found[ZERO] = scalars.itemsize, scalars.ctypes.data
    found[ONE] = found[ZERO] + scalars.itemsize
    found[PROCESSORS], found[PARTIAL:] = processors, wide
    return found


# Products of many rows by the matrix units of Hopper, where they are faster than cuBLAS, which
# multiplies float32 without matrix units unless TF32 is allowed. `warp_group_matmul.cuh` has the
# same product by three TF32 products, twice as fast where its tiles, 128 x 128, occupy most of the
# device.

NAMES = ("wide_plain", "wide_transposed", "wide_outer")  # y = x w^T, y = x w, g += d^T x
TILE, WIDE_THREADS = 128, 256
WIDE_SHARED = 167_072  # of a block: `MatmulMemory`
VALUES = 16  # of `WideProduct`
SHALLOWEST = 64  # of less depth, a tile is not worth its beginning and its end
SPLIT_DEPTH = 256  # at least, of what shares the depth of a tile
# What a tile costs beside its chunks of DEPTH, in chunks (1.5 us on an H200), and, for each of its
# splits, what adds these up.
DEPTH, BESIDE, JOINED = 32, 2, 2
MOST_SPLITS, MOST_PARTS = 16, 4  # of a tile; for each processor, of all tiles
LEAST_SPLIT = 1 << 15  # elements of parameters: products of fewer do not fill a device by splits
# Tiles have to fill so much of the device, with what they cost beside their chunks: at 0.2 products
# take 1.2 of cuBLAS's time, at 0.3 0.79 of it, and from 0.6 on 0.53 to 0.75 (H200).
FULL, OF = 7, 25


@cache
def wide_source() -> str:
    """Return the kernels, whose names are NAMES."""
    sizes = {"SHARED_BYTES": WIDE_SHARED, "TILE": TILE, "DEPTH": DEPTH}
    defines = [f"#define WIDE_{name} {size}" for name, size in sizes.items()]
    return "\n".join([*defines, (FOLDER / "wide.cu").read_text()])


def wide_sources(device: Device, dtype: npt.DTypeLike) -> list[str]:
    """Return what a device needs for the products of a dtype: the kernels, or nothing."""
    single = np.dtype(dtype) == np.float32
    there = device.warp_groups and device.precision == "float32" and single
    return [wide_source()] if there else []


def split_bytes(processors: int) -> int:
    """Return the bytes of what splits leave: sums of a tile, and then a counter, for each of them.

    They begin as zeros.
    """
    return MOST_PARTS * processors * (TILE * TILE + 1) * 4


def load_wide(device: Device, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Return the functions of the kernels, in the order of NAMES; zeros where there are none."""
    sources = wide_sources(device, dtype)
    if not sources:
        return (0,) * len(NAMES)
    found = device.load(sources, dtype)
    functions = tuple(found[name] for name in NAMES)
    for function in functions:
        device.allow_shared(function, WIDE_SHARED)
    return functions


def splits_of(m: int, n: int, k: int, processors: int) -> int:
    """Return in how many parts the depth of a product of [m, k] and [k, n] is made.

    Processors take turns with tiles, or with parts of these; that number is taken with which they
    are done first.

    Returns: 0 where its tiles do not fill the device.
    """
    if k < SHALLOWEST:
        return 0
    tiles = (m + TILE - 1) // TILE * ((n + TILE - 1) // TILE)
    chunks = (k + DEPTH - 1) // DEPTH
    best, least = 1, (tiles + processors - 1) // processors * (chunks + BESIDE)
    for splits in range(2, min(MOST_SPLITS, k // SPLIT_DEPTH) + 1):
        if tiles * splits > MOST_PARTS * processors:
            break
        turns = (tiles * splits + processors - 1) // processors
        cost = turns * ((chunks + splits - 1) // splits + BESIDE + JOINED * splits)
        if cost < least:
            best, least = splits, cost
    return best if OF * m * n * chunks >= FULL * processors * TILE * TILE * least else 0


def wide_splits(calls: Array, m: int, n: int, k: int) -> int:
    """Return `splits_of` a product that a kernel of ours makes, 0 for others."""
    if calls[WIDE] == 0:
        return 0
    splits = splits_of(m, n, k, calls[PROCESSORS])
    return splits if splits == 1 or calls[PARTIAL] != 0 else 0


def _vector(asked: GemmCall, rows: int, columns: int) -> int:
    """Return how many neighbours in memory are loaded at once.

    Args:
        rows, columns: those of the operands' neighbours that count.
    """
    every = rows | columns | asked.lda | asked.ldb | asked.ldc | asked.m
    every |= (asked.a | asked.b | asked.c) // 4  # of float32
    if every % 4 == 0:
        return 4
    return 2 if every % 2 == 0 else 1


def multiply(calls: Array, asked: GemmCall) -> int:
    """Launch a product; return the error of the driver, or that of cuBLAS."""
    splits = wide_splits(calls, asked.m, asked.n, asked.k)
    if splits == 0:
        return product(calls, asked)
    # cuBLAS takes columns: its second operand, and the rows of ours, are the columns of c.
    a_along, b_along = asked.tb == TRANSPOSE, asked.ta != TRANSPOSE
    form = 2 if a_along else 1 if b_along else 0
    rows = asked.n if a_along else asked.k
    columns = asked.m if b_along else asked.k
    down = (asked.n + TILE - 1) // TILE
    across = (asked.m + TILE - 1) // TILE
    given = new_arguments(VALUES)
    at = FIRST_ARGUMENT
    given[at], given[at + 1], given[at + 2] = asked.b, asked.ldb, asked.n
    given[at + 3], given[at + 4], given[at + 5] = asked.a, asked.lda, asked.m
    given[at + 6], given[at + 7], given[at + 8] = asked.c, asked.ldc, asked.k
    given[at + 9], given[at + 10], given[at + 11] = down, across, splits
    given[at + 12] = _vector(asked, rows, columns)
    given[at + 13] = asked.beta == calls[ONE]
    given[at + 14] = calls[PARTIAL]
    given[at + 15] = calls[PARTIAL] + 4 * TILE * TILE * MOST_PARTS * calls[PROCESSORS]
    given[SIZE] = 8 * VALUES
    grid = min(down * across * splits, calls[PROCESSORS]), 1, WIDE_THREADS
    function, extra = calls[WIDE + form], given.ctypes.data
    code = launch_kernel(calls[LAUNCH], calls[STREAM], function, grid, extra, WIDE_SHARED)
    given[SIZE] = 0  # it lives until here
    return int(code)


# The table.

# Columns of a step. A kernel and a product share the first, and those of tiles.
IS_GEMM = 0
FUNCTION, OVER, EACH, THREADS, ONLY_LISTED, DOWN, WORDS, WORD_COUNT, LOOKUP = range(1, 10)
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
    if step[ONLY_LISTED] and not listed:
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
    blocks = grid.across, grid.down, step[THREADS]
    extra = arguments.ctypes.data
    return launch_kernel(calls[LAUNCH], calls[STREAM], step[FUNCTION], blocks, extra, 0)


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
    launches: Sequence[Launches], function: Callable[[Kernel], int], numbers: Mapping[str, int]
) -> tuple[Array, Array, Array]:
    """Write the steps of all programs as the driver reads them.

    Args:
        function: returns the address of a step's kernel.
        numbers: name of a word -> its number.
    Returns: steps_ptr, steps, step_words; see `launch`.
    """
    pointers, rows = [0], []
    words: list[int] = []
    for program in launches:
        lookups = 0
        for step in program.steps:
            row = np.zeros(STEP_COLUMNS, np.int64)
            if isinstance(step, Kernel):
                row[FUNCTION : LOOKUP + 1] = (
                    function(step), step.over, step.each, step.threads, step.only_listed,
                    step.down, len(words), len(step.words), lookups,
                )  # fmt: skip
                _encode_range(row, step.rows, step.tile_rows)
                lookups += step.over == SEGMENTS
                words += [numbers[name] for name in step.words]
            else:
                _encode_product(row, step, program.plan.temporaries, numbers)
            rows.append(row)
        pointers.append(len(rows))
    steps = np.array(rows, np.int64).reshape(-1, STEP_COLUMNS)
    return np.array(pointers, np.int64), steps, np.array([*words, 0], np.int64)


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
