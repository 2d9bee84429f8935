"""The compiled loop that launches a step: it reads the launch table and calls the CUDA driver.

Nothing is decided in Python between two launches: at batch 1 a step has a hundred of them, and each
takes 2 to 3 us here. Kernels and cuBLAS are called by address, so that machine code is cached on
disk and the shim (`tests/shim`) can stand in for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vertexrt.cache.compiled import njit
from vertexrt.kernels.cuda.calls import (
    BUFFER_POINTER,
    BUFFER_SIZE,
    LAUNCH,
    NO_TRANSPOSE,
    RECORD,
    STREAM,
    TRANSPOSE,
    WAIT,
    launch_kernel,
    product,
    record_event,
    wait_for_event,
)
from vertexrt.kernels.cuda.device import CUBLAS_CODES
from vertexrt.kernels.cuda.pack import ADDRESSES
from vertexrt.kernels.cuda.products import ARRIVED
from vertexrt.kernels.cuda.steps import (
    ALWAYS,
    BY_EDGE,
    BY_ROW,
    CHUNKED,
    CHUNKS,
    EDGES,
    FIXED,
    LISTED,
    OUTER,
    PLAIN,
    ROW_OR_TEMPORARY,
    ROWS_A_CHUNK,
    ROWS_A_SPLIT,
    SEGMENTS,
    SPLITS,
    TILES,
    Gemm,
    Kernel,
    Launches,
    Operand,
)
from vertexrt.kernels.cuda.steps import ROWS as OVER_ROWS
from vertexrt.kernels.layout import PAD

Array = np.ndarray[Any, Any]

# Columns of a step. A kernel and a product share the first.
IS_GEMM = 0
FUNCTION, OVER, EACH, THREADS, WHEN, OF_EDGES, WORDS, WORD_COUNT = range(1, 9)
PER_ROW, PER_EDGE, LOW, HIGH, TILE_ROWS = range(21, 26)  # high is 0 where there is no bound
FORM, WEIGHT, M, K, GEMM_EDGES, TIMES, X, Y = 1, 2, 3, 4, 5, 6, 7, 14
WORD, BY, STEP, START, T_ROWS, T_EDGES, T_ONCE = range(7)
STEP_COLUMNS = 26
HEAD = 7  # values of `Args` before its words
TEMPORARY, ARRIVED_AT = ADDRESSES.index("temporary"), ADDRESSES.index("arrived")
COUNTERS = 4 * ARRIVED  # bytes of a stream's
OF_STREAM, REGION, RECORDED, FIRST_WAIT, END_WAIT = range(5)  # columns of `streams.Order.steps`
ROWS_A_PRODUCT = 1 << 14  # of an outer product: sums over more lose digits of float32
FORK = 0  # the event where all streams begin; that of each stream's end has the stream's number


@njit(cache=True, nogil=True)
def _operand(
    step: Array,
    at: int,
    words: Array,
    itemsize: int,
    lo: int,
    elo: int,
    n_pad: int,
    m_pad: int,
    temporary: int,
) -> Any:
    """Return the address of the first row of an operand."""
    by = step[at + BY]
    packed = by == ROW_OR_TEMPORARY and lo < 0
    if by == BY_EDGE:
        begin = words[step[at + WORD]] + itemsize * (elo * step[at + STEP] + step[at + START])
    elif by == BY_ROW or (by == ROW_OR_TEMPORARY and not packed):
        begin = words[step[at + WORD]] + itemsize * (lo * step[at + STEP] + step[at + START])
    else:
        behind = n_pad * step[at + T_ROWS] + m_pad * step[at + T_EDGES] + step[at + T_ONCE]
        begin = temporary + itemsize * behind
        if not packed:
            begin += itemsize * step[at + START]
    return begin


@njit(cache=True, nogil=True)
def applies(step: Array, n: int, m: int) -> bool:
    """Tell whether a step is there for so many rows and edges."""
    most = max(n * step[PER_ROW], m * step[PER_EDGE])
    return not step[HIGH] or step[LOW] < most <= step[HIGH]


@njit(cache=True, nogil=True)
def extent(step: Array, n: int, lo: int, m: int, lookup_at: Array, lookup: int) -> Any:
    """Return the grid of a kernel, then `first` and `chunks` of its arguments.

    Args:
        step: of a kernel; n, lo, m: of the launch.
        lookup_at: see `launch`; lookup: the next one.
    Returns: blocks across (0: it is not launched) and down, first, chunks.
    """
    over, when = step[OVER], step[WHEN]
    first: Any = np.int64(0)
    chunks: Any = np.int64(1)
    down: Any = np.int64(1)
    if over == OVER_ROWS:
        across = (n + step[EACH] - 1) // step[EACH]
    elif over == EDGES:
        across = (m + step[EACH] - 1) // step[EACH]
    elif over == SEGMENTS:
        first = lookup_at[lookup]
        across = lookup_at[lookup + 1] - first
        down = step[EACH]
    elif over == TILES:
        across = step[EACH]
        most = max(n * step[PER_ROW], m * step[PER_EDGE])
        down = (most + step[TILE_ROWS] - 1) // step[TILE_ROWS]
    elif over == SPLITS:
        across = step[EACH]
        most = max(n * step[PER_ROW], m * step[PER_EDGE])
        chunks = min(step[TILE_ROWS], (most + ROWS_A_SPLIT - 1) // ROWS_A_SPLIT)
        if when == ALWAYS:
            down = chunks
    else:
        assert over == FIXED
        count = m if step[OF_EDGES] else n
        across = step[EACH] if count else 0 * step[EACH]
        chunks = min(CHUNKS, (count + ROWS_A_CHUNK - 1) // ROWS_A_CHUNK)
        if when == ALWAYS:
            down = chunks
    if (when == LISTED and lo >= 0) or (when == CHUNKED and chunks <= 1):
        across = 0 * step[EACH]
    return across, down, first, chunks


@njit(cache=True, nogil=True)
def is_launched(step: Array, n: int, lo: int, m: int, lookup_at: Array, lookup: int) -> bool:
    """Tell whether `launch` launches a step; arguments as in `extent`."""
    if not applies(step, n, m):
        return False
    if step[IS_GEMM]:
        return bool((m if step[GEMM_EDGES] else n) * step[TIMES] > 0)
    return bool(extent(step, n, lo, m, lookup_at, lookup)[0] > 0)


@njit(cache=True, nogil=True)
def begin_stream(
    k: int, calls: Array, begun: Array, events: Array, order: Array, waits: Array
) -> Any:
    """Let the stream of the k-th launched step wait for what the step needs.

    Args:
        begun: bool [streams] which have waited for the start.
        order, waits: see `launch`.
    Returns: the stream, and the error of the driver.
    """
    stream = order[k, OF_STREAM]
    own = calls[stream]
    code: Any = np.int64(0)
    if not begun[stream]:
        begun[stream] = True
        code = wait_for_event(own[WAIT], own[STREAM], events[FORK])
    for w in range(order[k, FIRST_WAIT], order[k, END_WAIT]):
        if code == 0:
            code = wait_for_event(own[WAIT], own[STREAM], events[waits[w]])
    return stream, code


@njit(cache=True, nogil=True)
def join_streams(calls: Array, begun: Array, events: Array) -> int:
    """Let the main stream wait for all others; return the error of the driver."""
    found: Any = np.int64(0)
    for stream in range(1, len(calls)):
        if begun[stream]:
            own = calls[stream]
            code = record_event(own[RECORD], events[stream], own[STREAM])
            if code == 0:
                code = wait_for_event(own[WAIT], calls[0, STREAM], events[stream])
            if code != 0:
                found = code
    return int(found)


@njit(cache=True, nogil=True)
def launch(
    table: Array,
    steps_ptr: Array,
    steps: Array,
    step_words: Array,
    words: Array,
    room: int,
    lookup_ptr: Array,
    lookup_at: Array,
    itemsize: int,
    scalars: int,
    calls: Array,
    events: Array,
    order: Array,
    waits: Array,
) -> tuple[int, int, int]:
    """Launch every step of every row of a table, and let the main stream wait for all of them.

    Args:
        table: see `layout`.
        steps_ptr, steps: [programs + 1], [steps, STEP_COLUMNS] what each program launches.
        step_words: [*] numbers of the words of each kernel.
        words: int64 [words] what they are in this run; those of temporaries and of counters are
            the main stream's, and are changed for others.
        room: bytes of the temporaries of each stream.
        lookup_ptr: [launches + 1] first sorted lookup of each launch, lookup_at: [lookups + 1]
            its first segment.
        scalars: address of two reals, 0 and 1.
        calls: int64 [streams, CALLS] addresses of cuLaunchKernel and of cuBLAS's gemm, its compute
            type (0: it is not cublasGemmEx), its handle, the stream; where there are several
            streams, addresses of cuEventRecord and cuStreamWaitEvent. The first is the main one.
        events: int64 [*] of the driver; order, waits: of `streams.Order`. They are not looked at
            where there is one stream.
    Returns: the error of the driver (or of cuBLAS, plus CUBLAS_CODES), 0 for none; launch and step.
    """
    arguments = np.zeros(64, np.int64)
    extra = np.zeros(5, np.int64)
    size = np.zeros(1, np.int64)
    extra[0] = BUFFER_POINTER
    extra[1] = arguments.ctypes.data
    extra[2] = BUFFER_SIZE
    extra[3] = size.ctypes.data
    zero, one = scalars, scalars + itemsize
    several = len(calls) > 1
    begun = np.zeros(len(calls), np.bool_)
    begun[0] = True
    temporaries, counters = words[TEMPORARY], words[ARRIVED_AT]
    launched, stream = 0, 0
    code, failed = 0, (0, 0, 0)
    if several:
        code = record_event(calls[0, RECORD], events[FORK], calls[0, STREAM])
        if code != 0:
            return code, -1, -1
    for t in range(len(table)):
        program, n, lo, at, m, elo = table[t]
        n_pad = (n + PAD - 1) // PAD * PAD
        m_pad = (m + PAD - 1) // PAD * PAD
        lookup = lookup_ptr[t]
        for s in range(steps_ptr[program], steps_ptr[program + 1]):
            step = steps[s]
            if not applies(step, n, m):
                continue
            is_gemm = step[IS_GEMM] != 0
            count: Any = np.int64(0)
            blocks: Any = np.int64(0)
            rows_of_grid: Any = np.int64(0)
            first: Any = np.int64(0)
            chunks: Any = np.int64(0)
            if is_gemm:
                count = (m if step[GEMM_EDGES] else n) * step[TIMES]
            else:
                blocks, rows_of_grid, first, chunks = extent(step, n, lo, m, lookup_at, lookup)
                lookup += step[OVER] == SEGMENTS
            if count == 0 and blocks == 0:
                continue
            if several:
                stream, code = begin_stream(launched, calls, begun, events, order, waits)
                words[ARRIVED_AT] = counters + COUNTERS * stream
                words[TEMPORARY] = temporaries + room * order[launched, REGION]
                if code != 0:
                    failed = code, t, s
                    break
            own = calls[stream]
            if is_gemm:
                temporary = words[TEMPORARY]
                x = _operand(step, X, words, itemsize, lo, elo, n_pad, m_pad, temporary)
                y = _operand(step, Y, words, itemsize, lo, elo, n_pad, m_pad, temporary)
                w = words[step[WEIGHT]]
                wide, deep = step[M], step[K]
                if step[FORM] == PLAIN:
                    code = product(
                        own, TRANSPOSE, NO_TRANSPOSE, wide, count, deep,
                        one, w, deep, x, deep, zero, y, wide,
                    )  # fmt: skip
                elif step[FORM] == OUTER:
                    code = 0
                    for begin in range(0, count, ROWS_A_PRODUCT):
                        if code == 0:
                            code = product(
                                own, NO_TRANSPOSE, TRANSPOSE, deep, wide,
                                min(ROWS_A_PRODUCT, count - begin), one,
                                x + begin * deep * itemsize, deep,
                                y + begin * wide * itemsize, wide, one, w, deep,
                            )  # fmt: skip
                else:
                    code = product(
                        own, NO_TRANSPOSE, NO_TRANSPOSE, deep, count,
                        wide, one, w, deep, x, wide, zero, y, deep,
                    )  # fmt: skip
                if code != 0:
                    code += CUBLAS_CODES
            else:
                arguments[0] = n
                arguments[1] = lo
                arguments[2] = at
                arguments[3] = m
                arguments[4] = elo
                arguments[5] = first
                arguments[6] = chunks
                for w in range(step[WORD_COUNT]):
                    arguments[HEAD + w] = words[step_words[step[WORDS] + w]]
                size[0] = 8 * (HEAD + max(1, step[WORD_COUNT]))
                code = launch_kernel(
                    own[LAUNCH],
                    step[FUNCTION],
                    blocks,
                    rows_of_grid,
                    step[THREADS],
                    own[STREAM],
                    extra.ctypes.data,
                )
            if several and code == 0 and order[launched, RECORDED] >= 0:
                code = record_event(own[RECORD], events[order[launched, RECORDED]], own[STREAM])
            if code != 0:
                failed = code, t, s
                break
            launched += 1
        if code != 0:
            break
    words[TEMPORARY], words[ARRIVED_AT] = temporaries, counters
    if several:
        code = join_streams(calls, begun, events)
        if code != 0 and failed[0] == 0:
            failed = code, -1, -1
    return failed


def encode(
    launches: list[Launches], functions: list[list[int]], numbers: dict[str, int]
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
        for step, address in zip(program.steps, addresses, strict=True):
            row = np.zeros(STEP_COLUMNS, np.int64)
            if isinstance(step, Gemm):
                row[:X] = (
                    1,
                    step.form,
                    numbers[step.weight],
                    step.m,
                    step.k,
                    step.edges,
                    step.times,
                )
                row[X:Y] = _encode_operand(step.x, numbers)
                row[Y:PER_ROW] = _encode_operand(step.y, numbers)
            else:
                assert isinstance(step, Kernel)
                row[FUNCTION : WORD_COUNT + 1] = (
                    address,
                    step.over,
                    step.each,
                    step.threads,
                    step.when,
                    step.edges,
                    len(words),
                    len(step.words),
                )
                words += [numbers[name] for name in step.words]
            if step.tiles is not None:
                t = step.tiles
                row[PER_ROW:] = (t.per_row, t.per_edge, t.low, t.high, t.rows)
            rows.append(row)
        pointers.append(len(rows))
    steps = np.array(rows, np.int64).reshape(-1, STEP_COLUMNS)
    return np.array(pointers, np.int64), steps, np.array([*words, 0], np.int64)


def _encode_operand(operand: Operand, numbers: dict[str, int]) -> tuple[int, ...]:
    at = operand.temporary
    word = numbers[operand.word]
    return word, operand.by, operand.step, operand.start, at.rows, at.edges, at.once


@njit(cache=True, nogil=True)
def sort_lookups(
    table: Array,
    lookups_ptr: Array,
    lookups: Array,
    ints: Array,
    order: Array,
    rows: Array,
    seen: Array,
) -> tuple[Array, Array, Array, Array, Array]:
    """Group the rows of each launch by what they looked up, in order of first appearance.

    So a table's gradient is added up by one block for each of its rows, in a fixed order.

    Args:
        lookups_ptr, lookups: CSR of the integer pulls that each program's lookups read.
        ints: [pulls, V]; order: [rows] the user's vertex; rows: of launches that take a list.
        seen: int32 [largest index + 1], all -1; left so.
    Returns: lookup_ptr and lookup_at of `launch`, then segment_word, segment_ptr, segment_row.
    """
    total, found = 0, 0
    for t in range(len(table)):
        count = lookups_ptr[table[t, 0] + 1] - lookups_ptr[table[t, 0]]
        total += count * table[t, 1]
        found += count
    lookup_ptr = np.zeros(len(table) + 1, np.int64)
    lookup_at = np.zeros(found + 1, np.int64)
    segment_word = np.empty(total, np.int32)
    segment_ptr = np.zeros(total + 1, np.int32)
    cursor = np.empty(total, np.int32)
    member = np.empty(total, np.int32)
    used, segments, lookup = 0, 0, 0
    for t in range(len(table)):
        p, n, lo, at = table[t, 0], table[t, 1], table[t, 2], table[t, 3]
        for k in range(lookups_ptr[p], lookups_ptr[p + 1]):
            lookup_at[lookup] = segments
            begin, index = segments, ints[lookups[k]]
            for i in range(n):
                word = index[order[lo + i if lo >= 0 else rows[at + i]]]
                if word < 0:
                    continue
                if seen[word] < 0:
                    seen[word] = segments
                    segment_word[segments] = word
                    segment_ptr[segments] = 0
                    segments += 1
                segment_ptr[seen[word]] += 1
            for s in range(begin, segments):
                size = segment_ptr[s]
                segment_ptr[s] = used
                cursor[s] = used
                used += size
            for i in range(n):
                word = index[order[lo + i if lo >= 0 else rows[at + i]]]
                if word >= 0:
                    member[cursor[seen[word]]] = i
                    cursor[seen[word]] += 1
            for s in range(begin, segments):
                seen[segment_word[s]] = -1
            lookup += 1
        lookup_ptr[t + 1] = lookup
    lookup_at[lookup] = segments
    segment_ptr[segments] = used
    return (
        lookup_ptr,
        lookup_at,
        segment_word[:segments],
        segment_ptr[: segments + 1],
        member[:used],
    )
