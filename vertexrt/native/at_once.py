"""Write several arrays in one call, so that no signal and no exception comes between them.

Python handles signals between two of its own instructions. So what belongs together, such as
parameters, moments and counts, is made beside what is there, and takes its place in one call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from vertexrt.native.code import Code, module_of
from vertexrt.native.foreign import Foreign
from vertexrt.native.load import LoadedCode, load

Array = np.ndarray[Any, Any]

COPY_ALL = Foreign("void", "ptr i64")
Write = tuple[Array, Array] | tuple[Array, Array, Array]
_WHOLE = np.zeros(1, np.int64)


@functools.cache
def _code() -> LoadedCode:
    code = Code("vrt_copy_all", "ptr*rows count")
    rows, count = code.arguments
    with code.loop(0, count) as k:
        row = rows + k * 3
        given = [row[0], row[1], row.to("i64")[2], code.const(False, "i1")]
        code.do("llvm.memcpy.p0.p0.i64", given)
    return load(module_of([code]), ["vrt_copy_all"], {})


def write_at_once(writes: Iterable[Write]) -> None:
    """Copy arrays to where they belong: all of them, or none.

    Args:
        writes: an array in C order, what it is to be, and the numbers of its rows that this is;
            without these, of the whole array.
    """
    kept, spans = [], [np.zeros((0, 3), np.int64)]
    for to, given, *listed in writes:
        made = np.ascontiguousarray(given, to.dtype)
        kept.append(made)
        rows = listed[0] if listed else _WHOLE
        width = to[0].nbytes if listed else to.nbytes
        assert to.flags.c_contiguous
        assert made.nbytes == width * len(rows)
        first = to.ctypes.data, made.ctypes.data
        numbers = rows, np.arange(len(rows))
        begins = [at + width * each for at, each in zip(first, numbers, strict=True)]
        spans.append(np.stack([*begins, np.full(len(rows), width)], axis=1))
    whole = np.concatenate(spans)
    COPY_ALL(_code()["vrt_copy_all"], whole, len(whole))
